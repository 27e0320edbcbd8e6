/* An engine's life: configuration in force, the budget, opening part by part, the end. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/budget.h"
#include "engine/device.h"
#include "engine/engine_internal.h"
#include "engine/warm.h"
#include "offload/ram.h"

enum { DEFAULT_PAGE = 64, DEFAULT_QUEUE = 64, GRAMMAR_KEEP = 1 << 20, GRAMMAR_MASKS = 64 /* as bits; most are short lists */ };

static uint32_t cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
}

int eng_config_defaults(struct eng_config *c, const struct eng_plan *p, struct err *e)
{
    if (p->ctx_switch && c->ctx > p->ctx_switch)
        log_info("rope: requests that may pass %u tokens (prompt and max_tokens) turn by the long list, others by the short one", p->ctx_switch);
    if (c->ctx > p->ctx)
        log_warn("context of %u tokens asked for, the model was trained on %u", c->ctx, p->ctx);
    if (!c->ctx)
        c->ctx = p->ctx_use;
    if (!c->seqs)
        c->seqs = p->serve.seqs;
    if (!c->threads)
        c->threads = cores();
    if (!c->chunk)
        c->chunk = p->serve.chunk > c->seqs ? p->serve.chunk : c->seqs;
    if (c->chunk < c->seqs)
        return err_set(e, ERR_INVALID, "-ub %u: expected at least one token for each of %u sequences (-np)", c->chunk, c->seqs);
    if (!c->page_tokens)
        c->page_tokens = DEFAULT_PAGE;
    if (c->page_tokens % KRN_KV_BLOCK || c->page_tokens > 4096)
        return err_set(e, ERR_INVALID, "--page %u: expected a multiple of %d up to 4096", c->page_tokens, KRN_KV_BLOCK);
    if (c->kv_type == KRN_TYPE_COUNT)
        c->kv_type = c->precision == KRN_PREC_F32 ? KRN_F32 : KRN_F16;
    if (c->kv_type != KRN_F32 && c->kv_type != KRN_F16 && c->kv_type != KRN_BF16)
        return err_set(e, ERR_INVALID, "--kv-type %s: expected f32, f16 or bf16", krn_types[c->kv_type].name);
    if (!c->queue_max)
        c->queue_max = DEFAULT_QUEUE;
    if (!c->queue_tokens_max)
        c->queue_tokens_max = 4ull * c->seqs * c->ctx;
    if (!c->ram_max) {
        struct off_ram r = off_ram_limit("");
        c->ram_max = off_ram_default(r);
        log_info("memory budget ram=%llu ruled_by=\"%s\" limit=%llu", (unsigned long long)c->ram_max, r.rule, (unsigned long long)r.bytes);
    }
    return ERR_OK;
}

/* Everything is charged before the first weight is read: weights, activations, tables, then KV gets what is left. */
static int charge(eng_engine *g, const struct eng_exec_config *x, struct eng_kv_config *kv, struct err *e)
{
    const struct eng_plan *p = g->model->plan;
    uint64_t requests = (uint64_t)(g->c.queue_max + g->c.seqs) * (g->c.ctx * sizeof(int32_t) + 8192);
    g->activation_bytes = eng_exec_bytes(p, x) + (uint64_t)p->vocab * 20 * g->c.threads /* the samplers */ + requests;
    uint32_t snapshots = eng_snapshots_wanted(&g->c, p);
    if (!g->c.prefix_off)
        g->activation_bytes += eng_prefix_bytes(p, kv, snapshots);
    g->grammar_keep = GRAMMAR_KEEP + GRAMMAR_MASKS * 8 * eng_vocab_words(g->vocab);
    g->activation_bytes += eng_vocab_bytes(g->vocab) + ENG_GRAMMARS_BYTES_MAX + (g->c.seqs + ENG_GRAMMARS_IDLE) * (uint64_t)g->grammar_keep;
    uint64_t states = eng_states_bytes(p, g->c.kv_type, g->c.seqs);
    if (states == UINT64_MAX)
        return err_set(e, ERR_UNSUPPORTED, "recurrent state $%s: no possible layout", p->recurrent[0].state);
    if (g->c.device.vulkan) { /* pages lie there; what goes through RAM while loading is gone before the first request */
        uint64_t own = g->activation_bytes + states;
        if (own >= g->c.ram_max)
            return err_set(e, ERR_BUDGET, "--ram %llu: activations and tables need %llu bytes of it before the first weight", (unsigned long long)g->c.ram_max, (unsigned long long)own);
        g->weight_bytes = p->weight_bytes_slot < g->c.ram_max - own ? p->weight_bytes_slot : g->c.ram_max - own;
        return eng_device_plan(&g->device, &g->c, p, x, kv, e);
    }
    struct eng_budget b = {.ram_max = g->c.ram_max, .activation_bytes = g->activation_bytes, .state_bytes = states,
                           .snapshot_bytes = eng_states_snapshot_bytes(p, g->c.kv_type), .snapshots = snapshots};
    int rc = eng_budget(&b, p, kv, e);
    kv->bytes_max = b.kv_bytes;
    g->weight_bytes = b.weight_bytes;
    g->n_snapshots = b.snapshots;
    g->stats.snapshots_max = b.snapshots;
    g->stats.snapshot_bytes = b.snapshots * b.snapshot_bytes;
    return rc;
}

static void log_reading(void *ctx, const char *text)
{
    (void)ctx;
    log_info("weights %s", text);
}

/* Weights into what the budget left for them. */
static int open_weights(eng_engine *g, struct err *e)
{
    const struct eng_plan *p = g->model->plan;
    struct off_sweep sweep = {.uses = p->uses, .n = p->n_uses, .rows_max = g->c.chunk, .choice = p->choice};
    struct off_weights_config w = {.ram_max = g->weight_bytes, .sweep = &sweep, .pool = g->pool, .io = g->c.io, .verify = g->c.verify_reads, .progress = g->c.progress, .ctx = g->c.progress_ctx};
    struct off_weights_stats s;
    int rc = off_weights_open(&g->weights, g->model->catalog, p->records, p->n_records, p->weights, p->n_weights, &w, e);
    if (rc == ERR_BUDGET)
        return err_prefix(e, rc, "--ram %llu, activations %llu, weights get %llu", (unsigned long long)g->c.ram_max, (unsigned long long)g->activation_bytes,
                          (unsigned long long)g->weight_bytes);
    if (rc)
        return rc;
    off_weights_stats(g->weights, &s);
    g->weight_bytes = s.resident_bytes + s.window_bytes + s.staging_bytes + s.expert_bytes;
    g->stats.weight_sweep_bytes = s.sweep_bytes;
    off_weights_tell(g->weights, log_reading, NULL);
    g->stats.expert_slots = s.expert_slots;
    g->stats.experts = s.experts;
    if (s.expert_slots)
        log_info("experts are cached slots=%u of=%u bytes=%llu", s.expert_slots, s.experts, (unsigned long long)s.expert_bytes);
    if (s.sweep_bytes)
        log_info("weights stream resident=%llu window=%llu a_step=%llu", (unsigned long long)s.resident_bytes, (unsigned long long)s.window_bytes,
                 (unsigned long long)s.sweep_bytes);
    return ERR_OK;
}

const char *eng_numerics(const eng_engine *g)
{
    if (g->c.device.vulkan)
        return "1/f32/vulkan/tp1"; /* one arithmetic whatever the precision; exactness across drivers is not promised */
    return g->c.precision == KRN_PREC_F32 ? "1/f32/cpu/exact/tp1" : "1/int8x32/cpu/exact/tp1";
}

/* What an earlier run left is a wish: nothing fails for want of it. */
static void warm(eng_engine *g, bool save)
{
    struct err e = {0};
    uint32_t n = 0;
    if (!g->c.warm_path || !g->weights)
        return;
    if (!g->stats.expert_slots) {
        if (!save)
            log_info("--warm %s: there is no cache of experts, everything chosen stays in memory", g->c.warm_path);
        return;
    }
    int rc = save ? eng_warm_save(g->weights, g->model, g->c.warm_path, &e) : eng_warm_load(g->weights, g->model, g->c.warm_path, &n, &e);
    if (rc && rc != ERR_NOTFOUND)
        log_warn("--warm: %s", e.msg);
    else if (!save)
        log_info("experts are read ahead number=%u", n);
}

static int open_prefix(eng_engine *g, struct err *e)
{
    const struct eng_plan *p = g->model->plan;
    struct eng_page_scope s = {.fingerprint = g->model->fingerprint, .sheet = p->sheet_digest, .numerics = eng_numerics(g), .type = g->c.kv_type,
                               .page_tokens = g->c.page_tokens, .tp_size = 1, .ropes = p->ropes, .n_ropes = p->n_ropes, .image_recipe = "",
                               .adapter = ""};
    if (g->c.prefix_off)
        return ERR_OK;
    if (!eng_prefix_possible(p, g->n_snapshots)) {
        if (p->n_kv)
            log_warn("prefix reuse is off: a snapshot of the recurrent states takes %llu bytes, more than --ram leaves for it",
                     (unsigned long long)eng_states_snapshot_bytes(p, g->c.kv_type));
        return ERR_OK;
    }
    return eng_prefix_open(&g->prefix, p, g->kv, &s, g->c.seqs, g->n_snapshots, e);
}

static int open_grammars(eng_engine *g, struct err *e)
{
    int rc = eng_vocab_open(&g->vocab, g->model->tok, g->model->plan->vocab, e);
    if (rc || (rc = eng_grammars_open(&g->grammars, g->model->tok, g->c.seqs + g->c.queue_max + ENG_GRAMMARS_IDLE, e)))
        return rc;
    g->allowed = calloc(eng_vocab_words(g->vocab) + 1, sizeof *g->allowed);
    return g->allowed ? ERR_OK : err_set(e, ERR_NOMEM, "token mask");
}

/* Model, configuration in force and budget: what opening and predicting begin with. */
static int prepare(eng_engine *g, const struct eng_config *cfg, struct eng_exec_config *x, struct eng_kv_config *kv, struct err *e)
{
    int rc;
    g->c = *cfg;
    if ((rc = eng_model_open(&g->model, cfg->model_path, cfg->disks, cfg->alias, cfg->ctx, e)) || (rc = eng_config_defaults(&g->c, g->model->plan, e)) || (rc = open_grammars(g, e)))
        return rc;
    g->draft_rows = g->c.draft == ENG_DRAFT_OFF ? 0 : POL_DRAFT_MAX;
    *x = (struct eng_exec_config){.isa = g->c.isa, .precision = g->c.precision, .threads = g->c.threads, .rows_max = g->c.chunk, .picks_max = g->c.seqs + g->draft_rows,
                                  .device = g->c.device.vulkan ? &g->device.d : NULL};
    *kv = (struct eng_kv_config){.type = g->c.kv_type, .page_tokens = g->c.page_tokens, .slots = g->c.seqs, .ctx = g->c.ctx, .chunk = g->c.chunk};
    return charge(g, x, kv, e);
}

int eng_predict(const struct eng_config *cfg, struct eng_prediction *out, struct err *e)
{
    struct eng_exec_config x;
    struct eng_kv_config kv;
    struct off_weights_stats s;
    eng_engine *g = calloc(1, sizeof *g);
    int rc = g ? prepare(g, cfg, &x, &kv, e) : err_set(e, ERR_NOMEM, "engine");
    *out = (struct eng_prediction){.config = *cfg};
    if (rc)
        goto out;
    struct eng_plan *p = g->model->plan;
    struct off_sweep sweep = {.uses = p->uses, .n = p->n_uses, .rows_max = g->c.chunk, .choice = p->choice};
    struct off_weights_config w = {.ram_max = g->weight_bytes, .sweep = &sweep, .io = g->c.io, .verify = g->c.verify_reads};
    if ((rc = off_weights_plan(g->model->catalog, p->records, p->n_records, &w, &s, e)))
        goto out;
    uint64_t all = eng_kv_bytes(p, &kv, g->c.seqs);
    *out = (struct eng_prediction){.config = g->c, .weight_slot_bytes = s.slot_bytes, .resident_bytes = s.resident_bytes, .window_bytes = s.window_bytes,
                                   .staging_bytes = s.staging_bytes, .sweep_bytes = s.sweep_bytes, .expert_bytes = s.expert_bytes, .experts_bytes_all = s.experts_bytes_all,
                                   .expert_slots = s.expert_slots, .experts = s.experts, .expert_layers = p->choice.layers, .experts_per_layer = p->choice.per_layer,
                                   .experts_chosen = p->choice.k, .activation_bytes = g->activation_bytes,
                                   .state_bytes = eng_states_bytes(p, g->c.kv_type, g->c.seqs), .snapshot_bytes = g->stats.snapshot_bytes, .snapshots = g->n_snapshots,
                                   .kv_bytes = kv.bytes_max < all ? kv.bytes_max : all,
                                   .kv_token_bytes = eng_plan_kv_bytes_per_token(p, g->c.kv_type), .kv_seq_bytes = eng_kv_bytes(p, &kv, 1),
                                   .ctx_made = p->ctx};
    out->n_formulas = eng_formulas(p, &kv, out->formulas, ENG_FORMULAS_MAX);
out:
    if (g) {
        eng_vocab_close(g->vocab);
        eng_grammars_close(g->grammars);
        eng_model_close(g->model);
        free(g->allowed);
    }
    free(g);
    return rc;
}

static int open_parts(eng_engine *g, const struct eng_config *cfg, struct err *e)
{
    struct eng_exec_config x;
    struct eng_kv_config kv;
    int rc = prepare(g, cfg, &x, &kv, e);
    if (rc)
        return rc;
    struct eng_plan *p = g->model->plan;
    if (g->c.device.vulkan) {
        eng_device_whole_tables(p);
        g->c.device.bytes_max = g->device.bytes_max;
    }
    if ((rc = eng_kv_open(&g->kv, p, &kv, e)) || (rc = eng_states_open(&g->states, p, g->c.kv_type, g->c.seqs, g->n_snapshots, e)) ||
        (rc = open_prefix(g, e)) || (rc = pool_open(&g->pool, g->c.threads, e)))
        return rc;
    x.pool = g->pool;
    eng_device_pools(&g->device, g->kv);
    if ((rc = open_weights(g, e)) || (rc = eng_exec_open(&g->exec, p, g->weights, &x, e)) || (rc = eng_draw_open(g, e)))
        return rc;
    if (g->c.device.vulkan) { /* the device has them all */
        off_weights_close(g->weights);
        g->weights = NULL;
        g->weight_bytes = g->stats.weight_sweep_bytes = 0;
    }
    g->live_max = g->c.seqs + g->c.queue_max;
    if ((rc = eng_step_open(g, e)) || (rc = eng_snapshots_open(g, e)))
        return rc;
    eng_kv_usage(g->kv, &g->stats.kv_pages, &g->stats.kv_pages_used, &g->stats.kv_bytes);
    return eng_self_test(g, e);
}

int eng_open(eng_engine **out, const struct eng_config *cfg, eng_event_fn f, void *ctx, struct err *e)
{
    int rc;
    *out = NULL;
    eng_engine *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ERR_NOMEM, "engine");
    g->event = f;
    g->ctx = ctx;
    pthread_mutex_init(&g->lock, NULL);
    clock_cond_init(&g->wake);
    if ((rc = open_parts(g, cfg, e)))
        goto out;
    if (pthread_create(&g->thread, NULL, eng_sched_main, g) != 0) {
        rc = err_set(e, ERR_NOMEM, "scheduler thread");
        goto out;
    }
    g->thread_on = true;
    warm(g, false);
    *out = g;
    g = NULL;
out:
    eng_close(g);
    return rc;
}

void eng_close(eng_engine *g)
{
    if (!g)
        return;
    if (g->thread_on) {
        pthread_mutex_lock(&g->lock);
        g->stop = true;
        eng_kick(g);
        pthread_mutex_unlock(&g->lock);
        pthread_join(g->thread, NULL);
        warm(g, true);
    }
    eng_step_close(g);
    eng_snapshots_close(g);
    eng_draw_close(g);
    eng_grammars_close(g->grammars);
    eng_vocab_close(g->vocab);
    free(g->allowed);
    eng_exec_close(g->exec);
    off_weights_close(g->weights);
    pool_close(g->pool);
    eng_prefix_close(g->prefix);
    eng_states_close(g->states);
    eng_kv_close(g->kv);
    eng_model_close(g->model);
    pthread_cond_destroy(&g->wake);
    pthread_mutex_destroy(&g->lock);
    free(g);
}
