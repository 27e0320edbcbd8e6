/* sluice gateway: TLS, HTTP and the API in front of an engine, until SIGTERM. A second one ends it at once. SIGHUP reads keys and
 * certificate again. */
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/notify.h"
#include "cli/service.h"
#include "cli/verbs.h"
#include "gateway/gateway.h"

struct gateway_flags { const char *config; int64_t ready_fd; };
#define AT(f) offsetof(struct gateway_flags, f)
static const struct cli_flag flags[] = {
    {{"config", CONF_STR, AT(config), 0, 0, NULL}, NULL, "FILE", "conf/gateway.conf lists every setting"},
    {{"ready-fd", CONF_INT, AT(ready_fd), 0, 1 << 20, NULL}, NULL, "N", "open descriptor that is told port, key, ca and ready"},
};

struct watch { pthread_mutex_t lock; gw_gateway *g; /* NULL once it is being closed */ int64_t fd; bool told; unsigned signals; atomic_bool end; };

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

static void look(struct watch *w, int sig)
{
    pthread_mutex_lock(&w->lock);
    if (sig == SIGHUP) {
        reload(w);
        sig = 0;
    }
    if (sig && (++w->signals > 1 || !w->g))
        _exit(CLI_FAULT);
    if (sig) {
        log_info("draining signal=%d", sig);
        cli_notify("STOPPING=1");
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

static int serve(gw_gateway *g, int64_t fd, struct err *e)
{
    struct watch w = {.lock = PTHREAD_MUTEX_INITIALIZER, .g = g, .fd = fd};
    pthread_t t;
    tell_facts(&w);
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
    if ((rc = cli_signals_open(e)) || (rc = gw_gateway_open(&g, &c, e)))
        return rc;
    cli_signals_ready();
    return serve(g, f->ready_fd, e);
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
