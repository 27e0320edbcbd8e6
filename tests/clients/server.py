"""Starts `sluice serve` for a client test and takes the environment that it prints, as a user's shell would."""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time


class Server:
    def __init__(self, model, *flags):
        self.state = tempfile.mkdtemp(prefix="sluice-clients-")
        self.log = open(os.path.join(self.state, "log"), "w+")
        cmd = [os.environ["SLUICE"], "serve", *(["-m", model] if model else []), "--port", "0", "--state", self.state, *flags]
        self.proc = subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=self.log, text=True)
        self.env = {}
        timer = threading.Timer(60, self.proc.kill)
        timer.start()
        for line in self.proc.stdout:
            m = re.match(r"export (\w+)=(.*)", line.strip())
            if m:
                self.env[m.group(1)] = m.group(2).strip("'\"")
            if {"OPENAI_BASE_URL", "OPENAI_API_KEY", "SSL_CERT_FILE"} <= self.env.keys():
                break
        timer.cancel()
        if "OPENAI_BASE_URL" not in self.env:
            raise RuntimeError("the server did not start: " + self.read_log())
        # what it goes on to say must not block it
        threading.Thread(target=lambda: [None for _ in self.proc.stdout], daemon=True).start()

    def read_log(self):
        self.log.flush()
        with open(self.log.name) as f:
            return f.read()

    def engine_pid(self):
        """The child that runs `sluice engine`, by the process table."""
        for p in os.listdir("/proc"):
            if not p.isdigit():
                continue
            try:
                with open(f"/proc/{p}/stat") as f:
                    parent = int(f.read().rsplit(")", 1)[1].split()[1])
                with open(f"/proc/{p}/cmdline", "rb") as f:
                    args = f.read().split(b"\0")
            except (OSError, ValueError):
                continue
            if parent == self.proc.pid and b"engine" in args:
                return int(p)
        raise RuntimeError("no engine process")

    def stop(self):
        self.proc.send_signal(signal.SIGTERM)
        try:
            rc = self.proc.wait(20)
        except subprocess.TimeoutExpired:
            self.proc.kill()
            rc = self.proc.wait()
        self.log.close()
        shutil.rmtree(self.state, ignore_errors=True)
        return rc


def run(tests):
    """Runs functions in order; prints a line each and the closing one."""
    passed = failed = 0
    for name, f in tests:
        start = time.time()
        try:
            f()
            passed += 1
            print(f"ok     {name} ({time.time() - start:.1f} s)")
        except Exception as e:  # a test that breaks must not hide the others
            failed += 1
            print(f"FAILED {name}: {type(e).__name__}: {e}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
