#include "engine/exec.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/gpu.h"

struct eng_exec {
    struct eng_plan *plan;
    off_weights *weights;
    const struct krn_backend_api *api;
    krn_backend *backend;
    krn_list **lists;    /* [n_segments] NULL: it runs with the segment before it */
    uint32_t *rows;      /* [rows_max] of one tile of a table */
    krn_list *whole;     /* on a device: all segments in one, for steps that nobody looks into */
    bool loaded;         /* the device has all weights: nothing is leased */
    bool joined;         /* everything stays: segments that only records cut run as one */
    bool portions;       /* experts are cached: their segments run alone, with those that are there */
    uint32_t *chosen;    /* [experts] rows of this step that chose each */
    uint32_t *todo;      /* [experts] chosen and not computed yet */
    uint32_t *portion;   /* [experts] */
    uint32_t *leased; uint32_t n_leased; /* experts' records */
};

static struct krn_backend_config backend_config(const struct eng_plan *p, const struct eng_exec_config *c)
{
    return (struct krn_backend_config){
        .isa = c->isa, .precision = c->precision, .threads = c->threads, .pool = c->pool, .rows_max = {c->rows_max, c->picks_max},
        .arena_cols = {p->arena_cols[0], p->arena_cols[1]}, .ropes = p->ropes, .n_ropes = p->n_ropes,
        .linear_cols_max = p->linear_cols_max, .latent_cols = p->latent_cols, .experts = p->experts, .device = c->device};
}

/* The last layer's "x"; NULL: the plan has none. */
static const struct krn_view *last_x(const struct eng_plan *p)
{
    const struct krn_view *v = NULL;
    for (uint32_t i = 0; i < p->n_taps; i++)
        if (!strcmp(p->taps[i].reg, "x") && p->taps[i].layer == p->layers - 1)
            v = &p->taps[i].view;
    return v;
}

static const struct krn_backend_api *api_of(const struct eng_exec_config *c) { return c->device ? &krn_vulkan : &krn_cpu; }

uint64_t eng_exec_bytes(const struct eng_plan *p, const struct eng_exec_config *c)
{
    struct krn_backend_config b = backend_config(p, c);
    return api_of(c)->bytes(&b);
}

static uint32_t run_end(const eng_exec *x, uint32_t i)
{
    const struct eng_segment *s = x->plan->segments;
    for (i++; i < x->plan->n_segments && x->joined && s[i].joins && !(x->portions && (s[i].experts || s[i - 1].experts));)
        i++;
    return i;
}

/* Segments that were cut for the sake of their records run as one when all records stay. */
static int record_runs(eng_exec *x, struct err *e)
{
    const struct eng_plan *p = x->plan;
    struct off_weights_stats s;
    off_weights_stats(x->weights, &s);
    x->joined = s.sweep_bytes == 0;
    x->portions = s.expert_slots > 0 && !x->api->load; /* a device is given all of them once */
    for (uint32_t i = 0; i < p->n_segments; i = run_end(x, i)) {
        const struct eng_segment *a = &p->segments[i], *b = &p->segments[run_end(x, i) - 1];
        int rc = x->api->record(x->backend, p->ops + a->op0, b->op0 + b->n_ops - a->op0, p->weights, &x->lists[i], e);
        if (rc)
            return err_prefix(e, rc, "%s", a->name);
    }
    return x->api->load ? x->api->record(x->backend, p->ops, p->n_ops, p->weights, &x->whole, e) : ERR_OK;
}

/* All weights to the device, a record at a time and in the order of a step, which is how they stream where they do not fit in RAM. */
static int load(eng_exec *x, struct err *e)
{
    const struct eng_plan *p = x->plan;
    for (uint32_t i = 0; i < p->n_segments; i++)
        for (uint32_t k = 0; k < p->segments[i].n_records; k++) {
            const struct off_record *r = &p->records[p->segments[i].records[k]];
            int rc = off_lease(x->weights, p->segments[i].records[k], e);
            if (rc)
                return rc;
            for (uint32_t w = 0; w < r->n_parts && !rc; w++)
                rc = x->api->load(x->backend, p->weights, r->parts[w].weight, e);
            off_release(x->weights, p->segments[i].records[k]);
            if (rc)
                return err_prefix(e, rc, "%s", r->name);
        }
    x->loaded = true;
    x->weights = NULL;
    return ERR_OK;
}

int eng_exec_open(eng_exec **out, struct eng_plan *p, off_weights *w, const struct eng_exec_config *c, struct err *e)
{
    int rc;
    *out = NULL;
    eng_exec *x = calloc(1, sizeof *x);
    if (!x)
        return err_set(e, ERR_NOMEM, "executor");
    x->plan = p;
    x->lists = calloc(p->n_segments, sizeof *x->lists);
    x->chosen = calloc((size_t)p->experts.n + 1, sizeof *x->chosen);
    x->todo = calloc((size_t)p->experts.n + 1, sizeof *x->todo);
    x->portion = calloc((size_t)p->experts.n + 1, sizeof *x->portion);
    x->leased = calloc((size_t)p->experts.n + 1, sizeof *x->leased);
    x->rows = calloc((size_t)c->rows_max + 1, sizeof *x->rows);
    if (!x->lists || !x->chosen || !x->todo || !x->portion || !x->leased || !x->rows) {
        rc = err_set(e, ERR_NOMEM, "executor of %u segments", p->n_segments);
        goto out;
    }
    x->weights = w;
    x->api = api_of(c);
    struct krn_backend_config b = backend_config(p, c);
    struct krn_device device;
    if (c->device) {
        const struct krn_view *v = last_x(p);
        device = *c->device;
        device.watched = v != NULL;
        if (v)
            device.watch = *v;
        b.device = &device; /* copied */
    }
    if ((rc = x->api->open(&x->backend, &b, e)))
        goto out;
    if ((rc = record_runs(x, e)) || (c->device && (rc = load(x, e))))
        goto out;
    *out = x;
    x = NULL;
out:
    eng_exec_close(x);
    return rc;
}

void eng_exec_close(eng_exec *x)
{
    if (!x)
        return;
    for (uint32_t i = 0; x->lists && i < x->plan->n_segments; i++)
        if (x->lists[i])
            x->api->list_free(x->lists[i]);
    if (x->whole)
        x->api->list_free(x->whole);
    if (x->backend)
        x->api->close(x->backend);
    free(x->leased);
    free(x->portion);
    free(x->todo);
    free(x->chosen);
    free(x->rows);
    free(x->lists);
    free(x);
}

/* What the router wrote in an earlier segment, counted by expert. */
static int count_chosen(eng_exec *x, const struct krn_op *op, uint32_t rows, struct err *e)
{
    const struct krn_view *v = &op->in[1];
    uint32_t n = op->u.experts.n;

    memset(x->chosen, 0, x->plan->experts.n * sizeof *x->chosen);
    for (uint32_t r = 0; r < rows; r++) {
        const float *id = x->api->row(x->backend, v, r);
        for (uint32_t i = 0; i < v->dim; i++) {
            if (!(id[i] >= 0 && id[i] < (float)n))
                return err_set(e, ERR_INVALID, "row %u is routed to expert %g of %u", r, (double)id[i], n);
            x->chosen[(uint32_t)id[i]]++;
        }
    }
    return ERR_OK;
}

static uint32_t expert_record(const eng_exec *x, const struct eng_segment *s, uint32_t expert)
{
    return x->plan->choice.records[(size_t)s->choice * x->plan->choice.per_layer + expert];
}

static int lease_expert(eng_exec *x, const struct eng_segment *s, uint32_t expert, struct err *e)
{
    uint32_t record = expert_record(x, s, expert);
    int rc = off_lease(x->weights, record, e);
    if (!rc)
        x->leased[x->n_leased++] = record;
    return rc;
}

static void release_experts(eng_exec *x)
{
    while (x->n_leased)
        off_release(x->weights, x->leased[--x->n_leased]);
}

/* All that were chosen, at once: they stay in memory. */
static int lease_experts(eng_exec *x, const struct eng_segment *s, uint32_t rows, struct err *e)
{
    const struct krn_op *op = &x->plan->ops[s->op0];
    int rc = count_chosen(x, op, rows, e);
    for (uint32_t i = 0; i < op->u.experts.n && !rc; i++)
        if (x->chosen[i])
            rc = lease_expert(x, s, i, e);
    return rc;
}

/* Those of todo [n] that are there become leased and the portion [*k]; if none is, the first, which is waited for, and what else came
 * meanwhile. In order: a run from the first on. The others remain in todo. */
static int next_portion(eng_exec *x, const struct eng_segment *s, uint32_t *n, bool in_order, uint32_t *k, struct err *e)
{
    bool wait = true;
    uint32_t left = 0;
    int rc = ERR_OK;
    for (uint32_t i = 0; i < *n && !in_order && wait; i++)
        wait = !off_at_hand(x->weights, expert_record(x, s, x->todo[i]));
    *k = 0;
    for (uint32_t i = 0; i < *n && !rc; i++) {
        if ((in_order && left) || (!(wait && i == 0) && !off_at_hand(x->weights, expert_record(x, s, x->todo[i]))))
            x->todo[left++] = x->todo[i];
        else if (!(rc = lease_expert(x, s, x->todo[i], e)))
            x->portion[(*k)++] = x->todo[i];
    }
    *n = left;
    return rc;
}

/* A segment that is one call of experts which are cached: with those that are there while the others are read. */
static int run_portions(eng_exec *x, uint32_t segment, krn_list *list, const struct krn_step *step, struct err *e)
{
    const struct eng_segment *s = &x->plan->segments[segment];
    const struct krn_op *op = &x->plan->ops[s->op0];
    struct krn_step part = *step;
    uint32_t n = 0;
    int rc = count_chosen(x, op, step->n_tokens, e);
    if (rc)
        return rc;
    off_gate(x->weights, s->choice, x->chosen, step->n_tokens);
    for (uint32_t i = 0; i < op->u.experts.n; i++)
        if (x->chosen[i])
            x->todo[n++] = i;
    for (bool first = true; n && !rc; first = false) {
        struct krn_portion p = {.experts = x->portion, .first = first};
        part.portion = &p;
        if (!(rc = next_portion(x, s, &n, step->n_tokens * op->in[1].dim > KRN_PORTION_PAIRS, &p.n, e))) {
            p.last = n == 0;
            rc = x->api->submit(x->backend, list, &part, e);
        }
        if (!rc)
            rc = x->api->wait(x->backend, e);
        release_experts(x);
    }
    return rc;
}

/* Tile `tile` of the table that the segment looks rows up in, for the tokens of this step. */
static int lease_rows(eng_exec *x, const struct eng_segment *s, uint32_t tile, const struct krn_step *step, struct err *e)
{
    const struct krn_op *op = &x->plan->ops[s->op0];
    uint32_t n = 0, first = tile * op->u.embed.tile_rows;
    for (uint32_t r = 0; r < step->n_tokens; r++)
        if (step->tokens[r] >= 0 && (uint32_t)step->tokens[r] - first < op->u.embed.tile_rows && (uint32_t)step->tokens[r] >= first)
            x->rows[n++] = (uint32_t)step->tokens[r] - first;
    return off_lease_rows(x->weights, s->records[tile], x->rows, n, e);
}

/* Leases of segments [i, end); *leased counts them, in order, also when one fails. */
static int lease(eng_exec *x, uint32_t i, uint32_t end, const struct krn_step *step, uint32_t *leased, struct err *e)
{
    int rc = ERR_OK;
    for (; i < end && !rc && !x->loaded; i++) {
        const struct eng_segment *s = &x->plan->segments[i];
        for (uint32_t r = 0; r < s->n_records; r++) {
            if ((rc = r < s->n_lookups ? lease_rows(x, s, r, step, e) : off_lease(x->weights, s->records[r], e)))
                return rc;
            ++*leased;
        }
        if (s->experts && !x->portions)
            rc = lease_experts(x, s, step->n_tokens, e);
    }
    return rc;
}

static void release(eng_exec *x, uint32_t i, uint32_t leased)
{
    release_experts(x);
    for (; leased; i++)
        for (uint32_t r = 0; r < x->plan->segments[i].n_records && leased; r++, leased--)
            off_release(x->weights, x->plan->segments[i].records[r]);
}

static int submit(eng_exec *x, uint32_t segment, krn_list *list, const struct krn_step *step, struct err *e)
{
    if (x->portions && x->plan->segments[segment].experts)
        return run_portions(x, segment, list, step, e);
    int rc = x->api->submit(x->backend, list, step, e);
    return rc ? rc : x->api->wait(x->backend, e);
}

static int run(eng_exec *x, uint32_t i, uint32_t end, const struct krn_step *step, void (*tap)(void *, uint32_t), void *ctx, struct err *e)
{
    uint32_t leased = 0;
    int rc = lease(x, i, end, step, &leased, e);
    if (!rc && !(rc = submit(x, i, x->lists[i], step, e)))
        for (uint32_t k = i; tap && k < end; k++)
            tap(ctx, k);
    release(x, i, leased);
    return rc ? err_prefix(e, rc, "%s", x->plan->segments[i].name) : ERR_OK;
}

int eng_exec_run(eng_exec *x, const struct krn_step *step, void (*tap)(void *ctx, uint32_t segment), void *ctx, struct err *e)
{
    int rc = ERR_OK;
    if (x->whole && !tap)
        return (rc = x->api->submit(x->backend, x->whole, step, e)) ? rc : x->api->wait(x->backend, e);
    for (uint32_t i = 0, end; i < x->plan->n_segments && !rc; i = end) {
        end = run_end(x, i);
        rc = run(x, i, end, step, tap, ctx, e);
    }
    return rc;
}

/* ---- numbers that are none ---------------------------------------------------------------------------------- */
static bool finite_rows(eng_exec *x, const struct krn_view *v, uint32_t first, uint32_t n)
{
    for (uint32_t r = first; r < first + n; r++) {
        const float *row = x->api->row(x->backend, v, r);
        for (uint32_t h = 0; h < v->heads; h++, row += v->head_stride) {
            uint32_t bad = 0;
            for (uint32_t i = 0; i < v->dim; i++) {
                uint32_t u;
                memcpy(&u, &row[i], sizeof u);
                bad |= (u & 0x7f800000) == 0x7f800000;
            }
            if (bad)
                return false;
        }
    }
    return true;
}

/* One segment call by call on a step of one sequence; *op: the first call whose result is not finite, n_ops where there is none. */
static int blame_segment(eng_exec *x, uint32_t i, const struct krn_step *step, uint32_t *op, struct err *e)
{
    const struct eng_segment *s = &x->plan->segments[i];
    uint32_t leased = 0;
    int rc = lease(x, i, i + 1, step, &leased, e);
    for (*op = s->op0; *op < s->op0 + s->n_ops && !rc; ++*op) {
        const struct krn_op *o = &x->plan->ops[*op];
        krn_list *l = NULL;
        if ((rc = x->api->record(x->backend, o, 1, x->plan->weights, &l, e)))
            break;
        rc = submit(x, i, l, step, e);
        x->api->list_free(l);
        if (rc || !finite_rows(x, &o->out, 0, o->out.rows == KRN_ROWS_PICKED ? step->n_picks : step->n_tokens))
            break;
    }
    release(x, i, leased);
    return rc;
}

/* What it writes are that sequence's own pages and state. */
int eng_exec_blame(eng_exec *x, const struct krn_step *step, uint32_t k, struct err *e)
{
    const struct krn_seq *q = &step->seqs[k];
    struct krn_seq one = {.count = q->count, .pos0 = q->pos0, .far = q->far};
    struct krn_pages groups[16];
    struct krn_step alone = *step;
    uint32_t op;
    alone.n_tokens = q->count;
    alone.n_picks = 0;
    alone.n_seqs = 1;
    alone.n_snapshots = 0;
    alone.seqs = &one;
    alone.tokens = step->tokens + q->first;
    alone.pos = step->pos + q->first;
    for (unsigned i = 0; i < 3; i++)
        alone.pos_rows[i] = step->pos_rows[i] ? step->pos_rows[i] + q->first : NULL;
    alone.image_id = step->image_id ? step->image_id + q->first : NULL;
    alone.slots = step->slots ? step->slots + k : NULL;
    if (step->n_groups > sizeof groups / sizeof *groups)
        return err_set(e, ERR_FORMAT, "a result is not a finite number");
    for (uint32_t i = 0; i < step->n_groups; i++) {
        groups[i] = step->groups[i];
        groups[i].tables += (size_t)k * groups[i].table_stride;
    }
    alone.groups = groups;
    for (uint32_t i = 0; i < x->plan->n_segments; i++) {
        const struct eng_segment *s = &x->plan->segments[i];
        int rc = blame_segment(x, i, &alone, &op, e);
        if (rc)
            return rc;
        if (op < s->op0 + s->n_ops)
            return err_set(e, ERR_FORMAT, "%s, operator %s: a result is not a finite number (the weights or the input are beyond what f32 can hold)", s->name,
                           krn_op_name(x->plan->ops[op].code));
    }
    return err_set(e, ERR_FORMAT, "a result is not a finite number");
}

bool eng_exec_finite(eng_exec *x, uint32_t first, uint32_t n)
{
    const struct krn_view *v = last_x(x->plan);
    if (!v)
        return true;
    return x->api->finite ? x->api->finite(x->backend, first, n) : finite_rows(x, v, first, n);
}

const float *eng_exec_row(eng_exec *x, const struct krn_view *v, uint32_t row) { return x->api->row(x->backend, v, row); }
size_t eng_exec_times(eng_exec *x, struct krn_time *out, size_t max) { return x->api->times(x->backend, out, max); }
const char *eng_exec_isa(const eng_exec *x) { return x->api->isa(x->backend); }
bool eng_exec_counters(const eng_exec *x, struct krn_counters *out)
{
    if (x->api->counters)
        x->api->counters(x->backend, out);
    return x->api->counters != NULL;
}
