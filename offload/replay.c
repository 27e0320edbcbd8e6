#include "offload/replay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

enum { TRACE_BYTES = 256 << 20, LAYERS_MAX = 1024, K_MAX = 64, EXPERTS_MAX = 4096 };

/* ---- reading --------------------------------------------------------------------------------------------------------- */
static int take_layer(struct off_trace *t, const struct json *layer, uint16_t *to, struct err *e)
{
    for (size_t i = 0; i < t->k; i++) {
        int64_t id;
        if (!json_is(layer, JSON_ARRAY) || layer->n != t->k)
            return err_set(e, ERR_FORMAT, "expected %u experts a layer", t->k);
        if (!json_int(layer->items[i], &id) || id < 0 || id >= EXPERTS_MAX)
            return err_set(e, ERR_FORMAT, "expected numbers of experts below %d", EXPERTS_MAX);
        to[i] = (uint16_t)id;
        t->experts = (uint32_t)id >= t->experts ? (uint32_t)id + 1 : t->experts;
    }
    return ERR_OK;
}

static int take_token(struct off_trace *t, const struct json *layers, uint32_t *cap, struct err *e)
{
    int rc = ERR_OK;
    if (!json_is(layers, JSON_ARRAY) || !layers->n || layers->n > LAYERS_MAX)
        return err_set(e, ERR_FORMAT, "expected \"layers\", 1 to %d lists of experts", LAYERS_MAX);
    if (!t->layers) {
        t->layers = (uint32_t)layers->n;
        t->k = json_is(layers->items[0], JSON_ARRAY) ? (uint32_t)layers->items[0]->n : 0;
        if (!t->k || t->k > K_MAX)
            return err_set(e, ERR_FORMAT, "expected 1 to %d experts a layer", K_MAX);
    }
    if (layers->n != t->layers)
        return err_set(e, ERR_FORMAT, "expected %u layers, found %zu", t->layers, layers->n);
    if (t->tokens == *cap) {
        *cap = *cap ? 2 * *cap : 256;
        uint16_t *more = realloc(t->chosen, (size_t)*cap * t->layers * t->k * sizeof *more);
        if (!more)
            return err_set(e, ERR_NOMEM, "a trace of %u tokens", *cap);
        t->chosen = more;
    }
    uint16_t *to = t->chosen + (size_t)t->tokens * t->layers * t->k;
    for (uint32_t l = 0; l < t->layers && !rc; l++)
        rc = take_layer(t, layers->items[l], to + (size_t)l * t->k, e);
    t->tokens++;
    return rc;
}

static int take_line(struct off_trace *t, const char *text, size_t n, uint32_t *cap, struct err *e)
{
    struct arena a;
    struct json *j;
    arena_init(&a, 1 << 16);
    int rc = json_parse(&j, text, n, &json_strict, &a, e);
    if (!rc)
        rc = take_token(t, json_get(j, "layers"), cap, e);
    arena_free(&a);
    return rc;
}

int off_trace_read(struct off_trace *out, const char *path, struct err *e)
{
    char *line = NULL;
    size_t room = 0, all = 0;
    ssize_t n;
    uint32_t cap = 0, number = 0;
    int rc = ERR_OK;
    *out = (struct off_trace){0};
    FILE *f = fopen(path, "r");
    if (!f)
        return err_set(e, ERR_IO, "%s: cannot be read", path);
    while (!rc && (n = getline(&line, &room, f)) > 0) {
        number++;
        if ((all += (size_t)n) > TRACE_BYTES)
            rc = err_set(e, ERR_LIMIT, "expected at most %d bytes", TRACE_BYTES);
        else if (strspn(line, " \t\r\n") < (size_t)n)
            rc = take_line(out, line, (size_t)n, &cap, e);
    }
    if (!rc && !out->tokens)
        rc = err_set(e, ERR_FORMAT, "no token");
    free(line);
    fclose(f);
    if (rc) {
        off_trace_free(out);
        rc = err_prefix(e, rc, "%s, line %u", path, number);
    }
    return rc;
}

void off_trace_free(struct off_trace *t)
{
    free(t->chosen);
    *t = (struct off_trace){0};
}

/* ---- playing --------------------------------------------------------------------------------------------------------- */
struct play {
    const struct off_trace *t;
    struct pol_experts p;
    uint32_t slots, n;            /* held[0 .. n) are resident */
    uint32_t *held, *where;       /* where[id]: its place in held, UINT32_MAX: absent */
    uint32_t *candidates, *rows;
    uint32_t *next;               /* [tokens][layers][k] the gate that wants the same expert next; UINT32_MAX: none. NULL: not Belady */
    uint32_t *due;                /* [experts of all layers] that, by its last use */
};

static void look_ahead(struct play *x)
{
    const struct off_trace *t = x->t;
    memset(x->due, 0xFF, (size_t)t->layers * t->experts * sizeof *x->due);
    for (uint32_t g = t->tokens * t->layers; g-- > 0;)
        for (uint32_t i = 0; i < t->k; i++) {
            uint32_t id = g % t->layers * t->experts + t->chosen[(size_t)g * t->k + i];
            x->next[(size_t)g * t->k + i] = x->due[id];
            x->due[id] = g;
        }
}

static void drop(struct play *x, uint32_t id)
{
    uint32_t at = x->where[id];
    x->held[at] = x->held[--x->n];
    x->where[x->held[at]] = at;
    x->where[id] = UINT32_MAX;
}

/* One leaves that the gate at hand does not want. */
static void make_room(struct play *x, uint32_t layer)
{
    uint32_t n = 0, out = UINT32_MAX, per = x->t->experts;
    for (uint32_t i = 0; i < x->n; i++) {
        uint32_t id = x->held[i];
        if (id / per == layer && x->rows[id % per])
            continue;
        x->candidates[n++] = id;
        if (x->next && (out == UINT32_MAX || x->due[id] > x->due[out]))
            out = id;
    }
    if (!x->next)
        pol_experts_leave(&x->p, layer, x->candidates, n, 1, &out);
    drop(x, out);
}

static uint64_t gate(struct play *x, uint32_t g)
{
    const struct off_trace *t = x->t;
    const uint16_t *chosen = t->chosen + (size_t)g * t->k;
    uint32_t layer = g % t->layers;
    uint64_t hits = 0;
    memset(x->rows, 0, t->experts * sizeof *x->rows);
    for (uint32_t i = 0; i < t->k; i++)
        x->rows[chosen[i]] = 1;
    pol_experts_use(&x->p, layer, x->rows, 1);
    for (uint32_t i = 0; i < t->k; i++) {
        uint32_t id = layer * t->experts + chosen[i];
        if (x->next)
            x->due[id] = x->next[(size_t)g * t->k + i];
        if (x->where[id] != UINT32_MAX) {
            hits++;
            continue;
        }
        if (x->n == x->slots)
            make_room(x, layer);
        x->where[id] = x->n;
        x->held[x->n++] = id;
    }
    return hits;
}

int off_replay(const struct off_trace *t, unsigned kind, uint32_t slots, uint64_t *hits, struct err *e)
{
    size_t all = (size_t)t->layers * t->experts;
    struct play x = {.t = t, .slots = slots > t->k ? slots : t->k};
    int rc = ERR_OK;
    x.p = (struct pol_experts){.kind = kind == OFF_REPLAY_BELADY ? POL_EXPERTS_LRU : (enum pol_experts_kind)kind, .layers = t->layers, .per_layer = t->experts};
    x.p.of = calloc(all, sizeof *x.p.of);
    x.held = calloc(all + 1, sizeof *x.held);
    x.where = malloc(all * sizeof *x.where);
    x.candidates = calloc(all, sizeof *x.candidates);
    x.rows = calloc(t->experts, sizeof *x.rows);
    x.due = malloc(all * sizeof *x.due);
    x.next = kind == OFF_REPLAY_BELADY ? malloc((size_t)t->tokens * t->layers * t->k * sizeof *x.next) : NULL;
    *hits = 0;
    if (!x.p.of || !x.held || !x.where || !x.candidates || !x.rows || !x.due || (kind == OFF_REPLAY_BELADY && !x.next))
        rc = err_set(e, ERR_NOMEM, "replay of %u tokens", t->tokens);
    if (!rc) {
        memset(x.where, 0xFF, all * sizeof *x.where);
        if (x.next)
            look_ahead(&x);
        for (uint32_t g = 0; g < t->tokens * t->layers; g++)
            *hits += gate(&x, g);
    }
    free(x.next);
    free(x.due);
    free(x.rows);
    free(x.candidates);
    free(x.where);
    free(x.held);
    free(x.p.of);
    return rc;
}
