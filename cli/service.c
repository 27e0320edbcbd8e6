#include "cli/service.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"

static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
#define AT(f) offsetof(struct cli_service, f)
const struct cli_flag cli_service_flags[] = {
    {{"config", CONF_STR, AT(config), 0, 0, NULL}, NULL, "FILE", "read these settings first; flags override them"},
    {{"log-level", CONF_ENUM, AT(log_level), 0, 0, levels}, NULL, "LEVEL", "error, warn, info, debug"},
    {{"log-json", CONF_BOOL, AT(log_json), 0, 0, NULL}, NULL, NULL, "log lines are JSON objects"},
    {{"drain", CONF_MS, AT(drain_ms), 0, 86400000, NULL}, NULL, "TIME", "after SIGTERM running requests may go on this long (default 30s)"},
    {{"ready-fd", CONF_INT, AT(ready_fd), 0, 1 << 20, NULL}, NULL, "N", "open descriptor that is told when requests can be served"},
};
const size_t cli_n_service_flags = sizeof cli_service_flags / sizeof *cli_service_flags;

static bool only_flag(const char *name) /* belongs to one start of the program, not to a file */
{
    return !strcmp(name, "config") || !strcmp(name, "ready-fd");
}

const char *cli_directive(const char *flag, struct arena *a)
{
    char *s = arena_strdup(a, flag, strlen(flag));
    for (char *p = s; p && *p; p++)
        if (*p == '-')
            *p = '_';
    return s;
}

static bool put_string(struct buf *b, const char *s)
{
    buf_char(b, '"');
    for (; *s; s++) {
        if ((unsigned char)*s < 0x20)
            return false;
        if (*s == '"' || *s == '\\')
            buf_char(b, '\\');
        buf_char(b, *s);
    }
    return buf_char(b, '"');
}

int cli_put_string(struct buf *b, const char *name, const char *value, struct err *e)
{
    buf_printf(b, "%s ", name);
    if (!put_string(b, value))
        return err_set(e, ERR_INVALID, "%s: expected text without control characters, found \"%s\"", name, value);
    buf_char(b, '\n');
    return ERR_OK;
}

/* Texts that are not set are left out; everything else is written, whether it is the default or not. */
static int put_value(struct buf *b, const char *name, const struct conf_directive *d, const void *field, struct err *e)
{
    switch (d->type) {
    case CONF_STR: return *(const char *const *)field ? cli_put_string(b, name, *(const char *const *)field, e) : ERR_OK;
    case CONF_LIST:
        for (size_t i = 0; i < ((const struct conf_list *)field)->n; i++) {
            int rc = cli_put_string(b, name, ((const struct conf_list *)field)->items[i], e);
            if (rc)
                return rc;
        }
        return ERR_OK;
    case CONF_INT: buf_printf(b, "%s %lld\n", name, (long long)*(const int64_t *)field); break;
    case CONF_SIZE: buf_printf(b, "%s %llu\n", name, (unsigned long long)*(const uint64_t *)field); break;
    case CONF_MS: buf_printf(b, "%s %llums\n", name, (unsigned long long)*(const uint64_t *)field); break;
    case CONF_BOOL: buf_printf(b, "%s %s\n", name, *(const bool *)field ? "on" : "off"); break;
    case CONF_FLOAT: buf_printf(b, "%s %.17g\n", name, *(const double *)field); break;
    case CONF_ENUM: buf_printf(b, "%s %s\n", name, d->words[*(const int *)field]); break;
    }
    return ERR_OK;
}

int cli_put_config(struct buf *b, const struct cli_flags *tables, struct arena *a, struct err *e)
{
    for (const struct cli_flags *t = tables; t->flags; t++)
        for (size_t i = 0; i < t->n; i++) {
            const struct conf_directive *d = &t->flags[i].d;
            const char *name = cli_directive(d->name, a);
            if (only_flag(d->name))
                continue;
            int rc = name ? put_value(b, name, d, (const char *)t->target + d->offset, e) : err_set(e, ERR_NOMEM, "configuration");
            if (rc)
                return rc;
        }
    return b->failed ? err_set(e, ERR_NOMEM, "configuration") : ERR_OK;
}

int cli_read_config(const char *path, const struct cli_flags *tables, struct arena *a, struct err *e)
{
    struct conf_directive d[128];
    size_t n = 0;
    char *base = tables[0].target;
    for (const struct cli_flags *t = tables; t->flags; t++)
        base = (char *)t->target < base ? (char *)t->target : base;
    for (const struct cli_flags *t = tables; t->flags; t++)
        for (size_t i = 0; i < t->n; i++) {
            if (only_flag(t->flags[i].d.name))
                continue;
            if (n == sizeof d / sizeof *d)
                return err_set(e, ERR_LIMIT, "more than %zu directives", n);
            d[n] = t->flags[i].d;
            if (!(d[n].name = cli_directive(t->flags[i].d.name, a)))
                return err_set(e, ERR_NOMEM, "%s", path);
            d[n++].offset += (size_t)((char *)t->target - base);
        }
    return conf_read_file(path, d, n, base, a, e);
}

static const char *config_of(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (!strncmp(argv[i], "--config=", 9))
            return argv[i] + 9;
        if (!strcmp(argv[i], "--config") && i + 1 < argc)
            return argv[i + 1];
    }
    return NULL;
}

int cli_service_read(int argc, char **argv, const char *part, const char *usage, const struct cli_flags *tables, struct arena *a)
{
    struct err e = {0};
    struct cli_service *s = tables[0].target;
    const char *path = config_of(argc, argv), *word;
    size_t n_words;
    bool help;
    int rc = path ? cli_read_config(path, tables, a, &e) : ERR_OK;
    if (!rc)
        rc = cli_parse(argc, argv, usage, tables, &word, 0, &n_words, &help, a, &e);
    if (rc)
        return cli_fail(argv[0], &e);
    if (help)
        return -1;
    log_setup(&(struct log_config){.level = (enum log_level)s->log_level, .json = s->log_json, .fd = 2, .part = part});
    return CLI_OK;
}

/* ---- signals -------------------------------------------------------------------------------------------------- */

/* No handlers: the signals are blocked in every thread, and one thread waits for them. A handler would run on whichever thread
 * the system picks, which may be asleep where a sanitizer cannot reach it. */
static int pipe_fds[2] = {-1, -1};
static atomic_bool waits, takes_usr2;

static void end_signals(sigset_t *set)
{
    static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR2, SIGCHLD};
    sigemptyset(set);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        sigaddset(set, ends[i]);
}

static void *take_signals(void *ctx)
{
    sigset_t set;
    int sig;
    (void)ctx;
    end_signals(&set);
    for (;;) {
        if (sigwait(&set, &sig))
            continue;
        if (sig == SIGUSR2 && !takes_usr2)
            continue;
        if (!atomic_load(&waits) && sig != SIGCHLD)
            _exit(128 + sig);
        unsigned char c = (unsigned char)sig;
        if (write(pipe_fds[1], &c, 1) < 0) {
            /* the pipe is full of earlier ones */
        }
    }
    return NULL;
}

int cli_signals_open(struct err *e)
{
    sigset_t set;
    pthread_t t;
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK))
        return err_set(e, ERR_IO, "pipe: %s", strerror(errno));
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL);
    end_signals(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&t, NULL, take_signals, NULL))
        return err_set(e, ERR_NOMEM, "signal thread");
    pthread_detach(t);
    return ERR_OK;
}

void cli_signals_usr2(void) { atomic_store(&takes_usr2, true); }
void cli_signals_ready(void) { atomic_store(&waits, true); }
int cli_signal_fd(void) { return pipe_fds[0]; }

int cli_signal(int timeout_ms)
{
    unsigned char c;
    struct pollfd p = {.fd = pipe_fds[0], .events = POLLIN};
    do {
        if (read(pipe_fds[0], &c, 1) == 1)
            return c;
        poll(&p, 1, timeout_ms);
        if (read(pipe_fds[0], &c, 1) == 1)
            return c;
    } while (timeout_ms < 0);
    return 0;
}

void cli_tell(int64_t fd, const char *line)
{
    if (fd >= 0 && write((int)fd, line, strlen(line)) < 0)
        log_warn("ready-fd %lld: %s", (long long)fd, strerror(errno));
}
