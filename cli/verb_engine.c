/* sluice engine: opens the model (or the mock that stands for one), then serves gateways on a socket until SIGTERM. A second signal ends it at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/notify.h"
#include "cli/engine_conf.h"
#include "cli/state.h"
#include "cli/verbs.h"
#include "engine/link.h"
#include "engine/mock.h"

struct process {
    eng_engine *engine; eng_mock *mock; /* one of them */
    eng_link *link;
    struct buf description, tokenizer;
    struct eng_link_blob blobs[2];
    char address[4200];
};

static int op_submit(void *g, const struct eng_request *r, struct err *e) { return eng_submit(g, r, e); }
static void op_cancel(void *g, uint64_t id) { eng_cancel(g, id); }
static void op_pause(void *g, uint64_t id, bool paused) { eng_pause(g, id, paused); }
static void op_drain(void *g) { eng_drain(g); }
static void op_stats(void *g, struct eng_stats *s) { eng_stats(g, s); }

static int mock_submit(void *m, const struct eng_request *r, struct err *e) { return eng_mock_submit(m, r, e); }
static void mock_cancel(void *m, uint64_t id) { eng_mock_cancel(m, id); }
static void mock_pause(void *m, uint64_t id, bool paused) { eng_mock_pause(m, id, paused); }
static void mock_drain(void *m) { eng_mock_drain(m); }
static void mock_stats(void *m, struct eng_stats *s) { eng_mock_stats(m, s); }

static int address(struct process *p, const char *given, struct err *e)
{
    char dir[4096];
    if (given)
        snprintf(p->address, sizeof p->address, "%s", given);
    else if (cli_state_dir(NULL, dir, sizeof dir))
        return err_set(e, ERR_INVALID, "no home directory for the socket: give --listen");
    else if (cli_state_make(dir, e))
        return e->code;
    else
        snprintf(p->address, sizeof p->address, "unix:%s/%s", dir, CLI_STATE_SOCKET);
    return ERR_OK;
}

/* The socket has its name, but refuses connections, until the model is open: a gateway then sees "not yet", never a silent line. */
static int open_link(struct process *p, const struct cli_engine_conf *c, const struct eng_config *ec, struct err *e)
{
    struct eng_link_config lc;
    int rc = address(p, c->listen, e);
    if (rc)
        return rc;
    eng_link_config_default(&lc);
    lc.listen = p->address;
    lc.connections_max = (uint32_t)c->connections;
    uint32_t bound = ec->seqs + ec->queue_max + 64; /* what the engine takes, and cancelled ones that wait for their end */
    lc.requests_max = bound > lc.requests_max ? bound : lc.requests_max;
    lc.body_max = (1u << 20) + 8 * (size_t)(ec->ctx ? ec->ctx : 1u << 20);
    lc.out_high = c->out_high;
    lc.out_low = c->out_high / 4;
    lc.stall_ms = (uint32_t)c->stall_ms;
    return eng_link_open(&p->link, &lc, e);
}

/* The blobs are what the description names by digest. */
static int start_with(struct process *p, const struct eng_link_ops *ops, size_t n_blobs, struct err *e)
{
    for (size_t i = 0; i < n_blobs; i++)
        hash_sha256(p->blobs[i].p, p->blobs[i].n, p->blobs[i].digest);
    return eng_link_start(p->link, ops, p->description.data, p->description.len, p->blobs, n_blobs, e);
}

static int start_link(struct process *p, struct err *e)
{
    const struct eng_link_ops ops = {p->engine, op_submit, op_cancel, op_pause, op_drain, op_stats};
    const struct eng_model *m = eng_model_of(p->engine);
    size_t n = 0;
    int rc;
    if ((rc = eng_describe(p->engine, &p->description, e)) || (rc = eng_tok_save(m->tok, &p->tokenizer, e)))
        return rc;
    p->blobs[n++] = (struct eng_link_blob){.p = p->tokenizer.data, .n = p->tokenizer.len};
    if (m->template_text)
        p->blobs[n++] = (struct eng_link_blob){.p = m->template_text, .n = m->template_len};
    return start_with(p, &ops, n, e);
}

static int start_mock(struct process *p, struct err *e)
{
    const struct eng_link_ops ops = {p->mock, mock_submit, mock_cancel, mock_pause, mock_drain, mock_stats};
    int rc = eng_mock_describe(p->mock, &p->description, e);
    if (rc)
        return rc;
    p->blobs[0].p = eng_mock_tokenizer(p->mock, &p->blobs[0].n);
    p->blobs[1].p = eng_mock_template(&p->blobs[1].n);
    return start_with(p, &ops, 2, e);
}

/* Until nothing runs any more, the deadline, or a second signal. */
static void wind_down(struct process *p, int sig, uint64_t drain_ms)
{
    uint64_t end = clock_now_ns() + drain_ms * NS_PER_MS;
    log_info("draining signal=%d deadline_ms=%llu", sig, (unsigned long long)drain_ms);
    if (p->mock)
        eng_mock_drain(p->mock);
    else
        eng_drain(p->engine);
    while (!eng_link_idle(p->link) && clock_now_ns() < end)
        if (cli_signal(20))
            break;
    log_info("stopping idle=%s", eng_link_idle(p->link) ? "yes" : "no");
}

/* Nothing on the device can be trusted any more. Ending without a word to the gateway makes it give the streams to the next engine. */
static void device_lost(const struct err *e)
{
    log_error("device lost: %s; this engine ends", e->msg);
    _exit(CLI_FAULT);
}

static int open_engine(struct process *p, const struct cli_engine_conf *c, struct err *e)
{
    struct eng_config ec, in_force;
    int rc = cli_engine_config(&c->engine, &ec, e);
    if (rc)
        return rc;
    ec.queue_max = (uint32_t)c->queue;
    ec.queue_tokens_max = c->queue_tokens;
    ec.progress = cli_load_progress;
    ec.lost = device_lost;
    if ((rc = open_link(p, c, &ec, e)) || (rc = eng_open(&p->engine, &ec, eng_link_event, p->link, e)))
        return rc;
    eng_config_in_force(p->engine, &in_force);
    cli_echo_config(&in_force, eng_isa(p->engine));
    return start_link(p, e);
}

static int open_mock(struct process *p, const struct cli_engine_conf *c, struct err *e)
{
    const struct cli_engine *f = &c->engine;
    struct eng_mock_config mc = {.text = c->mock.text, .id = f->alias, .rate = (uint32_t)c->mock.rate, .together = c->mock.together,
                                 .ctx = f->ctx ? (uint32_t)f->ctx : ENG_MOCK_CTX, .seqs = f->seqs ? (uint32_t)f->seqs : ENG_MOCK_SEQS};
    int rc = open_link(p, c, &(struct eng_config){.seqs = mc.seqs, .ctx = mc.ctx}, e);
    if (rc || (rc = eng_mock_open(&p->mock, &mc, eng_link_event, p->link, e)))
        return rc;
    return start_mock(p, e);
}

static int serve(struct process *p, const struct cli_engine_conf *c, struct err *e)
{
    uint64_t t = clock_now_ns();
    int rc = cli_mock_check(&c->mock, &c->engine, e);
    if (rc || (rc = c->mock.text ? open_mock(p, c, e) : open_engine(p, c, e)))
        return rc;
    cli_signals_ready();
    log_info("ready model=%s listen=%s open_ms=%llu", p->mock ? eng_mock_id(p->mock) : eng_model_of(p->engine)->id, p->address,
             (unsigned long long)((clock_now_ns() - t) / NS_PER_MS));
    cli_tell(c->service.ready_fd, "ready\n");
    cli_notify("READY=1");
    int sig = cli_signal(-1);
    cli_notify("STOPPING=1");
    wind_down(p, sig, c->service.drain_ms);
    return ERR_OK;
}

int verb_engine(int argc, char **argv)
{
    struct cli_engine_conf c = CLI_ENGINE_CONF_DEFAULTS;
    struct cli_flags tables[5];
    struct process p = {0};
    struct arena a;
    struct err e = {0};
    arena_init(&a, 16u << 20);
    buf_init(&p.description, 4u << 20);
    buf_init(&p.tokenizer, 256u << 20);
    cli_engine_tables(&c, tables);
    int rc = cli_service_read(argc, argv, "engine", "[--config FILE] -m MODEL | --mock TEXT [--listen ADDR] ...", tables, &a);
    if (rc == CLI_OK && (cli_signals_open(&e) || serve(&p, &c, &e)))
        rc = cli_fail(argv[0], &e);
    if (p.link)
        eng_link_stop(p.link);
    eng_close(p.engine);
    eng_mock_close(p.mock);
    eng_link_close(p.link);
    buf_free(&p.description);
    buf_free(&p.tokenizer);
    arena_free(&a);
    return rc < 0 ? CLI_OK : rc;
}
