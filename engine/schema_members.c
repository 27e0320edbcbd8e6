/* engine/schema_members.c - arrays and objects of a schema: items and properties in order, optional ones that may be left out, others where they are allowed. */
#include <stdlib.h>
#include <string.h>

#include "engine/schema_merge.h"

enum { PROPERTIES_MAX = 2000 };

/* ---- arrays --------------------------------------------------------------------------------------------------- */

/* Items by position all stand; then what `items` says, if it says something. */
static int tuple(struct schema *s, const struct json *prefix, const struct json *rest, uint32_t min, uint32_t max, const char *key, struct buf *b)
{
    uint32_t n = prefix->n < max ? (uint32_t)prefix->n : max;
    int rc = ERR_OK;
    bool closed = !rest || (json_is(rest, JSON_BOOL) && !rest->b);
    if (closed && min > n)
        return schema_fail(s, ERR_INVALID, "minItems", "%u items are named and no others are allowed", n);
    buf_str(b, " \"[\"");
    for (uint32_t i = 0; i < n && !rc; i++) {
        size_t was = schema_enter_n(s, key, i);
        if (i)
            buf_str(b, " \",\"");
        schema_use(s, b, COMMON_WS);
        rc = schema_inner(s, prefix->items[i], b);
        s->n_path = was;
    }
    if (!rc && !closed && max > n) {
        size_t was = schema_enter(s, "items", NULL);
        buf_str(b, n ? " (\",\"" : " (");
        schema_use(s, b, COMMON_WS);
        rc = schema_inner(s, rest, b);
        buf_str(b, ")");
        schema_times(b, min > n ? min - n : 0, max == SCHEMA_OPEN ? max : max - n);
        s->n_path = was;
    }
    if (n)
        schema_use(s, b, COMMON_WS);
    buf_str(b, " \"]\"");
    return rc;
}

int schema_array(struct schema *s, const struct json *n, struct buf *b)
{
    const struct json *items = json_get(n, "items"), *prefix = json_get(n, "prefixItems"), *unique = json_get(n, "uniqueItems");
    uint32_t min, max;
    struct buf item;
    int rc = schema_counts(s, n, "minItems", "maxItems", &min, &max);
    if (rc)
        return rc;
    if (unique && !(unique->type == JSON_BOOL && !unique->b) && max > 1)
        return schema_fail(s, ERR_UNSUPPORTED, "uniqueItems", "it is not supported");
    if (json_is(items, JSON_ARRAY)) /* draft 7 */
        return tuple(s, items, json_get(n, "additionalItems"), min, max, "items", b);
    if (prefix && prefix->type != JSON_ARRAY)
        return schema_fail(s, ERR_INVALID, "prefixItems", "expected an array");
    if (prefix && prefix->n)
        return tuple(s, prefix, items, min, max, "prefixItems", b);
    if (!max || (json_is(items, JSON_BOOL) && !items->b && !min)) {
        buf_str(b, " \"[]\"");
        return ERR_OK;
    }
    buf_init(&item, 512);
    if (items) {
        size_t was = schema_enter(s, "items", NULL);
        rc = schema_inner(s, items, &item);
        s->n_path = was;
    } else {
        schema_use(s, &item, COMMON_VALUE);
    }
    if (!rc) {
        buf_str(b, min ? " \"[\"" : " \"[\" (");
        schema_use(s, b, COMMON_WS);
        buf_printf(b, "%s (\",\"", item.data);
        schema_use(s, b, COMMON_WS);
        buf_printf(b, "%s)", item.data);
        schema_times(b, min ? min - 1 : 0, max == SCHEMA_OPEN ? max : max - 1);
        schema_use(s, b, COMMON_WS);
        buf_str(b, min ? " \"]\"" : ")? \"]\"");
    }
    buf_free(&item);
    return rc;
}

/* ---- objects -------------------------------------------------------------------------------------------------- */

struct props {
    const char *key[PROPERTIES_MAX]; bool required[PROPERTIES_MAX]; uint32_t rule[PROPERTIES_MAX]; /* "key": value */
    uint32_t n, n_required;
    bool open; uint32_t extra;                                   /* others are allowed: their rule */
};

static bool in_list(const struct json *list, const char *key)
{
    for (size_t i = 0; json_is(list, JSON_ARRAY) && i < list->n; i++)
        if (json_eq(list->items[i], key))
            return true;
    return false;
}

static int add_property(struct schema *s, struct props *p, const char *key, const struct json *schema, bool required)
{
    struct buf pair, name;
    if (p->n == PROPERTIES_MAX)
        return schema_fail(s, ERR_LIMIT, "properties", "more than %d", PROPERTIES_MAX);
    buf_init(&pair, 1 << 20);
    buf_init(&name, 1 << 20);
    json_put_str(&name, key, strlen(key));
    buf_char(&name, ':');
    buf_char(&pair, ' ');
    eng_gbnf_literal(&pair, name.data, name.len);
    buf_str(&pair, " \" \"?");
    size_t was = schema_enter(s, "properties", key);
    int rc = schema_inner(s, schema, &pair);
    s->n_path = was;
    if (!rc && (pair.failed || name.failed))
        rc = schema_fail(s, ERR_LIMIT, "properties", "a name is too long");
    if (!rc) {
        p->key[p->n] = key;
        p->required[p->n] = required;
        p->n_required += required;
        p->rule[p->n] = s->n_rules++;
        buf_printf(s->out, "%s-%u ::=%s\n", s->prefix, p->rule[p->n++], pair.data);
    }
    buf_free(&pair);
    buf_free(&name);
    return rc;
}

/* Text of a key that is none of the named ones: at each character, what goes on as one of them goes on being watched. keys[lo, hi) share depth bytes. */
static void other_key(struct schema *s, const char **keys, uint32_t lo, uint32_t hi, size_t depth, struct buf *b)
{
    bool whole = lo < hi && strlen(keys[lo]) == depth;
    uint32_t first = lo + whole;
    buf_str(b, " (");
    struct buf others;
    buf_init(&others, 64 << 10);
    for (uint32_t i = first, k; i < hi; i = k) {
        uint8_t c = (uint8_t)keys[i][depth];
        for (k = i; k < hi && (uint8_t)keys[k][depth] == c; k++)
            ;
        if (c < 0x20 || c == '"' || c == '\\' || c >= 0x80) { /* such bytes do not begin another key here */
            if (c >= 0x80)
                buf_str(&others, "\\u0080-\\U0010FFFF");
            continue;
        }
        eng_gbnf_literal(b, (const char *)&c, 1);
        other_key(s, keys, i, k, depth + 1, b);
        buf_str(b, " | ");
        buf_printf(&others, "\\x%02X", c);
    }
    buf_printf(b, "[^\"\\\\\\x00-\\x1F%s] [^\"\\\\\\x00-\\x1F]{0,60})", others.len ? others.data : "");
    buf_str(b, whole || depth == 0 ? "" : "?"); /* ends here: then it must not be a named one */
    b->failed |= others.failed;
    buf_free(&others);
}

static int by_name(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* "other key": value */
static int add_extra(struct schema *s, struct props *p, const struct json *n, const struct json *schema)
{
    const struct json *names = json_get(n, "propertyNames");
    struct buf pair;
    const char **keys = ARENA_ARRAY(&s->mem, const char *, p->n);
    int rc = keys ? ERR_OK : schema_fail(s, ERR_NOMEM, NULL, "no memory");
    if (rc)
        return rc;
    if (names && p->n)
        return schema_fail(s, ERR_UNSUPPORTED, "propertyNames", "it is not supported beside properties");
    buf_init(&pair, 1 << 20);
    if (names) {
        const struct json *merged, *text = json_new(&s->mem, JSON_OBJECT), *word = json_new_str(&s->mem, "string", 6);
        size_t was = schema_enter(s, "propertyNames", NULL);
        if (!text || !word || !json_set(&s->mem, (struct json *)text, "type", word) || names->type != JSON_OBJECT)
            rc = schema_fail(s, ERR_INVALID, NULL, "expected a schema");
        else if (!(rc = schema_merge(s, names, text, &merged)))
            rc = schema_inner(s, merged, &pair);
        s->n_path = was;
    } else if (!p->n) {
        schema_use(s, &pair, COMMON_STRING);
    } else {
        memcpy(keys, p->key, p->n * sizeof *keys);
        qsort(keys, p->n, sizeof *keys, by_name);
        buf_str(&pair, " \"\\\"\"");
        other_key(s, keys, 0, p->n, 0, &pair);
        buf_str(&pair, " \"\\\"\"");
    }
    buf_str(&pair, " \":\" \" \"?");
    if (!rc && schema) {
        size_t was = schema_enter(s, "additionalProperties", NULL);
        rc = schema_inner(s, schema, &pair);
        s->n_path = was;
    } else if (!rc) {
        schema_use(s, &pair, COMMON_VALUE);
    }
    if (!rc && pair.failed)
        rc = schema_fail(s, ERR_LIMIT, NULL, "the schema is too large");
    p->open = true;
    p->extra = s->n_rules++;
    if (!rc)
        buf_printf(s->out, "%s-%u ::=%s\n", s->prefix, p->extra, pair.data);
    buf_free(&pair);
    return rc;
}

/* What may follow when something stands in front: properties from i on, then others. */
static void put_tail(struct schema *s, const struct props *p, uint32_t i, struct buf *b)
{
    for (; i < p->n; i++) {
        buf_str(b, p->required[i] ? " \",\"" : " (\",\"");
        schema_use(s, b, COMMON_WS);
        buf_printf(b, " %s-%u%s", s->prefix, p->rule[i], p->required[i] ? "" : ")?");
    }
    if (p->open) {
        buf_str(b, " (\",\"");
        schema_use(s, b, COMMON_WS);
        buf_printf(b, " %s-%u)*", s->prefix, p->extra);
    }
}

/* Properties with nothing in front. Those before the first required one can each be the first, and share the tails behind them. */
static void put_members(struct schema *s, const struct props *p, struct buf *b)
{
    uint32_t last = 0, tail = 0;
    while (last < p->n && !p->required[last])
        last++;
    uint32_t n = last < p->n ? last + 1 : p->n; /* so many can be the first */
    if (n)
        tail = s->n_rules;
    s->n_rules += n;
    for (uint32_t i = n; i-- > 0;) {
        struct buf t;
        buf_init(&t, SCHEMA_BODY_MAX);
        if (i + 1 == n) {
            put_tail(s, p, n, &t);
        } else {
            buf_str(&t, p->required[i + 1] ? " \",\"" : " (\",\"");
            schema_use(s, &t, COMMON_WS);
            buf_printf(&t, " %s-%u%s %s-%u", s->prefix, p->rule[i + 1], p->required[i + 1] ? "" : ")?", s->prefix, tail + i + 1);
        }
        buf_printf(s->out, "%s-%u ::=%s\n", s->prefix, tail + i, t.len ? t.data : " \"\"");
        s->out->failed |= t.failed;
        buf_free(&t);
    }
    for (uint32_t i = 0; i < n; i++)
        buf_printf(b, "%s %s-%u %s-%u", i ? " |" : "", s->prefix, p->rule[i], s->prefix, tail + i);
    if (p->open && last == p->n) {
        buf_printf(b, "%s %s-%u", n ? " |" : "", s->prefix, p->extra);
        put_tail(s, p, p->n, b);
    }
}

static int put_object(struct schema *s, const struct json *n, const struct props *p, struct buf *b)
{
    uint32_t min, max;
    int rc = schema_counts(s, n, "minProperties", "maxProperties", &min, &max);
    if (rc)
        return rc;
    if (!p->n && p->open && (min || max != SCHEMA_OPEN)) { /* others alone can be counted */
        if (!max) {
            buf_str(b, " \"{}\"");
            return ERR_OK;
        }
        buf_str(b, min ? " \"{\"" : " \"{\" (");
        schema_use(s, b, COMMON_WS);
        buf_printf(b, " %s-%u (\",\"", s->prefix, p->extra);
        schema_use(s, b, COMMON_WS);
        buf_printf(b, " %s-%u)", s->prefix, p->extra);
        schema_times(b, min ? min - 1 : 0, max == SCHEMA_OPEN ? max : max - 1);
        schema_use(s, b, COMMON_WS);
        buf_str(b, min ? " \"}\"" : ")? \"}\"");
        return ERR_OK;
    }
    if (min > p->n_required || (max != SCHEMA_OPEN && (p->open || max < p->n)))
        return schema_fail(s, ERR_UNSUPPORTED, min > p->n_required ? "minProperties" : "maxProperties", "it is supported where the named properties keep it by themselves");
    if (!p->n && !p->open) {
        buf_str(b, " \"{}\"");
        return ERR_OK;
    }
    bool empty = !p->n_required;
    buf_str(b, empty ? " \"{\" (" : " \"{\"");
    schema_use(s, b, COMMON_WS);
    buf_str(b, " (");
    put_members(s, p, b);
    buf_str(b, ")");
    schema_use(s, b, COMMON_WS);
    buf_str(b, empty ? ")? \"}\"" : " \"}\"");
    return ERR_OK;
}

int schema_object(struct schema *s, const struct json *n, struct buf *b)
{
    static const struct json any = {.type = JSON_BOOL, .b = true};
    const struct json *props = json_get(n, "properties"), *required = json_get(n, "required"), *more = json_get(n, "additionalProperties");
    struct props *p = ARENA_NEW(&s->mem, struct props);
    int rc = ERR_OK;
    if (!p)
        return schema_fail(s, s->mem.full ? ERR_LIMIT : ERR_NOMEM, NULL, "the schema is too large");
    if ((props && props->type != JSON_OBJECT) || (required && required->type != JSON_ARRAY) || (more && more->type != JSON_BOOL && more->type != JSON_OBJECT))
        return schema_fail(s, ERR_INVALID, props && props->type != JSON_OBJECT ? "properties" : required && required->type != JSON_ARRAY ? "required" : "additionalProperties", "wrong type");
    bool open = more ? more->type == JSON_OBJECT || more->b : !s->strict && !(props && props->n);
    for (size_t i = 0; props && i < props->n && !rc; i++) {
        const struct json_member *m = &props->members[i];
        bool must = in_list(required, m->key);
        if (m->value->type == JSON_BOOL && !m->value->b && !must)
            continue; /* ruled out */
        rc = add_property(s, p, m->key, m->value, must);
    }
    for (size_t i = 0; required && i < required->n && !rc; i++) {
        const char *key = json_str(required->items[i]);
        if (!key)
            rc = schema_fail(s, ERR_INVALID, "required", "expected strings");
        else if (!json_get(props, key) && !open)
            rc = schema_fail(s, ERR_INVALID, "required", "'%.80s' is not among the properties, and others are not allowed", key);
        else if (!json_get(props, key))
            rc = add_property(s, p, key, json_is(more, JSON_OBJECT) ? more : &any, true);
    }
    if (!rc && open)
        rc = add_extra(s, p, n, json_is(more, JSON_OBJECT) && more->n ? more : NULL);
    return rc ? rc : put_object(s, n, p, b);
}
