/* sluice gateway: TLS, HTTP and the API in front of an engine, until SIGTERM. A second one ends it at once. SIGHUP reads keys and
 * certificate again; SIGUSR2 starts a new gateway from the program and configuration as they are now, which takes over the listening
 * sockets and ends this one (docs/processes.md). */
#include <malloc.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/notify.h"
#include "cli/service.h"
#include "cli/verbs.h"
#include "gateway/gateway.h"

struct gateway_flags { const char *config, *listen_fds; int64_t ready_fd, replaces; };
enum { FDS_MAX = 512, HEIR_WAIT_S = 60 };
#define AT(f) offsetof(struct gateway_flags, f)
static const struct cli_flag flags[] = {
    {{"config", CONF_STR, AT(config), 0, 0, NULL}, NULL, "FILE", "conf/gateway.conf lists every setting"},
    {{"ready-fd", CONF_INT, AT(ready_fd), 0, 1 << 20, NULL}, NULL, "N", "open descriptor that is told port, key, ca and ready"},
    {{"listen-fds", CONF_STR, AT(listen_fds), 0, 0, NULL}, NULL, "N,N", "listening sockets of the gateway that this one replaces (SIGUSR2 gives them)"},
    {{"replaces", CONF_INT, AT(replaces), 0, 1 << 30, NULL}, NULL, "PID", "... and its process, which is sent SIGTERM once this one is ready"},
};

struct watch { pthread_mutex_t lock; gw_gateway *g; /* NULL once it is being closed */ int64_t fd; bool told; unsigned signals; atomic_bool end;
    const char *config; pid_t heir, replaces; uint64_t opened_ns; };

/* What its starter cannot know: the port it got, the key and certificate it made. */
static void tell_facts(const struct watch *w)
{
    char line[1200];
    bool made;
    const char *key = gw_gateway_key(w->g, &made), *ca = gw_gateway_ca(w->g);
    snprintf(line, sizeof line, "port %u\n", gw_gateway_port(w->g, 0));
    cli_tell(w->fd, line);
    if (key) {
        snprintf(line, sizeof line, "key %s\n", key);
        cli_tell(w->fd, line);
    }
    if (ca) {
        snprintf(line, sizeof line, "ca %s\n", ca);
        cli_tell(w->fd, line);
    }
}

static void reload(struct watch *w)
{
    struct err e;
    cli_notify("RELOADING=1");
    if (!w->g)
        return;
    if (gw_gateway_reload(w->g, &e))
        log_error("reload: %s", e.msg); /* what was there serves on */
    else
        log_info("reloaded");
    cli_notify("READY=1");
}

/* ---- hot restart --------------------------------------------------------------------------------------------- */
static char program[4096]; /* by name, as found at the start: an upgrade puts another file there */

/* After fork in a process with threads: only calls that are safe there. */
static void become_heir(char *const argv[], const int *fds, unsigned n)
{
    sigset_t none;
    for (unsigned i = 0; i < n; i++)
        fcntl(fds[i], F_SETFD, 0);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(program, argv);
    _exit(127);
}

static void hand_over(struct watch *w)
{
    static char list[8 * FDS_MAX], pid[16], config[4096]; /* used by one thread, once at a time */
    int fds[FDS_MAX];
    size_t at = 0;
    if (w->fd >= 0 || w->heir || !w->g) {
        log_warn("SIGUSR2: %s", w->fd >= 0 ? "this gateway belongs to a server process; restart that one" : w->heir ? "a new gateway is already starting" : "too late, ending");
        return;
    }
    unsigned n = gw_gateway_listen_fds(w->g, fds, FDS_MAX);
    for (unsigned i = 0; i < n && at < sizeof list; i++)
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%d", i ? "," : "", fds[i]);
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    snprintf(config, sizeof config, "%s", w->config);
    char name[] = "sluice", verb[] = "gateway", f1[] = "--config", f2[] = "--listen-fds", f3[] = "--replaces";
    char *const argv[] = {name, verb, f1, config, f2, list, f3, pid, NULL};
    pid_t child = fork();
    if (!child)
        become_heir(argv, fds, n);
    if (child < 0) {
        log_error("SIGUSR2: fork: %s", strerror(errno));
        return;
    }
    w->heir = child;
    log_info("a new gateway is starting pid=%ld", (long)child);
}

static void mourn(struct watch *w)
{
    int status;
    if (w->heir && waitpid(w->heir, &status, WNOHANG) == w->heir) {
        log_error("the new gateway ended (status %d) and took nothing over; this one goes on", status);
        w->heir = 0;
    }
}

/* The new one's side: with an engine, or when none comes for long, it begins to accept and sends the old one home. */
static void take_over(struct watch *w)
{
    char text[96];
    if (!w->replaces || !w->g || (!gw_gateway_ready(w->g) && clock_now_ns() - w->opened_ns < HEIR_WAIT_S * NS_PER_S))
        return;
    gw_gateway_accept(w->g);
    snprintf(text, sizeof text, "MAINPID=%ld\nREADY=1", (long)getpid());
    cli_notify(text);
    if (getppid() == w->replaces) /* else it is gone already */
        kill(w->replaces, SIGTERM);
    log_info("took over pid=%ld", (long)w->replaces);
    w->replaces = 0;
}

static int read_fds(const char *list, int *fds, unsigned *n, struct err *e)
{
    *n = 0;
    while (*list) {
        char *end;
        long v = strtol(list, &end, 10);
        if (end == list || (*end && *end != ',') || v < 3 || v > 1 << 20 || *n == FDS_MAX || fcntl((int)v, F_SETFD, FD_CLOEXEC))
            return err_set(e, ERR_INVALID, "--listen-fds: expected open descriptors with commas between, found '%.40s'", list);
        fds[(*n)++] = (int)v;
        list = *end ? end + 1 : end;
    }
    return ERR_OK;
}

static void look(struct watch *w, int sig)
{
    pthread_mutex_lock(&w->lock);
    if (sig == SIGUSR2)
        hand_over(w);
    if (sig == SIGCHLD)
        mourn(w);
    if (sig == SIGUSR2 || sig == SIGCHLD)
        sig = 0;
    take_over(w);
    if (sig == SIGHUP) {
        reload(w);
        sig = 0;
    }
    if (sig && (++w->signals > 1 || !w->g))
        _exit(CLI_FAULT);
    if (sig) {
        log_info("draining signal=%d", sig);
        if (!w->heir) /* the heir is the service now */
            cli_notify("STOPPING=1");
        if (w->heir)
            gw_gateway_retire(w->g);
        else
            gw_gateway_stop(w->g);
    }
    if (!w->told && w->g && gw_gateway_ready(w->g)) {
        w->told = true;
        log_info("ready");
        cli_tell(w->fd, "ready\n");
        cli_notify("STATUS=an engine is connected");
    }
    pthread_mutex_unlock(&w->lock);
}

/* Beside the main thread, which is inside gw_gateway_run: says when an engine is there, and passes on the signals. */
static void *watch(void *ctx)
{
    struct watch *w = ctx;
    while (!atomic_load(&w->end))
        look(w, cli_signal(w->told ? 200 : 20));
    return NULL;
}

static int serve(gw_gateway *g, const struct gateway_flags *f, struct err *e)
{
    struct watch w = {.lock = PTHREAD_MUTEX_INITIALIZER, .g = g, .fd = f->ready_fd, .config = f->config, .replaces = (pid_t)f->replaces, .opened_ns = clock_now_ns()};
    pthread_t t;
    tell_facts(&w);
    if (!w.replaces)
        cli_notify("READY=1\nSTATUS=listening, no engine yet"); /* it answers, if only 503: an engine may take minutes to load */
    if (pthread_create(&t, NULL, watch, &w)) {
        gw_gateway_close(g);
        return err_set(e, ERR_NOMEM, "thread");
    }
    gw_gateway_run(g);
    pthread_mutex_lock(&w.lock);
    w.g = NULL;
    pthread_mutex_unlock(&w.lock);
    gw_gateway_close(g); /* a second signal still counts meanwhile */
    atomic_store(&w.end, true);
    pthread_join(t, NULL);
    return ERR_OK;
}

/* A request's few hundred KB would otherwise go back to the system at its end and come again, page by page, for the next one: each
 * thread may keep this much. */
static void keep_memory(void)
{
#ifdef M_TRIM_THRESHOLD
    mallopt(M_TRIM_THRESHOLD, 2 << 20);
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

static int run(const struct gateway_flags *f, struct arena *a, struct err *e)
{
    struct gw_config c;
    gw_gateway *g;
    keep_memory();
    gw_config_default(&c);
    if (!f->config)
        return err_set(e, ERR_INVALID, "no configuration given (--config conf/gateway.conf)");
    int rc = gw_config_read_file(&c, f->config, a, e);
    if (rc)
        return rc;
    log_setup(&(struct log_config){.level = (enum log_level)c.log_level, .json = c.log_json, .fd = 2, .part = "gateway"});
    int fds[FDS_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    program[n > 0 ? n : 0] = 0;
    if (!f->listen_fds != !f->replaces)
        return err_set(e, ERR_INVALID, "--listen-fds and --replaces: expected both or neither");
    if (f->listen_fds && (rc = read_fds(f->listen_fds, fds, &c.n_inherit, e)))
        return rc;
    c.inherit = fds;
    c.paused = f->replaces != 0;
    cli_signals_usr2();
    if ((rc = cli_signals_open(e)) || (rc = gw_gateway_open(&g, &c, e)))
        return rc;
    cli_signals_ready();
    return serve(g, f, e);
}

int verb_gateway(int argc, char **argv)
{
    struct gateway_flags f = {.ready_fd = -1};
    const struct cli_flags tables[] = {{flags, sizeof flags / sizeof *flags, &f}, {0}};
    struct arena a;
    struct err e = {0};
    const char *word;
    size_t n_words;
    bool help;
    arena_init(&a, 16u << 20);
    int rc = cli_parse(argc, argv, "--config FILE", tables, &word, 0, &n_words, &help, &a, &e);
    rc = rc || (!help && run(&f, &a, &e)) ? cli_fail(argv[0], &e) : CLI_OK;
    arena_free(&a);
    return rc;
}
