#include "engine/env.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 20000000u /* expression nodes one compile may evaluate; K3 needs about 200,000 */

static struct eng_param *find(struct eng_param *p, unsigned n, const char *name)
{
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(p[i].name, name))
            return &p[i];
    return NULL;
}

/* ---- parsing once, and marking what is used ---------------------------------------------------------------- */
static void touch_expr(struct eng_env *v, const struct eng_expr *x);
static int parsed(struct eng_env *v, const char *text, bool list, struct eng_expr **out, struct err *e);

static void touch_text(struct eng_env *v, const char *text)
{
    struct eng_expr *x;

    if (text)
        parsed(v, text, false, &x, NULL); /* a text that does not parse says so when it is evaluated */
}

static void touch_keys(struct eng_env *v, const struct json *keys)
{
    if (json_is(keys, JSON_STRING))
        eng_cfg_read(&v->cfg, keys->s);
    for (size_t i = 0; json_is(keys, JSON_ARRAY) && i < keys->n; i++)
        if (json_str(keys->items[i]))
            eng_cfg_read(&v->cfg, keys->items[i]->s);
}

static void touch_param(struct eng_env *v, struct eng_param *p)
{
    const struct json *d = p->def;

    if (p->touched)
        return;
    p->touched = true;
    if (d->type == JSON_STRING) {
        touch_text(v, d->s);
    } else if (d->type == JSON_ARRAY) {
        if (d->n > (v->cfg.gguf ? 1u : 0u))
            touch_keys(v, d->items[v->cfg.gguf ? 1 : 0]);
        if (d->n > 2)
            touch_text(v, json_str(d->items[2]));
    } else if (!v->cfg.gguf) {
        touch_keys(v, json_get(d, "hf"));
    } else {
        const struct json *g = json_get(d, "gguf");
        for (size_t i = 0; json_is(g, JSON_OBJECT) && i < g->n; i++) {
            const struct json *f = g->members[i].value;
            if (f->type == JSON_ARRAY && f->n)
                touch_keys(v, f->items[0]);
            if (f->type == JSON_ARRAY && f->n > 1)
                touch_text(v, json_str(f->items[1]));
        }
    }
}

static void touch_expr(struct eng_env *v, const struct eng_expr *x)
{
    struct eng_param *p;

    if (x->op == ENG_X_NAME) {
        if ((p = find(v->per_layer, v->n_per_layer, x->name)) || (p = find(v->param, v->n_params, x->name)))
            touch_param(v, p);
    } else if (x->op == ENG_X_CALL && (!strcmp(x->name, "cfg") || !strcmp(x->name, "present")) && x->kid[0] && x->kid[0]->lit.type == ENG_V_STR) {
        eng_cfg_read(&v->cfg, x->kid[0]->lit.u.s);
    }
    if (x->op == ENG_X_CALL || x->op == ENG_X_LIST) {
        for (const struct eng_expr *k = x->kid[0]; k; k = k->next)
            touch_expr(v, k);
        return;
    }
    for (int i = 0; i < 3; i++)
        if (x->kid[i])
            touch_expr(v, x->kid[i]);
}

static bool cache_grow(struct eng_env *v)
{
    size_t cap = v->cache_cap ? 2 * v->cache_cap : 512;
    struct expr_slot *n = ARENA_ARRAY(v->mem, struct expr_slot, cap);

    if (!n)
        return false;
    for (size_t i = 0; i < v->cache_cap; i++)
        if (v->cache[i].text) {
            size_t k = ((uintptr_t)v->cache[i].text >> 3) * 0x9E3779B97F4A7C15u >> 20 & (cap - 1);
            while (n[k].text)
                k = (k + 1) & (cap - 1);
            n[k] = v->cache[i];
        }
    v->cache = n;
    v->cache_cap = cap;
    return true;
}

static int parsed(struct eng_env *v, const char *text, bool list, struct eng_expr **out, struct err *e)
{
    int rc;

    if (2 * (v->cache_n + 1) > v->cache_cap && !cache_grow(v))
        return err_set(e, ERR_NOMEM, "expressions");
    size_t k = ((uintptr_t)text >> 3) * 0x9E3779B97F4A7C15u >> 20 & (v->cache_cap - 1);
    for (; v->cache[k].text; k = (k + 1) & (v->cache_cap - 1))
        if (v->cache[k].text == text && v->cache[k].list == list) {
            *out = v->cache[k].x;
            return ERR_OK;
        }
    if ((rc = list ? eng_expr_parse_list(out, text, v->mem, e) : eng_expr_parse(out, text, v->mem, e)))
        return rc;
    v->cache[k] = (struct expr_slot){text, *out, list};
    v->cache_n++;
    touch_expr(v, *out);
    return ERR_OK;
}

/* ---- parameters ------------------------------------------------------------------------------------------- */
static int eval_text(struct eng_env *v, const char *text, struct eng_value *out, struct err *e)
{
    struct eng_expr *x;
    int rc = parsed(v, text, false, &x, e);
    return rc ? rc : eng_expr_eval(x, &v->scope, out, e);
}

/* The first key of a list (or the one key) that is present. */
static int first_key(struct eng_env *v, const struct json *keys, struct eng_value *out, bool *found, struct err *e)
{
    *found = false;
    if (json_is(keys, JSON_STRING))
        return eng_cfg_get(&v->cfg, keys->s, out, found, e);
    for (size_t i = 0; json_is(keys, JSON_ARRAY) && i < keys->n && !*found; i++) {
        int rc = json_str(keys->items[i]) ? eng_cfg_get(&v->cfg, keys->items[i]->s, out, found, e) : err_set(e, ERR_FORMAT, "a config key must be text");
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static void key_names(const struct json *keys, char *out, size_t n)
{
    size_t at = 0;

    snprintf(out, n, "%s", json_is(keys, JSON_STRING) ? keys->s : "");
    for (size_t i = 0; json_is(keys, JSON_ARRAY) && i < keys->n && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, "%s%s", i ? "` or `" : "", json_str(keys->items[i]) ? keys->items[i]->s : "?");
}

static int keyed(struct eng_env *v, const struct eng_param *p, struct eng_value *out, struct err *e)
{
    const struct json *d = p->def, *keys = d->n > 1 ? d->items[v->cfg.gguf ? 1 : 0] : NULL;
    char names[160];
    bool found;
    int rc;

    if (d->n < 2 || d->n > 3 || (d->n == 3 && !json_str(d->items[2])))
        return err_set(e, ERR_FORMAT, "parameter %s: expected [hf key, gguf key, \"default\"]", p->name);
    if ((rc = first_key(v, keys, out, &found, e)) || found)
        return rc;
    if (d->n == 3)
        return eval_text(v, d->items[2]->s, out, e);
    key_names(keys, names, sizeof names);
    return err_set(e, ERR_FORMAT, "%s has no `%s` and sheet %s gives `%s` no default", v->cfg.gguf ? "the metadata" : "config.json", names, v->sheet_name, p->name);
}

/* {"hf": ["key", ...], "gguf": {"field": ["key" | null, "expression"?]}}: an object as the config has it, or put together. */
static int object(struct eng_env *v, const struct eng_param *p, struct eng_value *out, struct err *e)
{
    const struct json *g = json_get(p->def, "gguf");
    struct eng_member *m;
    size_t n = 0;
    bool found;

    *out = (struct eng_value){.type = ENG_V_NULL};
    if (!v->cfg.gguf)
        return first_key(v, json_get(p->def, "hf"), out, &found, e);
    if (!json_is(g, JSON_OBJECT) || !g->n)
        return ERR_OK;
    if (!(m = ARENA_ARRAY(v->mem, struct eng_member, g->n)))
        return err_set(e, ERR_NOMEM, "parameter %s", p->name);
    for (size_t i = 0; i < g->n; i++) {
        const struct json *f = g->members[i].value;
        if (f->type != JSON_ARRAY || !f->n || f->n > 2)
            return err_set(e, ERR_FORMAT, "parameter %s: field %s must be [key, \"expression\"]", p->name, g->members[i].key);
        m[n].key = g->members[i].key;
        int rc = first_key(v, f->items[0], &m[n].value, &found, e);
        if (!rc && !found && f->n == 2 && json_str(f->items[1])) {
            rc = eval_text(v, f->items[1]->s, &m[n].value, e);
            found = m[n].value.type != ENG_V_NULL;
        }
        if (rc)
            return rc;
        n += found;
    }
    *out = (struct eng_value){.type = ENG_V_OBJECT, .u.members = m, .n = n};
    return ERR_OK;
}

static int cycle(struct eng_env *v, const char *name, struct err *e)
{
    char text[300];
    size_t at = 0;
    unsigned i = 0;

    while (i < v->n_stack && strcmp(v->stack[i], name))
        i++;
    for (; i < v->n_stack && at < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s -> ", v->stack[i]);
    return err_set(e, ERR_FORMAT, "parameter cycle: %s%s", text, name);
}

static int value_of(struct eng_env *v, struct eng_param *p, struct eng_value *out, struct err *e)
{
    int rc;

    if (p->state == ENG_P_BUSY)
        return cycle(v, p->name, e);
    if (p->state == ENG_P_NEW) {
        if (v->n_stack == sizeof v->stack / sizeof *v->stack)
            return err_set(e, ERR_LIMIT, "parameters depend on each other more than %u deep at %s", v->n_stack, p->name);
        touch_param(v, p);
        p->state = ENG_P_BUSY;
        v->stack[v->n_stack++] = p->name;
        if (p->def->type == JSON_STRING)
            rc = eval_text(v, p->def->s, &p->value, e);
        else
            rc = p->def->type == JSON_ARRAY ? keyed(v, p, &p->value, e) : object(v, p, &p->value, e);
        v->n_stack--;
        p->state = rc ? ENG_P_NEW : ENG_P_DONE;
        if (rc)
            return rc;
    }
    *out = p->value;
    return ERR_OK;
}

static int name_of(void *ctx, const char *name, struct eng_value *out, struct err *e)
{
    struct eng_env *v = ctx;
    struct eng_param *p;
    int rc;

    if (!strcmp(name, "hf") || !strcmp(name, "gguf")) {
        *out = eng_v_bool(v->cfg.gguf == (name[0] == 'g'));
        return ERR_OK;
    }
    if (!strcmp(name, "ctx_use")) {
        *out = eng_v_int(v->ctx_use);
        return v->ctx_use ? ERR_OK : err_set(e, ERR_FORMAT, "`ctx_use` follows from the serving context and cannot decide it");
    }
    if (!v->in_param && v->layer >= 0) {
        if (!strcmp(name, "L")) {
            *out = eng_v_int(v->layer);
            return ERR_OK;
        }
        if ((p = find(v->per_layer, v->n_per_layer, name)))
            return value_of(v, p, out, e);
    }
    if (!(p = find(v->param, v->n_params, name)))
        return err_set(e, ERR_NOTFOUND, "`%s` is not a parameter%s", name,
                       find(v->per_layer, v->n_per_layer, name) || !strcmp(name, "L") ? " (it has a value only inside a layer)" : "");
    v->in_param++;
    rc = value_of(v, p, out, e);
    v->in_param--;
    return rc;
}

static int tensor_call(struct eng_env *v, const char *fn, const struct eng_value *args, unsigned n, struct eng_value *out, struct err *e)
{
    char name[ENG_NAME_MAX];
    struct eng_form f;
    uint64_t dims[OFF_DIMS_MAX];
    int64_t axis = 0;
    int32_t layer = v->layer;

    if (v->in_param)
        v->layer = -1; /* a parameter is one value for all layers */
    size_t len = eng_env_expand(v, args[0].u.s, name);
    v->layer = layer;
    bool found = len && eng_form_find(v->cfg.catalog, name, len, 0, &f);

    if (!strcmp(fn, "has")) {
        *out = eng_v_bool(found);
        return ERR_OK;
    }
    if (n != 2 || !eng_v_integer(&args[1], &axis))
        return err_set(e, ERR_INVALID, "dim takes a tensor name and an axis");
    if (!found)
        return err_set(e, ERR_FORMAT, "missing tensor %s, whose size the sheet asks for", args[0].u.s);
    uint8_t n_dims = eng_form_dims(&f, dims);
    if (axis < 0 || axis >= n_dims || dims[axis] > INT64_MAX)
        return err_set(e, ERR_FORMAT, "tensor %s has no axis %" PRId64, args[0].u.s, axis);
    *out = eng_v_int((int64_t)dims[axis]);
    return ERR_OK;
}

static int call_of(void *ctx, const char *fn, const struct eng_value *args, unsigned n, struct eng_value *out, struct err *e)
{
    struct eng_env *v = ctx;
    bool found;

    if (!n || args[0].type != ENG_V_STR || (n > 1 && strcmp(fn, "dim")))
        return err_set(e, ERR_INVALID, "%s takes one quoted name", fn);
    if (!strcmp(fn, "cfg"))
        return eng_cfg_get(&v->cfg, args[0].u.s, out, &found, e);
    if (!strcmp(fn, "present")) {
        *out = eng_v_bool(eng_cfg_present(&v->cfg, args[0].u.s));
        return ERR_OK;
    }
    return tensor_call(v, fn, args, n, out, e);
}

/* ---- outside ---------------------------------------------------------------------------------------------- */
static int fill(struct eng_param *p, unsigned *n, unsigned max, const struct json *obj, const char *what, struct err *e)
{
    for (size_t i = 0; json_is(obj, JSON_OBJECT) && i < obj->n; i++) {
        const struct json *d = obj->members[i].value;
        if (*n == max)
            return err_set(e, ERR_LIMIT, "more than %u entries in %s", max, what);
        if (d->type != JSON_STRING && (d->type != JSON_ARRAY || max == ENG_PER_LAYER_MAX) && (d->type != JSON_OBJECT || max == ENG_PER_LAYER_MAX))
            return err_set(e, ERR_FORMAT, "%s.%s: expected an expression in quotes", what, obj->members[i].key);
        p[(*n)++] = (struct eng_param){.name = obj->members[i].key, .def = d};
    }
    return ERR_OK;
}

static int find_prefix(struct eng_env *v, struct err *e)
{
    const char *kind = v->cfg.gguf ? "gguf" : "hf";
    const struct json *list = json_get(json_get(v->sheet, "prefix"), kind);
    const char *anchor = json_str(json_get(json_get(v->sheet, "anchor"), kind));
    char name[ENG_NAME_MAX];
    struct eng_form f;

    v->prefix = "";
    v->block_prefix = json_str(json_get(json_get(v->sheet, "block_prefix"), kind));
    for (size_t i = 0; anchor && json_is(list, JSON_ARRAY) && i < list->n; i++) {
        const char *p = json_str(list->items[i]);
        int len = p ? snprintf(name, sizeof name, "%s%s", p, anchor) : -1;
        if (len > 0 && (size_t)len < sizeof name && eng_form_find(v->cfg.catalog, name, (size_t)len, 0, &f)) {
            v->prefix = p;
            return ERR_OK;
        }
    }
    return !anchor ? ERR_OK : err_set(e, ERR_FORMAT, "missing tensor %s under every prefix that sheet %s knows", anchor, v->sheet_name);
}

int eng_env_open(struct eng_env *v, const char *name, const struct json *sheet, const off_catalog *cat, struct arena *a, struct err *e)
{
    int rc;

    memset(v, 0, sizeof *v);
    v->sheet_name = name;
    v->sheet = sheet;
    v->mem = a;
    v->layer = -1;
    v->scope = (struct eng_scope){v, name_of, call_of, a, STEPS_MAX, 0};
    if ((rc = eng_cfg_open(&v->cfg, cat, json_get(sheet, "config_root"), a, e)) ||
        (rc = fill(v->param, &v->n_params, ENG_PARAMS_MAX, json_get(sheet, "params"), "params", e)) ||
        (rc = fill(v->per_layer, &v->n_per_layer, ENG_PER_LAYER_MAX, json_get(sheet, "per_layer"), "per_layer", e)))
        return rc;
    return find_prefix(v, e);
}

void eng_env_layer(struct eng_env *v, int32_t layer)
{
    if (layer == v->layer)
        return;
    v->layer = layer;
    for (unsigned i = 0; i < v->n_per_layer; i++)
        v->per_layer[i].state = ENG_P_NEW;
}

bool eng_env_has(const struct eng_env *v, const char *name)
{
    return !strcmp(name, "L") || !strcmp(name, "hf") || !strcmp(name, "gguf") || !strcmp(name, "ctx_use") ||
           find((struct eng_param *)v->per_layer, v->n_per_layer, name) || find((struct eng_param *)v->param, v->n_params, name);
}

int eng_env_eval(struct eng_env *v, const struct eng_expr *x, struct eng_value *out, struct err *e)
{
    touch_expr(v, x);
    return eng_expr_eval(x, &v->scope, out, e);
}

int eng_env_text(struct eng_env *v, const char *text, struct eng_value *out, struct err *e) { return eval_text(v, text, out, e); }

int eng_env_list(struct eng_env *v, const char *text, const struct eng_expr **list, struct err *e)
{
    struct eng_expr *x;
    int rc = parsed(v, text, true, &x, e);

    *list = rc ? NULL : x;
    return rc;
}

int eng_env_u32(struct eng_env *v, const char *param, uint32_t *out, struct err *e)
{
    struct eng_value x;
    char text[80];
    int64_t i;
    int rc = name_of(v, param, &x, e);

    *out = 0;
    if (rc)
        return rc;
    eng_v_show(&x, text, sizeof text);
    if (!eng_v_integer(&x, &i) || i < 1 || i > INT32_MAX)
        return err_set(e, ERR_FORMAT, "parameter %s: expected a count from 1 to %d, found %s", param, INT32_MAX, text);
    *out = (uint32_t)i;
    return ERR_OK;
}

static bool put(char out[ENG_NAME_MAX], size_t *at, const char *s, size_t n)
{
    if (*at + n >= ENG_NAME_MAX)
        return false;
    memcpy(out + *at, s, n);
    *at += n;
    out[*at] = 0;
    return true;
}

size_t eng_env_expand(const struct eng_env *v, const char *pattern, char out[ENG_NAME_MAX])
{
    char number[16], block[ENG_NAME_MAX];
    size_t at = 0;

    out[0] = 0;
    for (const char *p = pattern; *p; p++) {
        bool ok;
        if (strncmp(p, "{P}", 3) && strncmp(p, "{L}", 3) && strncmp(p, "{B}", 3)) {
            if (!put(out, &at, p, 1))
                return 0;
            continue;
        }
        if (p[1] != 'P' && v->layer < 0)
            return 0;
        if (p[1] == 'B') { /* {B} is written in terms of {P} and {L} only */
            size_t n = v->block_prefix && !strstr(v->block_prefix, "{B}") ? eng_env_expand(v, v->block_prefix, block) : 0;
            ok = n && put(out, &at, block, n);
        } else if (p[1] == 'L') {
            int n = snprintf(number, sizeof number, "%" PRId32, v->layer);
            ok = put(out, &at, number, (size_t)n);
        } else {
            ok = put(out, &at, v->prefix, strlen(v->prefix));
        }
        if (!ok)
            return 0;
        p += 2;
    }
    return at;
}
