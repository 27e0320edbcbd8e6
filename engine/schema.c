/* engine/schema.c - values of a schema: which keyword means what. Each value becomes a rule "prefix-N"; rules are written when they are whole, so a
 * rule stands behind those it needs, except where schemas are recursive. */
#include "engine/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/schema_merge.h"

enum { MEM_MAX = 64 << 20 };

int schema_fail(struct schema *s, int code, const char *key, const char *fmt, ...)
{
    char msg[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return err_set(s->e, code, "#%.*s%s%s: %s", (int)s->n_path, s->path, key ? "/" : "", key ? key : "", msg);
}

/* Goes down the path for a message; returns what it was. */
size_t schema_enter(struct schema *s, const char *a, const char *b)
{
    size_t was = s->n_path;
    int n = snprintf(s->path + was, sizeof s->path - was, b ? "/%s/%s" : "/%s", a, b);
    s->n_path = was + (n < 0 ? 0 : (size_t)n < sizeof s->path - was ? (size_t)n : sizeof s->path - was - 1);
    return was;
}

size_t schema_enter_n(struct schema *s, const char *a, size_t i)
{
    char n[24];
    snprintf(n, sizeof n, "%zu", i);
    return schema_enter(s, a, n);
}

void eng_gbnf_literal(struct buf *b, const char *p, size_t n)
{
    buf_char(b, '"');
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '"' || p[i] == '\\')
            buf_char(b, '\\');
        if ((uint8_t)p[i] < 0x20 || p[i] == 0x7F)
            buf_printf(b, "\\x%02X", (unsigned)p[i]);
        else
            buf_char(b, p[i]);
    }
    buf_char(b, '"');
}

/* ---- common rules --------------------------------------------------------------------------------------------- */

/* @name: another one of these. */
static const struct { const char *name, *body; } common[COMMON_N] = {
    [COMMON_WS] = {"ws", "(\" \" | \"\\n\" [ \\t]{0,20})?"},
    [COMMON_CHAR] = {"char", "[^\"\\\\\\x00-\\x1F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} | "
                             "[dD] [89abAB] [0-9a-fA-F]{2} \"\\\\u\" [dD] [c-fC-F] [0-9a-fA-F]{2}))"},
    [COMMON_STRING] = {"string", "\"\\\"\" @char* \"\\\"\""},
    [COMMON_INTEGER] = {"integer", "\"0\" | \"-\"? [1-9] [0-9]{0,17}"},
    [COMMON_NUMBER] = {"number", "\"-\"? (\"0\" | [1-9] [0-9]{0,17}) (\".\" [0-9]{1,17})? ([eE] [-+]? [0-9]{1,2})?"},
    [COMMON_BOOLEAN] = {"boolean", "\"true\" | \"false\""},
    [COMMON_NULL] = {"null", "\"null\""},
    [COMMON_VALUE] = {"value", "@object | @array | @string | @number | @boolean | @null"},
    [COMMON_ARRAY] = {"array", "\"[\" (@ws @value (\",\" @ws @value)* @ws)? \"]\""},
    [COMMON_OBJECT] = {"object", "\"{\" (@ws @string \":\" \" \"? @value (\",\" @ws @string \":\" \" \"? @value)* @ws)? \"}\""},
};

void schema_use(struct schema *s, struct buf *b, enum schema_common c)
{
    if (b)
        buf_printf(b, " %s-%s", s->prefix, common[c].name);
    if (s->common[c])
        return;
    s->common[c] = true;
    for (enum schema_common k = 0; k < COMMON_N; k++) { /* first, so that no rule is cut in two */
        char ref[20];
        snprintf(ref, sizeof ref, "@%s", common[k].name);
        if (strstr(common[c].body, ref))
            schema_use(s, NULL, k);
    }
    buf_printf(s->out, "%s-%s ::= ", s->prefix, common[c].name);
    for (const char *p = common[c].body; *p; p++) {
        if (*p == '@')
            buf_printf(s->out, "%s-", s->prefix);
        else
            buf_char(s->out, *p);
    }
    buf_char(s->out, '\n');
}

/* ---- values --------------------------------------------------------------------------------------------------- */

static int body(struct schema *s, const struct json *n, struct buf *b);

/* A value of its own rule: appends the rule's name to b. */
static int value(struct schema *s, const struct json *n, struct buf *b)
{
    struct buf own;
    uint32_t rule = s->n_rules++;
    if (s->depth == SCHEMA_DEPTH_MAX)
        return schema_fail(s, ERR_LIMIT, NULL, "schemas nest more than %d deep", SCHEMA_DEPTH_MAX);
    buf_init(&own, SCHEMA_BODY_MAX);
    s->depth++;
    int rc = body(s, n, &own);
    s->depth--;
    if (!rc && own.failed)
        rc = schema_fail(s, ERR_LIMIT, NULL, "the schema is too large");
    if (!rc) {
        buf_printf(s->out, "%s-%u ::=%.*s\n", s->prefix, rule, (int)own.len, own.data ? own.data : "");
        buf_printf(b, " %s-%u", s->prefix, rule);
    }
    buf_free(&own);
    return rc;
}

/* A value inside another one. */
int schema_inner(struct schema *s, const struct json *n, struct buf *b)
{
    s->level++;
    int rc = value(s, n, b);
    s->level--;
    return rc;
}

static int get_count(struct schema *s, const struct json *n, const char *key, uint32_t *out)
{
    const struct json *v = json_get(n, key);
    int64_t k;
    if (!v)
        return ERR_OK;
    if (!json_int(v, &k) || k < 0)
        return schema_fail(s, ERR_INVALID, key, "expected an integer of zero or more");
    if (k >= SCHEMA_MANY) {
        if (key[1] == 'a') { /* maxLength and so on: fewer are allowed */
            *out = SCHEMA_MANY - 1;
            return ERR_OK;
        }
        return schema_fail(s, ERR_UNSUPPORTED, key, "at least %lld is more than the %d that are supported", (long long)k, SCHEMA_MANY - 1);
    }
    *out = (uint32_t)k;
    return ERR_OK;
}

int schema_counts(struct schema *s, const struct json *n, const char *min_key, const char *max_key, uint32_t *min, uint32_t *max)
{
    *min = 0;
    *max = SCHEMA_OPEN;
    int rc = get_count(s, n, min_key, min);
    if (!rc)
        rc = get_count(s, n, max_key, max);
    return rc ? rc : *min > *max ? schema_fail(s, ERR_INVALID, max_key, "it is below %s", min_key) : ERR_OK;
}

void schema_times(struct buf *b, uint32_t min, uint32_t max)
{
    if (max == SCHEMA_OPEN)
        buf_printf(b, min ? "{%u,}" : "*", min);
    else
        buf_printf(b, "{%u,%u}", min, max);
}

/* ---- strings -------------------------------------------------------------------------------------------------- */

static int string(struct schema *s, const struct json *n, struct buf *b)
{
    static const char *const notes[] = {"password", "binary", "byte", "int32", "int64", "float", "double", "regex", NULL}; /* annotations of OpenAPI */
    const struct json *pattern = json_get(n, "pattern"), *format = json_get(n, "format");
    uint32_t min, max;
    int rc = schema_counts(s, n, "minLength", "maxLength", &min, &max);
    if (rc)
        return rc;
    if (pattern && pattern->type != JSON_STRING)
        return schema_fail(s, ERR_INVALID, "pattern", "expected a string");
    const char *rule = json_str(format) ? schema_format_rule(format->s) : NULL;
    bool note = false;
    for (size_t i = 0; json_str(format) && notes[i]; i++)
        note |= !strcmp(notes[i], format->s);
    if (format && !rule && !note && s->strict)
        return schema_fail(s, ERR_UNSUPPORTED, "format", "'%.60s' is not supported", json_str(format) ? format->s : "(no string)");
    if (rule && (pattern || min || max != SCHEMA_OPEN))
        return schema_fail(s, ERR_UNSUPPORTED, "format", "it cannot be combined with a pattern or a length");
    buf_str(b, " \"\\\"\"");
    if (rule)
        buf_printf(b, " (%s)", rule);
    else if (pattern)
        rc = schema_pattern(s, pattern->s, pattern->n, min, max, b);
    else {
        schema_use(s, b, COMMON_CHAR);
        schema_times(b, min, max);
    }
    buf_str(b, " \"\\\"\"");
    return rc;
}

/* ---- alternatives, references --------------------------------------------------------------------------------- */

static const char *const annotations[] = {"title", "description", "default", "examples", "example", "$comment", "$id", "$schema", "$defs", "definitions", "$anchor", "deprecated",
                                          "readOnly", "writeOnly", "externalDocs", "xml", "discriminator", "contentMediaType", "contentEncoding", "contentSchema", "strict", NULL};

/* A copy of n without these keys; *left: how many of the rest say something about the value. */
static const struct json *without(struct schema *s, const struct json *n, const char *a, size_t *left)
{
    struct json *o = json_new(&s->mem, JSON_OBJECT);
    *left = 0;
    for (size_t i = 0; o && i < n->n; i++) {
        const char *key = n->members[i].key;
        bool note = !strcmp(key, a);
        for (size_t k = 0; annotations[k]; k++)
            note |= !strcmp(annotations[k], key);
        if (!note && !json_set(&s->mem, o, key, n->members[i].value))
            return NULL;
        *left += !note;
    }
    return o;
}

static int out_of_memory(struct schema *s) { return schema_fail(s, s->mem.full ? ERR_LIMIT : ERR_NOMEM, NULL, "the schema is too large"); }

/* "#", or a JSON pointer behind it. */
static const struct json *resolve(struct schema *s, const char *ref)
{
    const struct json *at = s->root;
    char part[300];
    if (*ref++ != '#')
        return NULL;
    while (at && *ref == '/') {
        size_t n = 0, i = 0;
        for (ref++; *ref && *ref != '/' && n + 1 < sizeof part; ref++) {
            char c = *ref;
            unsigned hex;
            if (c == '~' && (ref[1] == '0' || ref[1] == '1'))
                c = *++ref == '0' ? '~' : '/';
            else if (c == '%' && sscanf(ref + 1, "%2x", &hex) == 1 && ref[1] && ref[2]) {
                c = (char)hex;
                ref += 2;
            }
            part[n++] = c;
        }
        part[n] = 0;
        if (json_is(at, JSON_ARRAY)) {
            for (size_t k = 0; k < n; k++)
                i = part[k] >= '0' && part[k] <= '9' && i < 1 << 20 ? 10 * i + (size_t)(part[k] - '0') : SIZE_MAX >> 8;
            at = n && i < at->n ? at->items[i] : NULL;
        } else {
            at = json_get(at, part);
        }
    }
    return *ref ? NULL : at;
}

static int target_of(struct schema *s, const struct json *n, const struct json **out)
{
    const struct json *ref = json_get(n, "$ref");
    if (!json_str(ref))
        return schema_fail(s, ERR_INVALID, "$ref", "expected a string");
    if (!(*out = resolve(s, ref->s)))
        return schema_fail(s, ERR_INVALID, "$ref", "'%.120s' is not found in this schema", ref->s);
    return ERR_OK;
}

/* The rule of a schema that is referred to: one for all references. */
static int referred(struct schema *s, const struct json *target, const char *ref, struct buf *b)
{
    struct schema_ref *r = NULL;
    for (uint32_t i = 0; i < s->n_refs && !r; i++)
        if (s->refs[i].target == target)
            r = &s->refs[i];
    if (r && r->open && r->level == s->level)
        return schema_fail(s, ERR_INVALID, "$ref", "'%.120s' refers to itself without an end", ref);
    if (r) {
        buf_printf(b, " %s-%u", s->prefix, r->rule);
        return ERR_OK;
    }
    if (s->n_refs == SCHEMA_REFS_MAX)
        return schema_fail(s, ERR_LIMIT, "$ref", "more than %d schemas are referred to", SCHEMA_REFS_MAX);
    uint32_t at = s->n_refs++, level = s->level;
    s->refs[at] = (struct schema_ref){.target = target, .rule = s->n_rules, .level = level, .open = true}; /* value() takes this number */
    char path[SCHEMA_PATH_MAX];
    size_t n_path = s->n_path;
    memcpy(path, s->path, sizeof path);
    s->n_path = (size_t)snprintf(s->path, sizeof s->path, "%.*s", (int)sizeof s->path - 1, ref + 1);
    s->n_path = s->n_path < sizeof s->path ? s->n_path : sizeof s->path - 1;
    int rc = value(s, target, b);
    memcpy(s->path, path, sizeof path);
    s->n_path = n_path;
    s->refs[at].open = false;
    return rc;
}

/* References and allOf of n are replaced by what they mean, as far as other keywords stand beside them. */
static int flatten(struct schema *s, const struct json *n, unsigned depth, const struct json **out)
{
    const struct json *all = json_get(n, "allOf"), *rest = n, *part;
    size_t left;
    int rc = ERR_OK;
    *out = n;
    if (depth > 16)
        return schema_fail(s, ERR_LIMIT, NULL, "references and allOf nest too deep, or without an end");
    if (json_get(n, "$ref")) {
        if ((rc = target_of(s, n, &part)) || !(rest = without(s, n, "$ref", &left)))
            return rc ? rc : out_of_memory(s);
        if (part->type == JSON_BOOL && part->b)
            part = rest;
        if (part->type != JSON_OBJECT)
            return schema_fail(s, ERR_INVALID, "$ref", "expected an object behind it");
        if ((rc = flatten(s, part, depth + 1, &part)) || (rc = schema_merge(s, part, rest, out)))
            return rc;
        return flatten(s, *out, depth + 1, out);
    }
    if (!all)
        return ERR_OK;
    if (all->type != JSON_ARRAY || !all->n)
        return schema_fail(s, ERR_INVALID, "allOf", "expected an array that is not empty");
    if (!(rest = without(s, n, "allOf", &left)))
        return out_of_memory(s);
    for (size_t i = 0; i < all->n && !rc; i++) {
        size_t was = schema_enter_n(s, "allOf", i);
        part = all->items[i];
        if (part->type == JSON_BOOL && part->b)
            rc = ERR_OK;
        else if (part->type != JSON_OBJECT)
            rc = schema_fail(s, ERR_INVALID, NULL, "nothing is allowed here");
        else if (!(rc = flatten(s, part, depth + 1, &part)))
            rc = i || left ? schema_merge(s, rest, part, &rest) : ERR_OK;
        rest = !rc && !i && !left && part->type == JSON_OBJECT ? part : rest;
        s->n_path = was;
    }
    *out = rest;
    return rc;
}

static int alternatives(struct schema *s, const struct json *n, const char *key, struct buf *b)
{
    const struct json *list = json_get(n, key);
    size_t left;
    const struct json *base = without(s, n, key, &left);
    int rc = base ? ERR_OK : out_of_memory(s);
    if (list->type != JSON_ARRAY || !list->n)
        return schema_fail(s, ERR_INVALID, key, "expected an array that is not empty");
    for (size_t i = 0; i < list->n && !rc; i++) {
        const struct json *one = list->items[i];
        size_t was = schema_enter_n(s, key, i);
        if (i)
            buf_str(b, " |");
        if (one->type == JSON_OBJECT && left && !(rc = flatten(s, one, 0, &one)))
            rc = schema_merge(s, base, one, &one);
        else if (one->type == JSON_BOOL && one->b && left)
            one = base;
        if (!rc)
            rc = value(s, one, b);
        s->n_path = was;
    }
    return rc;
}

/* ---- one value ------------------------------------------------------------------------------------------------ */

static const char *type_of(const struct json *v)
{
    int64_t i;
    switch (v->type) {
    case JSON_NULL: return "null";
    case JSON_BOOL: return "boolean";
    case JSON_NUMBER: return json_int(v, &i) ? "integer" : "number";
    case JSON_STRING: return "string";
    case JSON_ARRAY: return "array";
    default: return "object";
    }
}

static bool allows(const struct json *type, const char *name)
{
    if (!type || json_eq(type, name) || (!strcmp(name, "integer") && json_eq(type, "number")))
        return true;
    for (size_t i = 0; type->type == JSON_ARRAY && i < type->n; i++)
        if (allows(type->items[i], name))
            return true;
    return false;
}

static void put_value(struct buf *b, const struct json *v, bool *some)
{
    struct buf text;
    buf_init(&text, 1 << 20);
    json_put(&text, v);
    buf_str(b, *some ? " | " : " ");
    eng_gbnf_literal(b, text.data, text.len);
    b->failed |= text.failed;
    buf_free(&text);
    *some = true;
}

/* enum and const: the values of the types asked for. */
static int literals(struct schema *s, const struct json *n, struct buf *b)
{
    const struct json *list = json_get(n, "enum"), *one = json_get(n, "const"), *type = json_get(n, "type");
    bool some = false, nullable = json_is(json_get(n, "nullable"), JSON_BOOL) && json_get(n, "nullable")->b;
    if (list && (list->type != JSON_ARRAY || !list->n))
        return schema_fail(s, ERR_INVALID, "enum", "expected an array that is not empty");
    for (size_t i = 0; list && i < list->n; i++) {
        const struct json *v = list->items[i];
        if ((allows(type, type_of(v)) || (nullable && v->type == JSON_NULL)) && (!one || schema_same(s, one, v)))
            put_value(b, v, &some);
    }
    if (!list && (allows(type, type_of(one)) || (nullable && one->type == JSON_NULL)))
        put_value(b, one, &some);
    return some ? ERR_OK : schema_fail(s, ERR_INVALID, list ? "enum" : "const", "no value of it is allowed by the rest");
}

static int refuse_unsupported(struct schema *s, const struct json *n)
{
    static const char *const refused[] = {"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties", "contains", "minContains", "maxContains",
                                          "unevaluatedItems", "$dynamicRef", "$recursiveRef"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const struct json *v = json_get(n, refused[i]);
        if (v && !(v->type == JSON_OBJECT && !v->n && strcmp(refused[i], "not")))
            return schema_fail(s, ERR_UNSUPPORTED, refused[i], "this keyword is not supported");
    }
    return ERR_OK;
}

static int one_type(struct schema *s, const struct json *n, const char *type, struct buf *b)
{
    if (!strcmp(type, "object"))
        return schema_object(s, n, b);
    if (!strcmp(type, "array"))
        return schema_array(s, n, b);
    if (!strcmp(type, "string"))
        return string(s, n, b);
    if (!strcmp(type, "number") || !strcmp(type, "integer"))
        return schema_number(s, n, *type == 'i', b);
    if (strcmp(type, "boolean") && strcmp(type, "null"))
        return schema_fail(s, ERR_INVALID, "type", "'%.40s' is no type", type);
    schema_use(s, b, *type == 'b' ? COMMON_BOOLEAN : COMMON_NULL);
    return ERR_OK;
}

/* What a schema without a type speaks of; NULL: of nothing. */
static const char *implied_type(const struct json *n)
{
    static const struct { const char *key, *type; } table[] = {
        {"properties", "object"}, {"additionalProperties", "object"}, {"required", "object"}, {"propertyNames", "object"}, {"minProperties", "object"}, {"maxProperties", "object"},
        {"items", "array"}, {"prefixItems", "array"}, {"minItems", "array"}, {"maxItems", "array"}, {"pattern", "string"}, {"format", "string"}, {"minLength", "string"},
        {"maxLength", "string"}, {"minimum", "number"}, {"maximum", "number"}, {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"}, {"multipleOf", "number"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (json_get(n, table[i].key))
            return table[i].type;
    return NULL;
}

static int typed(struct schema *s, const struct json *n, struct buf *b)
{
    const struct json *type = json_get(n, "type"), *nullable = json_get(n, "nullable");
    const char *implied = type ? NULL : implied_type(n);
    int rc = ERR_OK;
    bool null = json_is(nullable, JSON_BOOL) && nullable->b;
    if (type && type->type != JSON_STRING && !(type->type == JSON_ARRAY && type->n))
        return schema_fail(s, ERR_INVALID, "type", "expected a string or an array of them");
    if (!type && !implied) {
        schema_use(s, b, COMMON_VALUE);
        return ERR_OK;
    }
    if (!type || type->type == JSON_STRING)
        rc = one_type(s, n, type ? type->s : implied, b);
    for (size_t i = 0; type && type->type == JSON_ARRAY && i < type->n && !rc; i++) {
        if (!json_str(type->items[i]))
            return schema_fail(s, ERR_INVALID, "type", "expected strings");
        buf_str(b, i ? " |" : "");
        rc = one_type(s, n, type->items[i]->s, b);
        null &= !json_eq(type->items[i], "null");
    }
    if (!rc && null && !json_eq(type, "null")) {
        buf_str(b, " |");
        schema_use(s, b, COMMON_NULL);
    }
    return rc;
}

static int body(struct schema *s, const struct json *n, struct buf *b)
{
    size_t left;
    int rc;
    if (n->type == JSON_BOOL && n->b) {
        schema_use(s, b, COMMON_VALUE);
        return ERR_OK;
    }
    if (n->type != JSON_OBJECT)
        return schema_fail(s, ERR_INVALID, NULL, n->type == JSON_BOOL ? "nothing is allowed here" : "expected a schema: an object or a boolean");
    if ((rc = refuse_unsupported(s, n)))
        return rc;
    if (json_get(n, "$ref")) {
        const struct json *target, *rest = without(s, n, "$ref", &left);
        if (!rest)
            return out_of_memory(s);
        if (!left)
            return (rc = target_of(s, n, &target)) ? rc : referred(s, target, json_get(n, "$ref")->s, b);
    }
    if (json_get(n, "$ref") || json_get(n, "allOf")) {
        const struct json *all = json_get(n, "allOf"), *rest = without(s, n, "allOf", &left);
        if (!rest)
            return out_of_memory(s);
        if (json_is(all, JSON_ARRAY) && all->n == 1 && !left) /* how generators put a description beside a reference */
            return body(s, all->items[0], b);
        if ((rc = flatten(s, n, 0, &n)) || (rc = refuse_unsupported(s, n)))
            return rc;
    }
    if (json_get(n, "anyOf") || json_get(n, "oneOf"))
        return alternatives(s, n, json_get(n, "anyOf") ? "anyOf" : "oneOf", b);
    if (json_get(n, "enum") || json_get(n, "const"))
        return literals(s, n, b);
    return typed(s, n, b);
}

int eng_schema_to_gbnf(const struct json *schema, const char *prefix, bool strict, struct buf *gbnf, struct err *e)
{
    struct err own;
    struct buf top;
    struct schema *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "#: no memory");
    *s = (struct schema){.root = schema, .prefix = prefix, .strict = strict, .out = gbnf, .e = e ? e : &own};
    arena_init(&s->mem, MEM_MAX);
    buf_init(&top, 512);
    int rc = referred(s, schema, "#", &top);
    if (!rc)
        buf_printf(gbnf, "%s ::=%s\n", prefix, top.data);
    if (!rc && s->failed)
        rc = schema_fail(s, ERR_NOMEM, NULL, "no memory");
    if (!rc && (gbnf->failed || top.failed))
        rc = schema_fail(s, ERR_LIMIT, NULL, "its grammar is too large");
    buf_free(&top);
    arena_free(&s->mem);
    free(s);
    return rc;
}

int eng_schema_any_object(const char *prefix, struct buf *gbnf, struct err *e)
{
    struct json_member m = {"type", 4, &(struct json){.type = JSON_STRING, .s = "object", .n = 6}};
    return eng_schema_to_gbnf(&(struct json){.type = JSON_OBJECT, .n = 1, .members = &m}, prefix, false, gbnf, e);
}
