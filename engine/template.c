/* engine/template.c - the front of the template engine: open parses, render walks. The parts are listed in jinja_internal.h. */
#include "engine/template.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "engine/jinja_internal.h"

enum { SRC_MAX = 4 << 20, TREE_MAX = 64 << 20, STEPS = 2000000, OUT_MAX = 16 << 20, DEPTH = 64, DEPTH_MAX = 256, EVAL_PER_DEPTH = 16 };

static uint32_t name_hash(const char *s, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 16777619u;
    return h;
}

static bool grow_names(struct eng_template *t)
{
    uint32_t cap = t->cap_names ? t->cap_names * 2 : 64, slots = cap * 2;
    struct jname *names = ARENA_ARRAY(&t->mem, struct jname, cap);
    uint32_t *hash = ARENA_ARRAY(&t->mem, uint32_t, slots);
    if (!names || !hash)
        return false;
    if (t->n_names)
        memcpy(names, t->names, t->n_names * sizeof *names);
    for (uint32_t i = 0; i < t->n_names; i++) {
        uint32_t at = name_hash(names[i].s, names[i].n) & (slots - 1);
        while (hash[at])
            at = (at + 1) & (slots - 1);
        hash[at] = i + 1;
    }
    t->names = names;
    t->hash = hash;
    t->cap_names = cap;
    t->n_hash = slots;
    return true;
}

uint32_t j_name_id(struct eng_template *t, const char *s, size_t n)
{
    if (t->n_names == t->cap_names && !grow_names(t))
        return UINT32_MAX;
    uint32_t at = name_hash(s, n) & (t->n_hash - 1);
    for (; t->hash[at]; at = (at + 1) & (t->n_hash - 1)) {
        struct jname *k = &t->names[t->hash[at] - 1];
        if (k->n == n && !memcmp(k->s, s, n))
            return t->hash[at] - 1;
    }
    t->names[t->n_names] = (struct jname){s, n, j_global(s, n)};
    t->hash[at] = t->n_names + 1;
    return t->n_names++;
}

/* The source with LF alone, and without one newline at its end. */
static char *normal_source(struct arena *a, const char *src, size_t n, size_t *out)
{
    char *s = arena_alloc(a, n + 1);
    size_t len = 0;
    for (size_t i = 0; s && i < n; i++) {
        if (src[i] == '\r' && i + 1 < n && src[i + 1] == '\n')
            continue;
        s[len++] = src[i] == '\r' ? '\n' : src[i];
    }
    *out = len && s[len - 1] == '\n' ? len - 1 : len;
    return s;
}

static int check_utf8(const char *s, size_t n, struct err *e)
{
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k = utf8proc_iterate((const utf8proc_uint8_t *)s + i, (utf8proc_ssize_t)(n - i), &c);
        if (k <= 0)
            return err_set(e, ERR_FORMAT, "template: byte %zu is no UTF-8", i);
        i += (size_t)k;
    }
    return ERR_OK;
}

static int parse(struct eng_template *t, const char *src, size_t n, struct err *e)
{
    struct jparse p = {.t = t, .e = e};
    int rc = check_utf8(src, n, e);
    if (rc)
        return rc;
    size_t len;
    char *s = normal_source(&t->mem, src, n, &len);
    if (!s)
        return err_set(e, ERR_NOMEM, "template of %zu bytes", n);
    t->id_loop = j_name_id(t, "loop", 4);
    t->id_caller = j_name_id(t, "caller", 6);
    t->id_varargs = j_name_id(t, "varargs", 7);
    t->id_kwargs = j_name_id(t, "kwargs", 6);
    if (t->id_kwargs == UINT32_MAX)
        return err_set(e, ERR_NOMEM, "template of %zu bytes", n);
    p.lx = (struct jlex){.src = s, .n = len, .line = 1, .line_starting = true, .mem = &t->mem, .e = e};
    t->body = j_template(&p);
    return t->body ? ERR_OK : e->code;
}

int eng_template_open(eng_template **out, const char *src, size_t n, const struct eng_template_limits *lim, struct err *e)
{
    struct err own;
    *out = NULL;
    if (!e)
        e = &own;
    if (n > SRC_MAX)
        return err_set(e, ERR_LIMIT, "template: expected at most %d bytes, found %zu", SRC_MAX, n);
    eng_template *t = calloc(1, sizeof *t);
    if (!t)
        return err_set(e, ERR_NOMEM, "template");
    arena_init(&t->mem, TREE_MAX);
    t->lim = lim ? *lim : (struct eng_template_limits){0};
    t->lim.steps_max = t->lim.steps_max ? t->lim.steps_max : STEPS;
    t->lim.bytes_max = t->lim.bytes_max ? t->lim.bytes_max : OUT_MAX;
    t->lim.depth_max = t->lim.depth_max > DEPTH_MAX ? DEPTH_MAX : t->lim.depth_max ? t->lim.depth_max : DEPTH;
    int rc = parse(t, src, n, e);
    if (rc) {
        eng_template_close(t);
        return rc;
    }
    *out = t;
    return ERR_OK;
}

void eng_template_close(eng_template *t)
{
    if (!t)
        return;
    arena_free(&t->mem);
    free(t);
}

/* The bytes of trust as runs. */
static bool make_spans(struct jrun *r, const struct jout *o, struct eng_prompt *p)
{
    size_t n = o->n > 0;
    for (size_t i = 1; o->map && i < o->n; i++)
        n += o->map[i] != o->map[i - 1];
    struct eng_text_span *s = j_alloc(r, n, sizeof *s);
    if (!s)
        return false;
    p->spans = s;
    p->n_spans = n;
    if (!n)
        return true;
    *s = (struct eng_text_span){0, o->n, o->map ? o->map[0] : o->trusted};
    for (size_t i = 1; o->map && i < o->n; i++)
        if (o->map[i] != o->map[i - 1]) {
            s->end = i;
            *++s = (struct eng_text_span){i, o->n, o->map[i]};
        }
    return true;
}

int eng_template_render(const eng_template *t, const struct json *context, const char *const *trusted_keys, int64_t now,
                        struct arena *a, struct eng_prompt *out, struct err *e)
{
    struct err own;
    struct jout o = {0};
    if (!e)
        e = &own;
    *out = (struct eng_prompt){0};
    struct jrun r = {.t = t, .a = a, .e = e, .steps = t->lim.steps_max, .bytes_max = t->lim.bytes_max,
                     .depth_max = t->lim.depth_max * EVAL_PER_DEPTH, .line = 1, .ctx = context, .trusted_keys = trusted_keys,
                     .now = now, .out = &o};
    e->code = ERR_OK;
    if (!(r.globals = j_alloc(&r, t->n_names, sizeof *r.globals)) || !(r.seen = j_alloc(&r, t->n_names, 1)) || !j_exec(&r, t->body) ||
        !j_put(&r, &o, "", 1, true)) /* the NUL at the end */
        return e->code;
    o.n--;
    out->text = o.s;
    out->n = o.n;
    return make_spans(&r, &o, out) ? ERR_OK : e->code;
}
