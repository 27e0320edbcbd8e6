/* engine/schema_merge.c - two schemas that both hold -> one. Keys are merged one by one; what has no common form is refused. */
#include <string.h>

#include "engine/schema_merge.h"

static bool is_one_of(const char *key, const char *const *list)
{
    while (*list && strcmp(*list, key))
        list++;
    return *list != NULL;
}

bool schema_same(struct schema *s, const struct json *a, const struct json *b)
{
    struct buf x, y;
    buf_init(&x, 1 << 20);
    buf_init(&y, 1 << 20);
    json_put(&x, a);
    json_put(&y, b);
    s->failed |= x.failed || y.failed;
    bool is = x.len == y.len && !memcmp(x.data ? x.data : "", y.data ? y.data : "", x.len);
    buf_free(&x);
    buf_free(&y);
    return is;
}

static int no_memory(struct schema *s) { return schema_fail(s, s->mem.full ? ERR_LIMIT : ERR_NOMEM, NULL, "the schema is too large"); }

/* {"allOf": [a, b]}, to be merged when it is reached. */
static struct json *both(struct schema *s, const struct json *a, const struct json *b)
{
    struct json *o = json_new(&s->mem, JSON_OBJECT), *list = json_new(&s->mem, JSON_ARRAY);
    return o && list && json_push(&s->mem, list, a) && json_push(&s->mem, list, b) && json_set(&s->mem, o, "allOf", list) ? o : NULL;
}

/* A property of `from` as the schema `other` sees it, too: its own property of that name, or its additionalProperties. NULL with *rc 0: it is ruled out. */
static const struct json *seen_by(struct schema *s, const struct json *other, const struct json_member *m, int *rc)
{
    const struct json *p = json_get(json_get(other, "properties"), m->key), *rest = json_get(other, "additionalProperties");
    const struct json *more = p ? p : json_is(rest, JSON_OBJECT) && rest->n ? rest : NULL;
    if (!p && json_is(rest, JSON_BOOL) && !rest->b)
        return NULL;
    if (!more)
        return m->value;
    struct json *o = both(s, m->value, more);
    if (!o)
        *rc = no_memory(s);
    return o;
}

static int merge_properties(struct schema *s, const struct json *a, const struct json *b, struct json *out)
{
    const struct json *pa = json_get(a, "properties"), *pb = json_get(b, "properties"), *v;
    struct json *o = json_new(&s->mem, JSON_OBJECT);
    int rc = o ? ERR_OK : no_memory(s);
    for (size_t i = 0; json_is(pa, JSON_OBJECT) && i < pa->n && !rc; i++)
        if ((v = seen_by(s, b, &pa->members[i], &rc)) && !json_set(&s->mem, o, pa->members[i].key, v))
            rc = no_memory(s);
    for (size_t i = 0; json_is(pb, JSON_OBJECT) && i < pb->n && !rc; i++)
        if (!json_get(pa, pb->members[i].key) && (v = seen_by(s, a, &pb->members[i], &rc)) && !json_set(&s->mem, o, pb->members[i].key, v))
            rc = no_memory(s);
    return rc ? rc : (pa || pb) && !json_set(&s->mem, out, "properties", o) ? no_memory(s) : ERR_OK;
}

static bool is_member(struct schema *s, const struct json *list, const struct json *v)
{
    for (size_t i = 0; json_is(list, JSON_ARRAY) && i < list->n; i++)
        if (schema_same(s, list->items[i], v))
            return true;
    return false;
}

static bool names_type(const struct json *t, const char *name)
{
    if (json_eq(t, name) || (!strcmp(name, "integer") && json_eq(t, "number")))
        return true;
    for (size_t i = 0; json_is(t, JSON_ARRAY) && i < t->n; i++)
        if (names_type(t->items[i], name))
            return true;
    return false;
}

/* Types that both name; integer is a number. */
static int merge_types(struct schema *s, const struct json *a, const struct json *b, struct json *out)
{
    static const char *const all[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
    struct json *list = json_new(&s->mem, JSON_ARRAY);
    bool number = false;
    for (size_t i = 0; list && i < 7; i++)
        if (names_type(a, all[i]) && names_type(b, all[i]) && !(i == 4 && number)) {
            number |= i == 3;
            struct json *word = json_new_str(&s->mem, all[i], strlen(all[i]));
            if (!word || !json_push(&s->mem, list, word))
                return no_memory(s);
        }
    if (!list || !json_set(&s->mem, out, "type", list))
        return no_memory(s);
    return list->n ? ERR_OK : schema_fail(s, ERR_INVALID, "type", "no type is allowed by all that is asked for");
}

static int merge_list(struct schema *s, const char *key, const struct json *a, const struct json *b, bool intersect, struct json *out)
{
    struct json *list = json_new(&s->mem, JSON_ARRAY);
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < a->n; i++)
        if (!intersect || is_member(s, b, a->items[i]))
            ok = json_push(&s->mem, list, a->items[i]);
    for (size_t i = 0; ok && !intersect && i < b->n; i++)
        if (!is_member(s, a, b->items[i]))
            ok = json_push(&s->mem, list, b->items[i]);
    if (!ok || !json_set(&s->mem, out, key, list))
        return no_memory(s);
    return list->n || !intersect ? ERR_OK : schema_fail(s, ERR_INVALID, key, "no value is allowed by all that is asked for");
}

/* The value of one key that both have. NULL: *rc, or it was put into out. */
static const struct json *merge_key(struct schema *s, const char *key, const struct json *a, const struct json *b, struct json *out, int *rc)
{
    static const char *const largest[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", NULL};
    static const char *const least[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", NULL};
    static const char *const either[] = {"title", "description", "default", "examples", "example", "$comment", "$id", "$schema", "$defs", "definitions", NULL};
    double x, y;
    if (schema_same(s, a, b) || is_one_of(key, either))
        return a;
    if (!strcmp(key, "type"))
        *rc = merge_types(s, a, b, out);
    else if (!strcmp(key, "required") && json_is(a, JSON_ARRAY) && json_is(b, JSON_ARRAY))
        *rc = merge_list(s, key, a, b, false, out);
    else if (!strcmp(key, "enum") && json_is(a, JSON_ARRAY) && json_is(b, JSON_ARRAY))
        *rc = merge_list(s, key, a, b, true, out);
    else if (is_one_of(key, largest) && json_num(a, &x) && json_num(b, &y))
        return x >= y ? a : b;
    else if (is_one_of(key, least) && json_num(a, &x) && json_num(b, &y))
        return x <= y ? a : b;
    else if (!strcmp(key, "nullable"))
        return json_is(a, JSON_BOOL) && !a->b ? a : b;
    else if (!strcmp(key, "items") || (!strcmp(key, "additionalProperties") && a->type == JSON_OBJECT && b->type == JSON_OBJECT)) {
        const struct json *o = both(s, a, b);
        *rc = o ? ERR_OK : no_memory(s);
        return o;
    } else if (!strcmp(key, "additionalProperties"))
        return json_is(a, JSON_BOOL) ? (a->b ? b : a) : json_is(b, JSON_BOOL) ? (b->b ? a : b) : a;
    else if (!strcmp(key, "anyOf") && !json_get(out, "oneOf") && json_set(&s->mem, out, "oneOf", b))
        return a; /* oneOf is read as a second anyOf */
    else
        *rc = schema_fail(s, ERR_UNSUPPORTED, key, "two of these for one value cannot be combined");
    return NULL;
}

int schema_merge(struct schema *s, const struct json *a, const struct json *b, const struct json **merged)
{
    struct json *out = json_new(&s->mem, JSON_OBJECT);
    int rc = out ? merge_properties(s, a, b, out) : no_memory(s);
    const struct json *v;
    for (size_t i = 0; i < a->n && !rc; i++) {
        const char *key = a->members[i].key;
        if (!strcmp(key, "properties"))
            continue;
        v = json_get(b, key);
        v = v ? merge_key(s, key, a->members[i].value, v, out, &rc) : a->members[i].value;
        if (v && !rc && !json_set(&s->mem, out, key, v))
            rc = no_memory(s);
    }
    for (size_t i = 0; i < b->n && !rc; i++) {
        const char *key = b->members[i].key;
        if (strcmp(key, "properties") && !json_get(a, key)) {
            if (json_get(out, key)) /* anyOf of both went to oneOf */
                rc = schema_fail(s, ERR_UNSUPPORTED, key, "three sets of alternatives for one value cannot be combined");
            else if (!json_set(&s->mem, out, key, b->members[i].value))
                rc = no_memory(s);
        }
    }
    *merged = out;
    return rc;
}
