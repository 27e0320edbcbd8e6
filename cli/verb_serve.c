/* sluice serve: the one command. Writes a configuration for each of the two processes, starts both, says how to reach them,
 * and watches: a dead child is started anew (cli/child.h), SIGTERM drains the gateway first, then ends the engine.
 *
 * Several servers may share a state directory (key and certificate); each has a directory of its own in it, run-PID, for the
 * socket and the two files. Its lock tells later servers whether it may be swept away. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/engine_conf.h"
#include "cli/notify.h"
#include "cli/state.h"
#include "cli/verbs.h"
#include "gateway/gateway.h"

enum { PATH_BYTES = 4096, GRACE_MS = 5000, RUN_TRIES = 100 };
struct serve_flags {
    struct cli_service service;
    const char *host, *tls_cert, *tls_key, *keys, *api_key, *state, *gateway_config;
    int64_t port;
    bool no_tls;
};
#define AT(f) offsetof(struct serve_flags, f)
static const struct cli_flag flags[] = {
    {{"host", CONF_STR, AT(host), 0, 0, NULL}, NULL, "ADDR", "address to listen on (default 127.0.0.1)"},
    {{"port", CONF_INT, AT(port), 0, 65535, NULL}, NULL, "N", "port (default 8443; 0: any free one)"},
    {{"tls-cert", CONF_STR, AT(tls_cert), 0, 0, NULL}, NULL, "FILE", "certificate chain, PEM (default: one of our own, kept in the state directory)"},
    {{"tls-key", CONF_STR, AT(tls_key), 0, 0, NULL}, NULL, "FILE", "its key"},
    {{"no-tls", CONF_BOOL, AT(no_tls), 0, 0, NULL}, NULL, NULL, "plain HTTP, on this machine only"},
    {{"keys", CONF_STR, AT(keys), 0, 0, NULL}, NULL, "FILE", "keys file: SHA-256 of a key, tenant, limits"},
    {{"api-key", CONF_STR, AT(api_key), 0, 0, NULL}, NULL, "K", "one key (default: generated, kept in the state directory)"},
    {{"gateway-config", CONF_STR, AT(gateway_config), 0, 0, NULL}, NULL, "FILE", "more of conf/gateway.conf: proxies, logs, limits, admin; not what serve has a flag for"},
    {{"state", CONF_STR, AT(state), 0, 0, NULL}, NULL, "DIR", "state directory (default $XDG_STATE_HOME/sluice or ~/.local/state/sluice)"},
};

struct server {
    struct serve_flags f;
    struct cli_engine_conf engine_conf;
    char state[PATH_BYTES], run[PATH_BYTES], engine_path[PATH_BYTES], gateway_path[PATH_BYTES], listen[PATH_BYTES];
    int lock;
    struct cli_child engine, gateway;
    unsigned port;
    char key[2048], ca[2048]; /* as the gateway told */
    struct buf more; /* lines of --gateway-config */
    bool announced, hangup_ends;
    struct arena mem;
};

/* ---- directories and files ------------------------------------------------------------------------------------ */

static void remove_run(const char *dir)
{
    static const char *const names[] = {"engine.sock", "engine.conf", "gateway.conf", "lock"};
    char path[PATH_BYTES + 512];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

/* Directories of servers that were killed: nobody holds their lock. */
static void sweep(const char *state)
{
    DIR *d = opendir(state);
    if (!d)
        return;
    for (struct dirent *ent; (ent = readdir(d));) {
        char dir[PATH_BYTES + 300], lock[PATH_BYTES + 310];
        if (strncmp(ent->d_name, "run-", 4))
            continue;
        snprintf(dir, sizeof dir, "%s/%s", state, ent->d_name);
        snprintf(lock, sizeof lock, "%s/lock", dir);
        int fd = open(lock, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue; /* just being made, or not ours */
        if (!flock(fd, LOCK_EX | LOCK_NB))
            remove_run(dir);
        close(fd);
    }
    closedir(d);
}

static bool join(char *out, const char *dir, const char *name)
{
    return snprintf(out, PATH_BYTES, "%s/%s", dir, name) < PATH_BYTES;
}

/* A directory whose lock is ours. Its name may be taken: containers that share a state directory count their processes from 1 each,
 * and a server that is just sweeping holds a new lock for a moment. s->run is set only once it is ours to remove. */
static int make_run(struct server *s, struct err *e)
{
    char run[PATH_BYTES], path[PATH_BYTES], name[48];
    for (unsigned i = 0; i < RUN_TRIES; i++) {
        snprintf(name, sizeof name, i ? "run-%ld.%u" : "run-%ld", (long)getpid(), i);
        if (!join(run, s->state, name) || !join(s->engine_path, run, "engine.conf") || !join(s->gateway_path, run, "gateway.conf") || !join(path, run, "lock"))
            return err_set(e, ERR_INVALID, "%s: the path is too long", s->state);
        int rc = cli_state_make(run, e);
        if (rc)
            return rc;
        s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (s->lock >= 0 && !flock(s->lock, LOCK_EX | LOCK_NB)) {
            snprintf(s->run, sizeof s->run, "%s", run);
            return ERR_OK;
        }
        int why = errno;
        if (s->lock >= 0)
            close(s->lock);
        s->lock = -1;
        if (why != EWOULDBLOCK && why != ENOENT)
            return err_set(e, ERR_IO, "%s: %s", path, strerror(why));
    }
    return err_set(e, ERR_IO, "%s: run-%ld and %d more names are in use", s->state, (long)getpid(), RUN_TRIES - 1);
}

static int make_dirs(struct server *s, struct err *e)
{
    if (cli_state_dir(s->f.state, s->state, sizeof s->state))
        return err_set(e, ERR_INVALID, "no home directory for the state: give --state DIR");
    int rc = cli_state_make(s->state, e);
    if (rc)
        return rc;
    char *whole = realpath(s->state, NULL);
    if (!whole || strlen(whole) >= sizeof s->state)
        rc = err_set(e, ERR_IO, "%s: %s", s->state, whole ? "the path is too long" : strerror(errno));
    else
        snprintf(s->state, sizeof s->state, "%s", whole);
    free(whole);
    if (rc)
        return rc;
    sweep(s->state);
    return make_run(s, e);
}

static int write_file(const char *path, struct buf *b, struct err *e)
{
    int fd = b->failed ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); /* a key may be in it */
    bool ok = fd >= 0 && write(fd, b->data, b->len) == (ssize_t)b->len;
    int rc = ok ? ERR_OK : err_set(e, b->failed ? ERR_NOMEM : ERR_IO, "%s: %s", path, b->failed ? "no memory" : strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc;
}

static int write_engine_conf(struct server *s, struct err *e)
{
    struct cli_flags tables[5];
    struct buf b;
    char address[PATH_BYTES + 32];
    snprintf(address, sizeof address, "unix:%s/%s", s->run, CLI_STATE_SOCKET);
    s->engine_conf.service = s->f.service;
    s->engine_conf.listen = address;
    cli_engine_tables(&s->engine_conf, tables);
    buf_init(&b, 1u << 20);
    int rc = cli_put_config(&b, tables, &s->mem, e);
    if (!rc)
        rc = write_file(s->engine_path, &b, e);
    buf_free(&b);
    s->engine_conf.listen = NULL;
    return rc;
}

/* Written again once the port is known, so that a gateway that is started anew gets the same one. */
static int write_gateway_conf(struct server *s, struct err *e)
{
    static const char *const levels[] = {"error", "warn", "info", "debug"};
    const struct serve_flags *f = &s->f;
    char address[PATH_BYTES + 32];
    bool six = strchr(f->host, ':') && f->host[0] != '[';
    struct buf b;
    int rc = ERR_OK;
    buf_init(&b, 1u << 20);
    snprintf(address, sizeof address, "unix:%s/%s", s->run, CLI_STATE_SOCKET);
    snprintf(s->listen, sizeof s->listen, six ? "[%s]:%u" : "%s:%u", f->host, s->port);
    const struct { const char *name, *value; } lines[] = {{"listen", s->listen}, {"engine", address}, {"state_dir", s->state},
        {"keys_file", f->keys}, {"api_key", f->api_key}, {"tls_cert", f->tls_cert}, {"tls_key", f->tls_key}};
    for (size_t i = 0; !rc && i < sizeof lines / sizeof *lines; i++)
        if (lines[i].value)
            rc = cli_put_string(&b, lines[i].name, lines[i].value, e);
    buf_printf(&b, "tls %s\nlog_level %s\nlog_json %s\ndrain_deadline %llums\n", f->no_tls ? "off" : "on", levels[f->service.log_level],
               f->service.log_json ? "on" : "off", (unsigned long long)f->service.drain_ms);
    if (!rc) {
        buf_add(&b, s->more.data, s->more.len); /* last: it may lack its line end */
        rc = write_file(s->gateway_path, &b, e);
    }
    buf_free(&b);
    return rc;
}

/* The lines of --gateway-config go behind our own. Read here as the gateway will read them, so that a mistake is told by its own file and line. */
static int read_more(struct server *s, struct err *e)
{
    static const char *const ours[] = {"listen", "engine", "state_dir", "keys_file", "api_key", "tls", "tls_cert", "tls_key", "log_level", "log_json", "drain_deadline"};
    const char *path = s->f.gateway_config;
    struct gw_config c;
    char line[8192];
    gw_config_default(&c);
    int rc = gw_config_read_file(&c, path, &s->mem, e);
    FILE *f = rc ? NULL : fopen(path, "re");
    if (!rc && !f)
        rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    buf_init(&s->more, 1u << 20);
    for (unsigned n = 1; !rc && fgets(line, sizeof line, f); n++) {
        const char *at = line + strspn(line, " \t");
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
            if (!strncmp(at, ours[i], strlen(ours[i])) && strchr(" \t\r\n", at[strlen(ours[i])]))
                rc = err_set(e, ERR_INVALID, "%s:%u: %s: expected as a flag of serve", path, n, ours[i]);
        buf_str(&s->more, line);
    }
    if (f)
        fclose(f);
    return rc || !s->more.failed ? rc : err_set(e, ERR_INVALID, "%s: expected at most 1 MiB", path);
}

/* ---- telling people ------------------------------------------------------------------------------------------- */

/* For a shell to read. */
static void say_export(const char *name, const char *value)
{
    printf("export %s='", name);
    for (; *value; value++)
        *value == '\'' ? fputs("'\\''", stdout) : fputc(*value, stdout);
    puts("'");
}

static void announce(struct server *s)
{
    const struct serve_flags *f = &s->f;
    const char *host = !strcmp(f->host, "0.0.0.0") ? "127.0.0.1" : !strcmp(f->host, "::") || !strcmp(f->host, "[::]") ? "::1" : f->host;
    const char *key = f->api_key ? f->api_key : *s->key ? s->key : NULL;
    bool six = strchr(host, ':') && host[0] != '[';
    char url[512], base[520];
    snprintf(url, sizeof url, six ? "http%s://[%s]:%u" : "http%s://%s:%u", f->no_tls ? "" : "s", host, s->port);
    printf("# listening on %s, model %s\n", url, s->engine_conf.mock.text ? "a mock" : s->engine_conf.engine.model);
    printf("# in a browser: %s/ (chat), %s/dashboard\n", url, url);
    if (f->keys)
        printf("# keys: %s\n", f->keys);
    snprintf(base, sizeof base, "%s/v1", url);
    say_export("OPENAI_BASE_URL", base);
    if (key)
        say_export("OPENAI_API_KEY", key);
    if (!f->no_tls) {
        say_export("NODE_EXTRA_CA_CERTS", s->ca);
        say_export("SSL_CERT_FILE", s->ca);
    }
    if (fflush(stdout)) { /* nobody reads it: no reason to stop serving */
        log_warn("standard output: %s", strerror(errno));
        clearerr(stdout);
    }
    s->announced = true;
    cli_tell(f->service.ready_fd, "ready\n");
    cli_notify("READY=1");
}

/* ---- watching ------------------------------------------------------------------------------------------------- */

static int hear(struct server *s, struct cli_child *c, struct err *e)
{
    char line[2048];
    while (cli_child_line(c, line, sizeof line)) {
        if (!strncmp(line, "port ", 5) && s->port != (unsigned)atoi(line + 5)) {
            s->port = (unsigned)atoi(line + 5);
            int rc = write_gateway_conf(s, e);
            if (rc)
                return rc;
        } else if (!strncmp(line, "key ", 4)) {
            snprintf(s->key, sizeof s->key, "%s", line + 4);
        } else if (!strncmp(line, "ca ", 3)) {
            snprintf(s->ca, sizeof s->ca, "%s", line + 3);
        }
    }
    return ERR_OK;
}

/* A child that never got ready has said why on stderr; another try would end the same way. */
static int mourn(struct cli_child *c, uint64_t now, struct err *e)
{
    int status;
    char how[64];
    if (!cli_child_died(c, now, &status))
        return ERR_OK;
    cli_describe_status(status, how, sizeof how);
    bool usage = WIFEXITED(status) && WEXITSTATUS(status) == CLI_USAGE;
    if (!c->ever_ready)
        return err_set(e, usage ? ERR_INVALID : ERR_IO, "the %s did not start (%s)", c->verb, how);
    if (c->retry_ns == UINT64_MAX)
        return err_set(e, ERR_IO, "the %s died %u times in a row (%s): giving up", c->verb, c->deaths, how);
    log_warn("%s died, starting it anew how=\"%s\" wait_ms=%llu", c->verb, how, (unsigned long long)((c->retry_ns - now) / NS_PER_MS));
    return ERR_OK;
}

static int revive(struct cli_child *c, uint64_t now, struct err *e)
{
    if (c->pid || now < c->retry_ns)
        return ERR_OK;
    int rc = cli_child_start(c, e);
    if (!rc)
        log_info("started %s pid=%ld", c->verb, (long)c->pid);
    return rc;
}

static int wait_ms(const struct server *s, uint64_t now)
{
    uint64_t ms = 60000;
    const struct cli_child *const both[] = {&s->engine, &s->gateway};
    for (int i = 0; i < 2; i++)
        if (!both[i]->pid) {
            uint64_t left = both[i]->retry_ns > now ? (both[i]->retry_ns - now) / NS_PER_MS + 1 : 0;
            ms = left < ms ? left : ms;
        }
    return (int)ms;
}

/* Until a signal asks for the end (0) or something is beyond repair. */
static int watch(struct server *s, struct err *e)
{
    struct cli_child *const both[] = {&s->engine, &s->gateway};
    for (;;) {
        uint64_t now = clock_now_ns();
        int rc, sig;
        for (int i = 0; i < 2; i++)
            if ((rc = revive(both[i], now, e)))
                return rc;
        struct pollfd p[3] = {{.fd = cli_signal_fd(), .events = POLLIN}, {.fd = s->engine.ready_fd, .events = POLLIN},
                              {.fd = s->gateway.ready_fd, .events = POLLIN}};
        poll(p, 3, wait_ms(s, now));
        while ((sig = cli_signal(0)))
            if (sig == SIGHUP && !s->hangup_ends) {
                cli_child_signal(&s->gateway, SIGHUP); /* keys and certificate are the gateway's */
            } else if (sig != SIGCHLD) {
                log_info("ending signal=%d", sig);
                return ERR_OK;
            }
        for (int i = 0; i < 2; i++)
            if ((rc = hear(s, both[i], e)) || (rc = mourn(both[i], clock_now_ns(), e)))
                return rc;
        if (!s->announced && s->engine.ready && s->gateway.ready)
            announce(s);
    }
}

/* The gateway ends its answers while the engine still computes them; a second signal cuts this short. */
static void end(struct server *s, bool drain)
{
    uint64_t deadline = clock_now_ns() + (drain ? s->f.service.drain_ms + GRACE_MS : GRACE_MS) * NS_PER_MS;
    int status, sig;
    cli_child_signal(&s->gateway, SIGTERM);
    while (s->gateway.pid && clock_now_ns() < deadline) {
        if (cli_child_died(&s->gateway, clock_now_ns(), &status))
            break;
        sig = cli_signal(20);
        if (sig && sig != SIGCHLD && (sig != SIGHUP || s->hangup_ends))
            deadline = 0;
    }
    cli_child_end(&s->gateway, 0);
    cli_child_signal(&s->engine, SIGTERM);
    cli_child_end(&s->engine, GRACE_MS);
}

/* SIGHUP of a terminal that closes ends what was started on it; without a terminal, or under nohup, it is a request to reload. */
static bool on_terminal(void)
{
    struct sigaction was;
    int fd = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return false;
    close(fd);
    return !sigaction(SIGHUP, NULL, &was) && was.sa_handler != SIG_IGN;
}

static int serve(struct server *s, struct err *e)
{
    struct eng_config ec;
    int rc;
    s->hangup_ends = on_terminal();
    cli_notify_take();
    if (!s->f.tls_cert != !s->f.tls_key)
        return err_set(e, ERR_INVALID, "--tls-cert and --tls-key: expected both or neither");
    if (s->f.no_tls && s->f.tls_cert)
        return err_set(e, ERR_INVALID, "--no-tls: expected no --tls-cert beside it");
    const struct cli_engine_conf *ce = &s->engine_conf;
    if (s->f.gateway_config && (rc = read_more(s, e)))
        return rc;
    if ((rc = cli_mock_check(&ce->mock, &ce->engine, e)) || (!ce->mock.text && (rc = cli_engine_config(&ce->engine, &ec, e))) || (rc = cli_signals_open(e)))
        return rc;
    cli_signals_ready();
    if ((rc = make_dirs(s, e)) || (rc = write_engine_conf(s, e)) || (rc = write_gateway_conf(s, e)))
        return rc;
    rc = watch(s, e);
    cli_notify("STOPPING=1");
    end(s, !rc);
    return rc;
}

int verb_serve(int argc, char **argv)
{
    static struct server s = {.f = {.service = CLI_SERVICE_DEFAULTS, .host = "127.0.0.1", .port = 8443}, .engine_conf = CLI_ENGINE_CONF_DEFAULTS,
                              .lock = -1, .engine = {.verb = "engine", .ready_fd = -1}, .gateway = {.verb = "gateway", .ready_fd = -1}};
    const struct cli_flags tables[] = {{cli_service_flags, cli_n_service_flags, &s.f.service}, {flags, sizeof flags / sizeof *flags, &s.f},
                                       {cli_engine_flags, cli_n_engine_flags, &s.engine_conf.engine},
                                       {cli_mock_flags, cli_n_mock_flags, &s.engine_conf}, {0}};
    struct err e = {0};
    arena_init(&s.mem, 16u << 20);
    int rc = cli_service_read(argc, argv, "serve", "-m MODEL | --mock TEXT [--port N] ...", tables, &s.mem);
    if (rc == CLI_OK) {
        s.port = (unsigned)s.f.port;
        s.engine.config = s.engine_path;
        s.gateway.config = s.gateway_path;
        if (serve(&s, &e))
            rc = cli_fail(argv[0], &e);
        if (*s.run)
            remove_run(s.run);
    }
    if (s.lock >= 0)
        close(s.lock);
    buf_free(&s.more);
    arena_free(&s.mem);
    return rc < 0 ? CLI_OK : rc;
}
