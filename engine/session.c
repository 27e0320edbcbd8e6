#include "engine/session.h"

#include <stdlib.h>

#include "engine/device.h"
#include "engine/exec.h"
#include "engine/kv.h"
#include "engine/states.h"

struct eng_session {
    struct eng_config c;
    struct eng_model *model;
    off_weights *weights;
    eng_exec *exec;
    eng_kv *kv;
    eng_states *states;
    struct eng_device device;
    uint32_t picks_max;
    uint64_t others;              /* of ram_max, what is not for weights */
    int32_t *tokens;
    uint32_t *pos, *picks, *tables, *slots;
    struct krn_seq *seqs;
    struct krn_snapshot *snapshots;
    struct krn_pages *groups;
};

static int open_weights(eng_session *s, uint64_t ram_max, struct err *e)
{
    struct eng_plan *p = s->model->plan;
    pool *workers;
    int rc = pool_open(&workers, s->c.threads, e);
    if (rc)
        return rc;
    struct off_sweep sweep = {.uses = p->uses, .n = p->n_uses, .rows_max = s->c.chunk, .choice = p->choice};
    struct off_weights_config w = {.ram_max = ram_max, .sweep = &sweep, .pool = workers, .io = s->c.io, .verify = s->c.verify_reads, .progress = s->c.progress, .ctx = s->c.progress_ctx};
    rc = off_weights_open(&s->weights, s->model->catalog, p->records, p->n_records, p->weights, p->n_weights, &w, e);
    pool_close(workers);
    return rc;
}

static int open_tables(eng_session *s, struct err *e)
{
    uint32_t groups = eng_kv_groups(s->kv) ? eng_kv_groups(s->kv) : 1;
    s->tokens = calloc(s->c.chunk, sizeof *s->tokens);
    s->pos = calloc(s->c.chunk, sizeof *s->pos);
    s->picks = calloc(s->picks_max, sizeof *s->picks);
    s->seqs = calloc(s->c.seqs, sizeof *s->seqs);
    s->slots = calloc(s->c.seqs, sizeof *s->slots);
    s->snapshots = calloc(s->c.seqs, sizeof *s->snapshots);
    s->groups = calloc(groups, sizeof *s->groups);
    s->tables = calloc((size_t)groups * s->c.seqs * eng_kv_table_stride(s->kv), sizeof *s->tables);
    return s->tokens && s->pos && s->picks && s->seqs && s->slots && s->snapshots && s->groups && s->tables ? ERR_OK : err_set(e, ERR_NOMEM, "session tables");
}

int eng_session_open(eng_session **out, const struct eng_config *cfg, uint32_t picks_max, struct err *e)
{
    int rc;
    *out = NULL;
    eng_session *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "session");
    s->c = *cfg;
    s->picks_max = picks_max;
    if ((rc = eng_model_open(&s->model, cfg->model_path, cfg->disks, cfg->alias, cfg->ctx, e)) || (rc = eng_config_defaults(&s->c, s->model->plan, e)))
        goto out;
    struct eng_plan *p = s->model->plan;
    struct eng_kv_config kv = {.type = s->c.kv_type, .page_tokens = s->c.page_tokens, .slots = s->c.seqs, .ctx = s->c.ctx, .chunk = s->c.chunk,
                               .bytes_max = s->c.ram_max};
    struct eng_exec_config x = {.isa = s->c.isa, .precision = s->c.precision, .threads = s->c.threads, .rows_max = s->c.chunk, .picks_max = picks_max};
    if (s->c.device.vulkan) {
        x.device = &s->device.d;
        if ((rc = eng_device_plan(&s->device, &s->c, p, &x, &kv, e)))
            goto out;
        eng_device_whole_tables(p);
        s->c.device.bytes_max = s->device.bytes_max;
    }
    uint64_t others = eng_exec_bytes(p, &x) + (kv.elsewhere ? 0 : eng_kv_bytes(p, &kv, kv.slots)) + eng_states_bytes(p, s->c.kv_type, s->c.seqs);
    s->others = others;
    uint64_t left = s->c.ram_max > others ? s->c.ram_max - others : 0;
    if ((rc = eng_kv_open(&s->kv, p, &kv, e)))
        goto out;
    eng_device_pools(&s->device, s->kv);
    if ((rc = eng_states_open(&s->states, p, s->c.kv_type, s->c.seqs, 0, e)) ||
        (rc = open_weights(s, left < p->weight_bytes_slot ? left : p->weight_bytes_slot, e)) || (rc = eng_exec_open(&s->exec, p, s->weights, &x, e)) ||
        (rc = open_tables(s, e)))
        goto out;
    if (s->c.device.vulkan) { /* the device has them all */
        off_weights_close(s->weights);
        s->weights = NULL;
    }
    *out = s;
    s = NULL;
out:
    eng_session_close(s);
    return rc;
}

void eng_session_close(eng_session *s)
{
    if (!s)
        return;
    eng_exec_close(s->exec);
    off_weights_close(s->weights);
    eng_states_close(s->states);
    eng_kv_close(s->kv);
    eng_model_close(s->model);
    free(s->tokens);
    free(s->pos);
    free(s->picks);
    free(s->seqs);
    free(s->slots);
    free(s->snapshots);
    free(s->groups);
    free(s->tables);
    free(s);
}

struct eng_model *eng_session_model(eng_session *s) { return s->model; }
const struct eng_config *eng_session_config(const eng_session *s) { return &s->c; }
const char *eng_session_isa(const eng_session *s) { return eng_exec_isa(s->exec); }

int eng_session_step(eng_session *s, const struct eng_part *parts, uint32_t n_parts, void (*tap)(void *ctx, uint32_t segment), void *ctx, struct err *e)
{
    uint32_t groups = eng_kv_groups(s->kv), stride = eng_kv_table_stride(s->kv);
    struct krn_step st = {.n_seqs = n_parts, .n_groups = groups, .tokens = s->tokens, .pos = s->pos, .picks = s->picks, .seqs = s->seqs, .groups = s->groups,
                          .slots = s->slots, .snapshots = s->snapshots};
    st.states = eng_states_step(s->states, &st.n_states);
    if (n_parts > s->c.seqs)
        return err_set(e, ERR_INVALID, "step of %u sequences, opened for %u", n_parts, s->c.seqs);
    for (uint32_t i = 0; i < n_parts; i++) {
        const struct eng_part *q = &parts[i];
        uint32_t want = q->picks == ENG_PICK_ALL ? q->n : q->picks == ENG_PICK_LAST ? 1 : 0;
        if (q->n == 0 || q->n > s->c.chunk - st.n_tokens || want > s->picks_max - st.n_picks || q->pos0 + q->n > s->c.ctx)
            return err_set(e, ERR_INVALID, "step: %u tokens at %u do not fit %u rows, %u picks, %u positions", q->n, q->pos0, s->c.chunk,
                           s->picks_max, s->c.ctx);
        int rc = eng_kv_reserve(s->kv, q->slot, q->pos0 + q->n, e);
        if (rc)
            return rc;
        s->slots[i] = q->slot;
        if (q->snapshot)
            s->snapshots[st.n_snapshots++] = (struct krn_snapshot){i, q->snapshot_pos, q->snapshot};
        s->seqs[i] = (struct krn_seq){.first = st.n_tokens, .count = q->n, .pos0 = q->pos0, .far = q->far};
        for (uint32_t t = 0; t < q->n; t++) {
            if (q->picks == ENG_PICK_ALL || (q->picks == ENG_PICK_LAST && t + 1 == q->n))
                s->picks[st.n_picks++] = st.n_tokens;
            s->tokens[st.n_tokens] = q->tokens[t];
            s->pos[st.n_tokens++] = q->pos0 + t;
        }
        for (uint32_t g = 0; g < groups; g++)
            eng_kv_table(s->kv, g, q->slot, s->tables + ((size_t)g * s->c.seqs + i) * stride);
    }
    for (uint32_t g = 0; g < groups; g++) {
        eng_kv_pages(s->kv, g, &s->groups[g]);
        s->groups[g].tables = s->tables + (size_t)g * s->c.seqs * stride;
    }
    int rc = eng_exec_run(s->exec, &st, tap, ctx, e);
    for (uint32_t i = 0; i < n_parts && !rc; i++)
        eng_kv_slide(s->kv, parts[i].slot, parts[i].pos0 + parts[i].n);
    return rc;
}

const float *eng_session_logits(eng_session *s, uint32_t k) { return eng_exec_row(s->exec, &s->model->plan->logits, k); }
const float *eng_session_row(eng_session *s, const struct krn_view *v, uint32_t row) { return eng_exec_row(s->exec, v, row); }
size_t eng_session_times(eng_session *s, struct krn_time *out, size_t max) { return eng_exec_times(s->exec, out, max); }
void eng_session_drop(eng_session *s, uint32_t slot) { eng_kv_release(s->kv, slot); }
struct eng_states *eng_session_states(eng_session *s) { return s->states; }
bool eng_session_counters(const eng_session *s, struct krn_counters *out) { return eng_exec_counters(s->exec, out); }
void eng_session_weights(eng_session *s, struct off_weights_stats *out) { off_weights_stats(s->weights, out); }
uint64_t eng_session_others(const eng_session *s) { return s->others; }
