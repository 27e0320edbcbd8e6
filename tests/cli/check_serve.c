/* The whole server as a user has it: the program itself on a made-up model, over TLS. Restarts, drains, and what a kill leaves. */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "gateway/client.h"
#include "kernels/gpu.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_llama.h"

static char dir[] = "/tmp/sluice-serve-XXXXXX", model[64], state[64], program[4096];
static const char *model_id = "tiny";

static void setup(void)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 32);
    ck_assert(n > 0);
    program[n] = 0; /* BUILD/tests/cli/check_serve */
    for (int i = 0; i < 3; i++)
        *strrchr(program, '/') = 0;
    strcat(program, "/sluice");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(model, sizeof model, "%s/tiny.gguf", dir);
    snprintf(state, sizeof state, "%s/state", dir);
    tiny_llama_write(model, &(struct tiny_llama){.seed = 5});
    unsetenv("SSL_CERT_FILE");
}

static void teardown(void)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

/* ---- processes ------------------------------------------------------------------------------------------------- */

struct proc { pid_t pid; int out; char text[4096]; size_t n; };

static bool name_taken;

/* As if another server, in a container of its own, had this process number too and shared the state directory. */
static void take_name(void)
{
    char path[128];
    mkdir(state, 0700);
    int n = snprintf(path, sizeof path, "%s/run-%d", state, (int)getpid());
    mkdir(path, 0700);
    snprintf(path + n, sizeof path - (size_t)n, "/lock");
    if (flock(open(path, O_RDWR | O_CREAT, 0600), LOCK_EX)) /* lives on in the program, which cannot know */
        _exit(125);
}

static void start(struct proc *p, const char *const *args)
{
    int fds[2];
    const char *argv[32] = {"sluice"};
    *p = (struct proc){0};
    for (int i = 0; args[i]; i++)
        argv[i + 1] = args[i];
    ck_assert(pipe(fds) == 0);
    p->pid = fork();
    if (!p->pid) {
        char log[128];
        if (name_taken)
            take_name();
        snprintf(log, sizeof log, "%s/log", dir);
        dup2(fds[1], 1);
        dup2(open(log, O_WRONLY | O_CREAT | O_APPEND, 0600), 2);
        close(fds[0]);
        close(fds[1]);
        execv(program, (char *const *)argv);
        _exit(126);
    }
    close(fds[1]);
    p->out = fds[0];
}

/* Reads stdout until a word is there. */
static bool says(struct proc *p, const char *word)
{
    while (!strstr(p->text, word)) {
        ssize_t n = read(p->out, p->text + p->n, sizeof p->text - 1 - p->n);
        if (n <= 0)
            return false;
        p->n += (size_t)n;
    }
    return true;
}

/* Its exit code; -signal; kills it after 120 s. */
static int finish(struct proc *p)
{
    int status = 0;
    for (int i = 0; i < 12000; i++) {
        if (waitpid(p->pid, &status, WNOHANG) == p->pid) {
            close(p->out);
            return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
        }
        clock_sleep_ns(10 * NS_PER_MS);
    }
    kill(p->pid, SIGKILL);
    ck_abort_msg("it did not end within 120 s");
}

static int finish_with(struct proc *p, int sig)
{
    kill(p->pid, sig);
    return finish(p);
}

/* The pid of a child whose command line has this verb; 0: none. */
static pid_t child_of(pid_t parent, const char *verb)
{
    char path[64], list[256] = "", line[512];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *f = fopen(path, "r");
    if (f) {
        list[fread(list, 1, sizeof list - 1, f)] = 0;
        fclose(f);
    }
    for (char *s = list, *end; *s; s = end) {
        long pid = strtol(s, &end, 10);
        if (end == s)
            break;
        snprintf(path, sizeof path, "/proc/%ld/cmdline", pid);
        if (!(f = fopen(path, "r")))
            continue;
        size_t n = fread(line, 1, sizeof line - 1, f);
        line[n] = 0;
        fclose(f);
        if (n > strlen(line) + 1 && !strcmp(line + strlen(line) + 1, verb))
            return (pid_t)pid;
    }
    return 0;
}

static void start_as(struct proc *p, struct gw_client *c, const char *const *args)
{
    struct err e = {0};
    static char key[256], ca[256], url[256];
    start(p, args);
    ck_assert_msg(says(p, "export SSL_CERT_FILE='"), "it said: %s", p->text);
    ck_assert(sscanf(strstr(p->text, "BASE_URL='"), "BASE_URL='%255[^']", url) == 1 && sscanf(strstr(p->text, "API_KEY='"), "API_KEY='%255[^']", key) == 1 &&
              sscanf(strstr(p->text, "CA_CERTS='"), "CA_CERTS='%255[^']", ca) == 1);
    *c = (struct gw_client){0};
    OK(gw_client_url(c, url, &e));
    c->key = key;
    c->ca_file = ca;
}

static void start_server(struct proc *p, struct gw_client *c, const char *more1, const char *more2)
{
    const char *const args[] = {"serve", "-m", model, "--port", "0", "--state", state, "-t", "1", "-np", "4", more1, more2, NULL};
    start_as(p, c, args);
}

/* ---- requests -------------------------------------------------------------------------------------------------- */

struct answer { struct buf raw, text; pid_t victim; int sig; unsigned chunks, at; };

static bool on_data(void *ctx, const char *s, size_t n)
{
    struct answer *a = ctx;
    buf_add(&a->raw, s, n);
    for (char *nl; a->raw.len && (nl = strstr(a->raw.data, "\n\n"));) {
        struct arena m;
        struct json *v;
        *nl = 0;
        arena_init(&m, 1 << 20);
        if (!strncmp(a->raw.data, "data: {", 7) && !json_parse(&v, a->raw.data + 6, strlen(a->raw.data + 6), &json_strict, &m, NULL)) {
            const struct json *list = json_get(v, "choices");
            const char *piece = list && list->n ? json_str(json_path(list->items[0], "delta.content")) : NULL;
            buf_str(&a->text, piece ? piece : "");
            if (piece && *piece && ++a->chunks == a->at)
                kill(a->victim, a->sig);
        }
        arena_free(&m);
        buf_consume(&a->raw, (size_t)(nl - a->raw.data) + 2);
    }
    return true;
}

/* A streamed greedy answer of n tokens; sends a signal to a process after `at` pieces, unless that is 0. */
static char *stream(const struct gw_client *c, int n, pid_t victim, int sig, unsigned at)
{
    struct err e = {0};
    struct answer a = {.victim = victim, .sig = sig, .at = at};
    char body[512];
    int status;
    buf_init(&a.raw, 1 << 20);
    buf_init(&a.text, 1 << 20);
    snprintf(body, sizeof body, "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"Tell me\"}],\"temperature\":0,\"stream\":true,\"max_tokens\":%d}", model_id, n);
    OK(gw_client_call(c, "/v1/chat/completions", body, strlen(body), &status, on_data, &a, &e));
    ck_assert_int_eq(status, 200);
    ck_assert_msg(at == 0 || a.chunks >= at, "only %u pieces came", a.chunks);
    buf_free(&a.raw);
    return a.text.data; /* the caller frees it */
}

static int get(const struct gw_client *c, const char *path, struct buf *b)
{
    struct err e = {0};
    int status = 0;
    buf_init(b, 1 << 20);
    OK(gw_client_get(c, path, NULL, 0, &status, b, &e));
    return status;
}

static unsigned runs_left(void)
{
    char cmd[128];
    unsigned n = 99;
    snprintf(cmd, sizeof cmd, "ls '%s' | grep -c ^run-", state);
    FILE *f = popen(cmd, "r");
    ck_assert(f && fscanf(f, "%u", &n) == 1);
    pclose(f);
    return n;
}

/* So long that rendering hits a bound of its own: for the client a prompt too long all the same. */
static void too_long(const struct gw_client *c)
{
    struct err e = {0};
    struct answer a = {0};
    struct buf b;
    int status;
    buf_init(&a.raw, 1 << 20);
    buf_init(&b, 64 << 20);
    buf_printf(&b, "{\"model\":\"%s\",\"messages\":[{\"role\":\"user\",\"content\":\"", model_id);
    for (size_t i = 0; i < 17u << 20; i += 16)
        buf_str(&b, "sixteen bytes,  ");
    buf_str(&b, "\"}]}");
    OK(gw_client_call(c, "/v1/chat/completions", b.data, b.len, &status, on_data, &a, &e));
    ck_assert_msg(status == 400 && strstr(a.raw.data, "\"context_length_exceeded\"") && strstr(a.raw.data, "bytes"), "%d %s", status, a.raw.data);
    buf_free(&a.raw);
    buf_free(&b);
}

START_TEST(core)
{
    struct proc p;
    struct gw_client c;
    struct buf b;
    char key[256], file[128];
    struct stat st;
    setup();
    start_server(&p, &c, NULL, NULL);
    snprintf(key, sizeof key, "%s", c.key);
    ck_assert(stat(state, &st) == 0 && (st.st_mode & 0777) == 0700);
    ck_assert(get(&c, "/ready", &b) == 200);
    buf_free(&b);
    ck_assert(get(&c, "/v1/models", &b) == 200 && strstr(b.data, "\"id\":\"tiny\""));
    buf_free(&b);
    c.key = "wrong";
    ck_assert_int_eq(get(&c, "/v1/models", &b), 401);
    buf_free(&b);
    c.key = key;
    too_long(&c);
    char *t1 = stream(&c, 40, 0, 0, 0), *t2 = stream(&c, 40, 0, 0, 0);
    ck_assert(strlen(t1) >= 40 && !strcmp(t1, t2));
    ck_assert_int_eq(finish_with(&p, SIGTERM), 0);
    ck_assert_uint_eq(runs_left(), 0);

    start_server(&p, &c, "--kernels", "c"); /* the same key and certificate; equal bits from other kernels */
    ck_assert_str_eq(c.key, key);
    char *t3 = stream(&c, 40, 0, 0, 0);
    ck_assert_str_eq(t1, t3);
    snprintf(file, sizeof file, "%s/run-%d/gateway.conf", state, (int)p.pid);
    ck_assert(stat(file, &st) == 0 && (st.st_mode & 0777) == 0600);
    ck_assert_int_eq(finish_with(&p, SIGINT), 0);
    free(t1);
    free(t2);
    free(t3);
    teardown();
}
END_TEST

START_TEST(restart)
{
    struct proc p;
    struct gw_client c;
    setup();
    start_server(&p, &c, NULL, NULL);
    char *whole = stream(&c, 900, 0, 0, 0);
    pid_t engine = child_of(p.pid, "engine"), gateway = child_of(p.pid, "gateway");
    ck_assert(engine && gateway);
    char *broken = stream(&c, 900, engine, SIGKILL, 5); /* as if nothing had happened */
    ck_assert_str_eq(whole, broken);
    pid_t second = child_of(p.pid, "engine");
    ck_assert(second && second != engine && child_of(p.pid, "gateway") == gateway);
    kill(gateway, SIGKILL);
    for (int i = 0; i < 6000; i++) { /* back on the same port, with the same key */
        struct buf b;
        struct err e;
        int status = 0;
        buf_init(&b, 1 << 20);
        bool up = !gw_client_get(&c, "/ready", NULL, 0, &status, &b, &e) && status == 200;
        buf_free(&b);
        if (up)
            break;
        clock_sleep_ns(10 * NS_PER_MS);
    }
    char *again = stream(&c, 900, 0, 0, 0);
    ck_assert_str_eq(whole, again);
    char *last = stream(&c, 900, p.pid, SIGTERM, 5); /* the end is asked for in mid-stream: this answer is still whole */
    ck_assert_str_eq(whole, last);
    ck_assert_int_eq(finish(&p), 0);
    free(last);
    free(whole);
    free(broken);
    free(again);
    teardown();
}
END_TEST

/* Without a model; the engine dies in mid-stream, and its next life goes on where the text was. */
START_TEST(mock)
{
    struct proc p;
    struct gw_client c;
    struct buf text;
    setup();
    buf_init(&text, 1 << 16);
    for (int i = 0; i < 150; i++)
        buf_printf(&text, " w%d", i);
    const char *const args[] = {"serve", "--mock", text.data, "--mock-rate", "500", "--port", "0", "--state", state, NULL};
    start_as(&p, &c, args);
    model_id = "mock";
    char *whole = stream(&c, 1000, 0, 0, 0), *broken = stream(&c, 1000, child_of(p.pid, "engine"), SIGKILL, 20), *cut = stream(&c, 3, 0, 0, 0);
    model_id = "tiny";
    ck_assert_str_eq(whole, text.data);
    ck_assert_str_eq(broken, text.data);
    ck_assert_str_eq(cut, " w0 w1 w2");
    ck_assert_int_eq(finish_with(&p, SIGTERM), 0);
    free(whole);
    free(broken);
    free(cut);
    buf_free(&text);
    teardown();
}
END_TEST

START_TEST(loop)
{
    struct proc p;
    struct gw_client c;
    setup();
    start_server(&p, &c, NULL, NULL);
    pid_t last = 0;
    for (int deaths = 0, i = 0; deaths < 6 && i < 12000; i++) { /* each life ends as soon as it is seen */
        pid_t now = child_of(p.pid, "engine");
        if (now && now != last) {
            kill(now, SIGKILL);
            last = now;
            deaths++;
        }
        clock_sleep_ns(10 * NS_PER_MS);
    }
    ck_assert_int_eq(finish(&p), 3);
    ck_assert_uint_eq(runs_left(), 0);
    teardown();
}
END_TEST

/* kill -9 of serve takes both children along; the next start sweeps what it left. */
START_TEST(killed)
{
    struct proc p;
    struct gw_client c;
    setup();
    start_server(&p, &c, NULL, NULL);
    pid_t children[2] = {child_of(p.pid, "engine"), child_of(p.pid, "gateway")};
    ck_assert_int_eq(finish_with(&p, SIGKILL), -SIGKILL);
    ck_assert_uint_eq(runs_left(), 1);
    for (int i = 0, gone = 0; gone < 2; i++) {
        ck_assert_msg(i < 6000, "a child outlives its parent");
        gone = 0;
        for (int k = 0; k < 2; k++) {
            char name[64], s = 0;
            snprintf(name, sizeof name, "/proc/%d/stat", (int)children[k]);
            FILE *f = fopen(name, "r");
            gone += !f || (fscanf(f, "%*d (%*[^)]) %c", &s) == 1 && s == 'Z');
            if (f)
                fclose(f);
        }
        clock_sleep_ns(10 * NS_PER_MS);
    }
    start_server(&p, &c, NULL, NULL);
    ck_assert_uint_eq(runs_left(), 1);
    ck_assert_int_eq(finish_with(&p, SIGTERM), 0);
    ck_assert_uint_eq(runs_left(), 0);
    teardown();
}
END_TEST

/* A server whose directory's name is in use takes another, and leaves the other's alone. */
START_TEST(taken)
{
    struct proc p;
    struct gw_client c;
    struct stat st;
    char path[128];
    setup();
    name_taken = true;
    start_server(&p, &c, NULL, NULL);
    name_taken = false;
    ck_assert_uint_eq(runs_left(), 2);
    ck_assert_int_eq(finish_with(&p, SIGTERM), 0);
    ck_assert_uint_eq(runs_left(), 1);
    snprintf(path, sizeof path, "%s/run-%d/lock", state, (int)p.pid);
    ck_assert_int_eq(stat(path, &st), 0);
    teardown();
}
END_TEST

static int once(const char *a, const char *b, const char *c, const char *d)
{
    struct proc p;
    const char *args[] = {"serve", "--state", state, "--port", "0", a, b, c, d, NULL};
    start(&p, args);
    return finish(&p);
}

/* The rest of a gateway's configuration through serve, and a key that a shell would read otherwise. */
START_TEST(more_config)
{
    struct proc p;
    struct gw_client c;
    struct buf b;
    struct err e;
    struct stat st;
    char path[128], log[128];
    int status = 0;
    setup();
    snprintf(path, sizeof path, "%s/more.conf", dir);
    snprintf(log, sizeof log, "%s/access.log", dir);
    FILE *f = fopen(path, "w");
    fprintf(f, "access_log %s\ntrusted_proxies 192.0.2.1\npages off", log);
    fclose(f);
    const char *const args[] = {"serve", "--mock", "hi", "--port", "0", "--state", state, "--gateway-config", path, NULL};
    start_as(&p, &c, args);
    buf_init(&b, 1 << 20);
    OK(gw_client_get(&c, "/", NULL, 0, &status, &b, &e));
    ck_assert_int_eq(status, 404); /* pages are off */
    buf_free(&b);
    ck_assert_int_eq(finish_with(&p, SIGTERM), 0);
    ck_assert(stat(log, &st) == 0 && st.st_size > 0);
    const char *const odd[] = {"serve", "--mock", "hi", "--port", "0", "--state", state, "--api-key", "it's a $key", NULL};
    start(&p, odd);
    ck_assert(says(&p, "export OPENAI_API_KEY='it'\\''s a $key'\n"));
    ck_assert_int_eq(finish_with(&p, SIGTERM), 0);
    f = fopen(path, "w");
    fprintf(f, "pages off\nlisten 127.0.0.1:1\n");
    fclose(f);
    ck_assert_int_eq(once("--mock", "hi", "--gateway-config", path), 2);
    f = fopen(path, "w");
    fprintf(f, "no_such_thing on\n");
    fclose(f);
    ck_assert_int_eq(once("--mock", "hi", "--gateway-config", path), 2);
    teardown();
}
END_TEST

START_TEST(errors)
{
    struct proc p;
    setup();
    ck_assert_int_eq(once(NULL, NULL, NULL, NULL), 2); /* no model */
    ck_assert_int_eq(once("-m", "/nonexistent.gguf", NULL, NULL), 3);
    ck_assert_int_eq(once("-m", model, "--device", "vulkan:x"), 2);
    ck_assert_int_eq(once("-m", model, "--kv-type", "q1"), 2);
    ck_assert_int_eq(once("-m", model, "--mock", "x"), 2); /* not an option that exists */
    ck_assert_int_eq(once("-m", model, "--ram", "100K"), 3);
    ck_assert_int_eq(once("-m", model, "--tls-cert", "x"), 2);
    ck_assert_int_eq(once("-m", model, "--host", "0.0.0.0"), 2); /* beyond this machine: keys are needed */
    ck_assert_uint_eq(runs_left(), 0);
    const char *engine[] = {"engine", "-m", model, "--listen", "0.0.0.0:1", NULL}, *gateway[] = {"gateway", NULL};
    start(&p, engine);
    ck_assert_int_eq(finish(&p), 3);
    start(&p, gateway);
    ck_assert_int_eq(finish(&p), 2);
    teardown();
}
END_TEST

/* The two processes run apart, from files; SIGTERM to the engine lets the running answer end. */
START_TEST(apart)
{
    struct proc engine, gateway;
    struct gw_client c = {0};
    struct err e = {0};
    char path[128], text[1024];
    FILE *f;
    setup();
    snprintf(path, sizeof path, "%s/engine.conf", dir);
    f = fopen(path, "w");
    fprintf(f, "model %s\nlisten unix:%s/sock\nthreads 1\nseqs 2\n", model, dir);
    fclose(f);
    const char *e_args[] = {"engine", "--config", path, "--ready-fd", "1", NULL};
    start(&engine, e_args);
    ck_assert(says(&engine, "ready"));
    char path2[128];
    snprintf(path2, sizeof path2, "%s/gateway.conf", dir);
    f = fopen(path2, "w");
    fprintf(f, "listen 127.0.0.1:0\nengine unix:%s/sock\napi_key local-key\ntls off\nengine_lost_deadline 1s\n", dir);
    fclose(f);
    const char *g_args[] = {"gateway", "--config", path2, "--ready-fd", "1", NULL};
    start(&gateway, g_args);
    ck_assert(says(&gateway, "ready"));
    snprintf(text, sizeof text, "http://127.0.0.1:%d", atoi(strstr(gateway.text, "port ") + 5));
    OK(gw_client_url(&c, text, &e));
    c.key = "local-key";
    char *whole = stream(&c, 600, 0, 0, 0);
    char *drained = stream(&c, 600, engine.pid, SIGTERM, 3); /* in the middle of the answer */
    ck_assert_str_eq(whole, drained);
    ck_assert_int_eq(finish(&engine), 0);
    ck_assert_int_eq(finish_with(&gateway, SIGTERM), 0);
    free(whole);
    free(drained);
    teardown();
}
END_TEST

/* On a Vulkan device: by wide margins the text is the one that the weights spell; by close ones a new engine still goes on where the killed one stopped. */
START_TEST(device)
{
    struct gpu_info g[GPU_DEVICES_MAX];
    struct err e = {0};
    struct proc p;
    struct gw_client c;
    unsigned n;
    if (SUITE_SLOW || gpu_list(g, GPU_DEVICES_MAX, &n, &e) || g[0].missing[0]) {
        printf("SKIP device: %s\n", SUITE_SLOW ? "drivers are not built with the checks of this build" : e.msg[0] ? e.msg : g[0].missing);
        return;
    }
    setup();
    setenv("XDG_STATE_HOME", dir, 1);
    tiny_llama_write(model, &(struct tiny_llama){.seed = 5, .chain = true});
    start_server(&p, &c, "--device", "vulkan");
    char *chain = stream(&c, 100, 0, 0, 0);
    ck_assert_str_eq(chain, TINY_CHAIN);
    ck_assert_int_eq(finish_with(&p, SIGTERM), 0);

    tiny_llama_write(model, &(struct tiny_llama){.seed = 5});
    start_server(&p, &c, "--device", "vulkan");
    char *whole = stream(&c, 150, 0, 0, 0);
    pid_t engine = child_of(p.pid, "engine");
    char *broken = stream(&c, 150, engine, SIGKILL, 5), *next = stream(&c, 150, 0, 0, 0);
    ck_assert_uint_ge(strlen(whole), 150);
    ck_assert_str_eq(whole, broken);
    ck_assert_str_eq(whole, next);
    pid_t second = child_of(p.pid, "engine");
    ck_assert(engine && second && second != engine);
    ck_assert_int_eq(finish_with(&p, SIGTERM), 0);
    free(chain);
    free(whole);
    free(broken);
    free(next);
    teardown();
}
END_TEST

SUITE("cli", "serve", core, restart, mock, loop, killed, taken, more_config, errors, apart, device)
