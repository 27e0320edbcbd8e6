"""Headless Chromium for the page tests, by its DevTools protocol over a pair of pipes: nothing but the standard library, no port."""
import base64
import fcntl
import hashlib
import json
import os
import queue
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import time


def find():
    """The browser's path, installed where that is possible; None and the reason where it is not."""
    name = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if name:
        return name, ""
    r = subprocess.run(["sh", "scripts/deps.sh", "browser"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    name = shutil.which("chromium")
    return name, "" if name else "no chromium: " + " ".join(r.stdout.split())[-200:]


def pin(host, port):
    """SHA-256 of the server's public key as the browser's pin list has it: this one certificate is trusted, no other is."""
    pem = ssl.get_server_certificate((host, port))
    pub = subprocess.run(["openssl", "x509", "-pubkey", "-noout"], input=pem.encode(), stdout=subprocess.PIPE, check=True).stdout
    der = subprocess.run(["openssl", "pkey", "-pubin", "-outform", "der"], input=pub, stdout=subprocess.PIPE, check=True).stdout
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


class Browser:
    def __init__(self, path, pin_b64):
        self.home = tempfile.mkdtemp(prefix="sluice-browser-")
        in_r, in_w = os.pipe()
        out_r, out_w = os.pipe()
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (in_r, out_w)]
        os.close(in_r)
        os.close(out_w)

        def child():  # the browser reads commands from descriptor 3 and writes to 4
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        flags = ["--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + self.home, "--no-first-run", "--no-default-browser-check", "--disable-gpu",
                 "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
                 "--ignore-certificate-errors-spki-list=" + pin_b64, "--proxy-server=direct://"]
        if os.getuid() == 0:
            flags.append("--no-sandbox")  # it refuses to start as root otherwise; the only pages it sees are ours
        self.log = open(os.path.join(self.home, "log"), "w")
        self.proc = subprocess.Popen([path, *flags, "about:blank"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, preexec_fn=child, close_fds=False,
                                     start_new_session=True)
        for fd in high:
            os.close(fd)
        self.to, self.back = in_w, out_r
        self.lock, self.last, self.answers, self.handlers = threading.Lock(), 0, {}, {}
        self.events = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._dispatch, daemon=True).start()

    def _read(self):
        rest = b""
        while True:
            piece = os.read(self.back, 1 << 16)
            if not piece:
                return
            *whole, rest = (rest + piece).split(b"\0")
            for text in whole:
                m = json.loads(text)
                if "id" in m:
                    self.answers[m["id"]].put(m)
                else:
                    self.events.put(m)

    def _dispatch(self):
        while True:
            m = self.events.get()
            f = self.handlers.get((m.get("sessionId"), m["method"]))
            if f:
                f(m["params"])

    def call(self, method, session=None, **params):
        with self.lock:
            self.last += 1
            n = self.last
            self.answers[n] = queue.Queue()
            m = {"id": n, "method": method, "params": params}
            if session:
                m["sessionId"] = session
            text = json.dumps(m).encode() + b"\0"
            while text:
                text = text[os.write(self.to, text):]
        a = self.answers[n].get(timeout=60)
        del self.answers[n]
        if "error" in a:
            raise RuntimeError(f"{method}: {a['error']['message']}")
        return a["result"]

    def close(self):
        try:
            self.call("Browser.close")
            self.proc.wait(15)
        except Exception:
            os.killpg(self.proc.pid, signal.SIGKILL)
            self.proc.wait()
        self.log.close()
        shutil.rmtree(self.home, ignore_errors=True)


class Page:
    """One tab in a profile of its own, which notes every console error, refusal by the policy, request and dialog."""

    def __init__(self, browser, width=1200, height=800, dark=False, touch=False):
        self.b = browser
        context = browser.call("Target.createBrowserContext")["browserContextId"]
        target = browser.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.s = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.touch = touch
        self.errors, self.urls, self.dialogs, self.fakes = [], [], [], []
        self.on("Log.entryAdded", lambda p: self.errors.append(p["entry"].get("text", "")))
        self.on("Runtime.exceptionThrown", lambda p: self.errors.append(json.dumps(p["exceptionDetails"])[:500]))
        self.on("Runtime.consoleAPICalled", lambda p: self.errors.append(json.dumps(p["args"])[:500]))
        self.on("Network.requestWillBeSent", lambda p: self.urls.append(p["request"]["url"]))
        self.on("Page.javascriptDialogOpening", self._dialog)
        self.on("Fetch.requestPaused", self._paused)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if touch else 1, mobile=touch)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        if touch:
            self.call("Emulation.setTouchEmulationEnabled", enabled=True)

    def on(self, event, f):
        self.b.handlers[(self.s, event)] = f

    def call(self, method, **params):
        return self.b.call(method, self.s, **params)

    def _dialog(self, p):
        self.dialogs.append(p["message"])
        threading.Thread(target=lambda: self.call("Page.handleJavaScriptDialog", accept=True), daemon=True).start()

    def _paused(self, p):
        def go():
            for part, answer in self.fakes:
                if part in p["request"]["url"]:
                    status, kind, body, more = answer
                    heads = [{"name": "Content-Type", "value": kind}] + [{"name": k, "value": v} for k, v in more.items()]
                    self.call("Fetch.fulfillRequest", requestId=p["requestId"], responseCode=status, responseHeaders=heads, body=base64.b64encode(body.encode()).decode())
                    return
            self.call("Fetch.continueRequest", requestId=p["requestId"])
        threading.Thread(target=go, daemon=True).start()

    def fake(self, part, status, kind, body, **more):
        """From now on requests whose address has part are answered so, by the browser itself; the page and its policy are the real ones."""
        self.fakes = [(part, (status, kind, body, more))]
        self.call("Fetch.enable", patterns=[{"urlPattern": "*" + part + "*"}])

    def real(self):
        self.fakes = []
        self.call("Fetch.disable")

    def go(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def js(self, expression):
        r = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in r:
            raise AssertionError(f"{expression}: {r['exceptionDetails'].get('exception', {}).get('description', r)}")
        return r["result"].get("value")

    def wait(self, expression, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if self.js(f"(async () => !!(await ({expression})))()"):
                    return
            except RuntimeError:
                pass  # in mid-navigation
            time.sleep(0.03)
        raise AssertionError(f"not within {seconds} s: {expression}; the page says: {self.js('document.body.innerText')[:600]!r}; errors: {self.errors}")

    def click(self, selector):
        """As a person would: by the pointer, at the middle of what is seen."""
        x, y = self.js(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'nearest'}}); const r = e.getBoundingClientRect();"
                       " return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name, code=0, modifiers=0, text=None):
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, windowsVirtualKeyCode=code, modifiers=modifiers, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name, code=name, windowsVirtualKeyCode=code, modifiers=modifiers)

    def enter(self, shift=False):
        self.key("Enter", 13, 8 if shift else 0, "\r")

    def shot(self, name):
        """A picture, where TEST_SHOTS names a folder for them."""
        if os.environ.get("TEST_SHOTS"):
            os.makedirs(os.environ["TEST_SHOTS"], exist_ok=True)
            with open(os.path.join(os.environ["TEST_SHOTS"], name + ".png"), "wb") as f:
                f.write(base64.b64decode(self.call("Page.captureScreenshot")["data"]))
