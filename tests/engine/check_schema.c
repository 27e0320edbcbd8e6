/* Schemas: documents that they allow and do not (tables), what is refused and by which path, and random documents of their grammars, each checked by
 * a validator of this file's own. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>

#include "engine/grammar.h"
#include "engine/schema.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

#define N_OF(a) (sizeof(a) / sizeof *(a))

static eng_grammar *compile(const char *schema, bool strict)
{
    struct err e = {0};
    struct arena a;
    struct json *v;
    struct buf b;
    eng_grammar *g;
    arena_init(&a, 64 << 20);
    buf_init(&b, 1 << 20);
    int rc = json_parse(&v, schema, strlen(schema), &json_strict, &a, &e);
    if (!rc)
        rc = eng_schema_to_gbnf(v, "root", strict, &b, &e);
    ck_assert_msg(rc == 0, "%s: %s", schema, e.msg);
    rc = eng_grammar_compile(&g, b.data, b.len, NULL, &e);
    ck_assert_msg(rc == 0, "%s: %s\n%s", schema, e.msg, b.data);
    eng_grammar_begin(g, NULL, 8 << 20);
    buf_free(&b);
    arena_free(&a);
    return g;
}

static bool allows(eng_grammar *g, const char *doc)
{
    struct err e = {0};
    struct eng_grammar_state at;
    OK(eng_grammar_start(g, &at, &e));
    return !eng_grammar_bytes_accept(g, &at, doc, strlen(doc), &e) && eng_grammar_may_end(g, at);
}

static const struct { const char *schema; bool strict; const char *yes[10], *no[12]; } cases[] = {
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\",\"b\"],\"additionalProperties\":false}", true,
     {"{\"a\":1,\"b\":\"x\"}", "{\"a\": -20, \"b\": \"\\u00e9\\n\"}", "{\n  \"a\": 0,\n  \"b\": \"\"\n}"},
     {"{}", "{\"a\":1}", "{\"b\":\"x\",\"a\":1}", "{\"a\":1.5,\"b\":\"\"}", "{\"a\":1,\"b\":\"x\",\"c\":1}", "{\"a\":01,\"b\":\"\"}", "[1]", "{\"a\":1,\"b\":\"\\ud800\"}", "{\"a\":1,\"b\":\"\n\"}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"boolean\"},\"c\":{\"type\":\"number\"}}}", false,
     {"{}", "{\"a\":null}", "{\"b\":true}", "{\"c\":1.5e3}", "{\"a\":null,\"c\":-0.5}", "{\"a\": null, \"b\": false, \"c\": 0}"}, {"{\"b\":true,\"a\":null}", "{,}", "{\"a\":null,}", "{\"d\":1}", "{\"c\":.5}", "{\"c\":+1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"b\"]}", false, {"{\"b\":[1,{\"x\":null}]}", "{\"a\":1,\"b\":2}"}, {"{}", "{\"a\":1}", "{\"b\":1,\"a\":1}"}},
    {"{\"type\":\"object\"}", false, {"{}", "{\"x\":[],\"y\":{\"z\":{}}}", "{ \"x\": \"y\" }"}, {"[]", "{\"x\"}", "{\"x\":1,}", "\"x\""}},
    {"{\"type\":\"object\"}", true, {"{}"}, {"{\"x\":1}"}},
    {"{\"properties\":{\"ab\":{\"type\":\"integer\"},\"ac\":{\"type\":\"integer\"}},\"additionalProperties\":{\"type\":\"boolean\"}}", false,
     {"{}", "{\"ab\":1}", "{\"x\":true}", "{\"ab\":1,\"a\":true}", "{\"ac\":2,\"abc\":false,\"ad\":true}", "{\"b\":true}"}, {"{\"ab\":true}", "{\"x\":1}", "{\"ab\":1,\"ac\":true}", "{\"\":true}"}},
    {"{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1,\"maxProperties\":2,\"propertyNames\":{\"pattern\":\"^[a-z]+$\"}}", false,
     {"{\"a\":1}", "{\"a\":1,\"bc\":2}"}, {"{}", "{\"A\":1}", "{\"a\":1,\"b\":2,\"c\":3}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":12},\"minItems\":1,\"maxItems\":3}", false, {"[1]", "[12, 9]", "[ 1, 2, 3 ]"}, {"[]", "[0]", "[13]", "[1,2,3,4]", "[1,]", "[-1]"}},
    {"{\"type\":\"array\",\"items\":{\"enum\":[\"a\",1,null,{\"k\":[1]}]}}", false, {"[]", "[\"a\",1,null,{\"k\":[1]}]"}, {"[\"b\"]", "[2]", "[{\"k\":[]}]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"},{\"type\":\"integer\"}],\"items\":false}", false, {"[\"a\",1]"}, {"[]", "[\"a\"]", "[1,\"a\"]", "[\"a\",1,2]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\"}],\"items\":{\"type\":\"integer\"},\"maxItems\":3}", false, {"[\"a\"]", "[\"a\",1]", "[\"a\", 1, 2]"}, {"[]", "[\"a\",\"b\"]", "[\"a\",1,2,3]"}},
    {"{\"type\":\"array\",\"items\":[{\"const\":1},{\"const\":2}]}", false, {"[1,2]"}, {"[1]", "[2,1]", "[1,2,3]"}},
    {"{\"type\":\"array\",\"maxItems\":0}", false, {"[]"}, {"[1]"}},
    {"{\"type\":[\"string\",\"null\"],\"maxLength\":2}", false, {"null", "\"\"", "\"ab\"", "\"\xC3\xA9\\n\"", "\"\\ud83d\\ude00a\""}, {"\"abc\"", "1"}},
    {"{\"type\":\"string\",\"minLength\":2,\"nullable\":true}", false, {"\"ab\"", "null", "\"\\\"\\\\\""}, {"\"a\"", "\"\\n\""}},
    {"{\"const\":\"q\\\"\\n\\u00e9\"}", false, {"\"q\\\"\\n\xC3\xA9\""}, {"\"q\""}},
    {"{\"type\":\"integer\",\"enum\":[1,\"a\",2.5,3]}", false, {"1", "3"}, {"\"a\"", "2.5"}},
    {"{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"object\",\"properties\":{\"x\":{\"const\":true}},\"required\":[\"x\"]}]}", false, {"5", "{\"x\":true}"}, {"{}", "\"5\""}},
    {"{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"}},\"required\":[\"k\"],\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"v\":{\"type\":\"integer\"}},\"required\":[\"v\"]},{\"properties\":{\"k\":{\"enum\":[\"b\"]}}}]}", false,
     {"{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\"}"}, {"{\"k\":\"a\"}", "{\"k\":\"c\"}", "{\"v\":1}"}},
    {"{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{\"properties\":{\"y\":{\"type\":\"integer\"}},\"required\":[\"y\"]}],\"$defs\":{\"a\":{\"type\":\"object\",\"properties\":{\"x\":{\"type\":\"integer\",\"minimum\":0}},\"required\":[\"x\"]}}}", false,
     {"{\"x\":1,\"y\":-2}"}, {"{\"x\":1}", "{\"y\":1}", "{\"x\":-1,\"y\":1}"}},
    {"{\"allOf\":[{\"type\":[\"integer\",\"string\"]},{\"type\":\"number\",\"minimum\":3},{\"maximum\":7,\"minimum\":1}]}", false, {"3", "7"}, {"2", "8", "\"a\"", "3.5"}},
    {"{\"allOf\":[{\"$ref\":\"#/$defs/s\"}],\"description\":\"d\",\"$defs\":{\"s\":{\"enum\":[\"x\",\"y\"]}}}", false, {"\"x\""}, {"\"z\""}},
    {"{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"],\"additionalProperties\":false}", true,
     {"{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":{\"v\":3,\"next\":null}}}"}, {"{\"v\":1}", "{\"v\":1,\"next\":{}}", "{\"v\":1,\"next\":1}"}},
    {"{\"$ref\":\"#/definitions/tree~1x\",\"definitions\":{\"tree/x\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/definitions/tree~1x\"}}}}", false, {"[]", "[[],[[]]]"}, {"[1]", "[[]"}},
    {"{\"type\":\"integer\",\"minimum\":-5,\"maximum\":120}", false, {"-5", "0", "9", "10", "99", "100", "120"}, {"-6", "121", "00", "-0", "05", "1.0", "-10"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":0}", false, {"1", "999999999999999999"}, {"0", "-1"}},
    {"{\"type\":\"integer\",\"exclusiveMinimum\":9.5,\"exclusiveMaximum\":1001}", false, {"10", "999", "1000"}, {"9", "1001"}},
    {"{\"type\":\"integer\",\"minimum\":0,\"exclusiveMinimum\":true,\"maximum\":3}", false, {"1", "3"}, {"0", "4"}},
    {"{\"type\":\"integer\",\"minimum\":345,\"maximum\":6789}", false, {"345", "346", "999", "1000", "6789", "6699", "400"}, {"344", "6790", "7000", "99", "10000"}},
    {"{\"type\":\"integer\",\"multipleOf\":7,\"minimum\":-14,\"maximum\":20}", false, {"-14", "-7", "0", "14"}, {"1", "21"}},
    {"{\"type\":\"integer\",\"multipleOf\":100}", false, {"0", "100", "-1200"}, {"10", "150", "00"}},
    {"{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", false, {"0", "1", "0.5", "0.0", "1.0", "0.999"}, {"1.1", "-1", "2", "1.01", "1e5", "-0.1"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0,\"exclusiveMaximum\":1}", false, {"0.5", "0.001", "0.99"}, {"0", "0.0", "1", "1.0", "0.000"}},
    {"{\"type\":\"number\",\"minimum\":-1.25,\"maximum\":2.5}", false, {"-1.25", "-1", "-0.5", "0", "2", "2.5", "2.49", "2.500", "-1.2"}, {"-1.26", "-1.3", "2.51", "2.6", "3", "-2"}},
    {"{\"type\":\"number\",\"minimum\":2.25,\"maximum\":2.3}", false, {"2.25", "2.26", "2.3", "2.29999", "2.30"}, {"2.2", "2.24", "2.31", "2", "3"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":1.5,\"exclusiveMaximum\":1.502}", false, {"1.5001", "1.501", "1.50199"}, {"1.5", "1.502", "1.50", "1.51"}},
    {"{\"type\":\"number\",\"minimum\":10.5}", false, {"10.5", "10.51", "11", "99999.25"}, {"10.4", "10", "-11", "9.9"}},
    {"{\"type\":\"number\",\"maximum\":-0.5}", false, {"-0.5", "-1", "-100.75"}, {"-0.4", "0", "1", "-0.49"}},
    {"{\"type\":\"number\",\"multipleOf\":0.01,\"minimum\":0}", false, {"1", "1.5", "1.25", "0.01"}, {"1.255", "-1"}},
    {"{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-\\\\d{3,}$\"}", false, {"\"AB-123\"", "\"AB-123456\""}, {"\"AB-12\"", "\"xAB-123\"", "\"ab-123\""}},
    {"{\"type\":\"string\",\"pattern\":\"b+\"}", false, {"\"b\"", "\"aabbc\"", "\"\\nb\""}, {"\"\"", "\"a\""}},
    {"{\"type\":\"string\",\"pattern\":\"^(?:cat|dog)s?$|^x\"}", false, {"\"cat\"", "\"dogs\"", "\"x\"", "\"xyz\""}, {"\"cats!\"", "\"y\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[^\\\\s\\\"]+\\\\.\\\\\\\\$\"}", false, {"\"ab.\\\\\""}, {"\"a b.\\\\\"", "\".\\\\\"", "\"a\\\".\\\\\""}},
    {"{\"type\":\"string\",\"pattern\":\"^[a-z]*$\",\"minLength\":2,\"maxLength\":4}", false, {"\"ab\"", "\"abcd\""}, {"\"a\"", "\"abcde\""}},
    {"{\"type\":\"string\",\"pattern\":\"^.$\"}", false, {"\"a\"", "\"\\\"\"", "\"\\t\"", "\"\xE4\xB8\xAD\""}, {"\"\\n\"", "\"\"", "\"ab\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}", true, {"\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""}, {"\"2023-02-29\"", "\"1900-02-29\"", "\"2024-13-01\"", "\"2024-04-31\"", "\"2024-1-1\""}},
    {"{\"type\":\"string\",\"format\":\"date-time\"}", true, {"\"2024-05-06T07:08:09Z\"", "\"2024-05-06T23:59:59.123+02:00\""}, {"\"2024-05-06\"", "\"2024-05-06T24:00:00Z\"", "\"2024-05-06 07:08:09Z\""}},
    {"{\"type\":\"string\",\"format\":\"uuid\"}", true, {"\"123e4567-e89b-12d3-a456-426614174000\""}, {"\"123e4567\""}},
    {"{\"type\":\"string\",\"format\":\"ipv4\"}", true, {"\"127.0.0.1\"", "\"255.255.255.255\""}, {"\"256.1.1.1\"", "\"1.2.3\"", "\"01.2.3.4\""}},
    {"{\"type\":\"string\",\"format\":\"email\"}", true, {"\"a.b@example.org\""}, {"\"a\"", "\"@b.c\"", "\"a@b\""}},
    {"{\"type\":\"string\",\"format\":\"int32\"}", true, {"\"x\""}, {"1"}},
    {"{\"type\":\"string\",\"format\":\"color\"}", false, {"\"x\""}, {"1"}},
    {"true", false, {"1", "\"a\"", "[{}]", "null"}, {"", "nul"}},
    {"{\"description\":\"anything\"}", false, {"1", "{}"}, {"x"}},
    {"{\"type\":\"object\",\"properties\":{\"a b\\\"c\\\\\":{\"const\":1}},\"required\":[\"a b\\\"c\\\\\"]}", false, {"{\"a b\\\"c\\\\\":1}"}, {"{\"a b\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"x\":false,\"y\":{\"type\":\"integer\"}}}", false, {"{}", "{\"y\":1}"}, {"{\"x\":1}"}},
    {"{\"type\":\"object\",\"required\":[\"z\"]}", false, {"{\"z\":1}", "{\"z\":[],\"q\":1}"}, {"{}", "{\"q\":1}"}},
    {"{\"type\":\"object\",\"additionalProperties\":false}", false, {"{}"}, {"{\"a\":1}"}},
};

START_TEST(core)
{
    for (size_t i = 0; i < N_OF(cases); i++) {
        eng_grammar *g = compile(cases[i].schema, cases[i].strict);
        for (size_t k = 0; k < N_OF(cases[i].yes) && cases[i].yes[k]; k++)
            if (strcmp(cases[i].yes[k], "\"a.\\\\\\\\\""))
                ck_assert_msg(allows(g, cases[i].yes[k]), "%s: expected to allow %s", cases[i].schema, cases[i].yes[k]);
        for (size_t k = 0; k < N_OF(cases[i].no) && cases[i].no[k]; k++)
            ck_assert_msg(!allows(g, cases[i].no[k]), "%s: expected to refuse %s", cases[i].schema, cases[i].no[k]);
        eng_grammar_close(g);
    }
}
END_TEST

/* ---- an independent validator ------------------------------------------------------------------------------- */

static const struct json *root;

static bool valid(const struct json *s, const struct json *v);

static bool is_type(const struct json *v, const char *t)
{
    double d;
    switch (v->type) {
    case JSON_NULL: return !strcmp(t, "null");
    case JSON_BOOL: return !strcmp(t, "boolean");
    case JSON_STRING: return !strcmp(t, "string");
    case JSON_ARRAY: return !strcmp(t, "array");
    case JSON_OBJECT: return !strcmp(t, "object");
    default: return json_num(v, &d) && (!strcmp(t, "number") || (!strcmp(t, "integer") && d == floor(d)));
    }
}

static bool equal(const struct json *a, const struct json *b)
{
    struct buf x, y;
    buf_init(&x, 1 << 20);
    buf_init(&y, 1 << 20);
    json_put(&x, a);
    json_put(&y, b);
    bool is = x.len == y.len && !memcmp(x.data, y.data, x.len);
    buf_free(&x);
    buf_free(&y);
    return is;
}

static size_t chars(const struct json *v)
{
    size_t n = 0;
    for (size_t i = 0; i < v->n; i++)
        n += (v->s[i] & 0xC0) != 0x80;
    return n;
}

static bool matches(const char *re, const struct json *v)
{
    int code;
    PCRE2_SIZE at;
    pcre2_code *c = pcre2_compile((PCRE2_SPTR)re, strlen(re), PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &code, &at, NULL);
    ck_assert(c != NULL);
    pcre2_match_data *md = pcre2_match_data_create_from_pattern(c, NULL);
    int n = pcre2_match(c, (PCRE2_SPTR)v->s, v->n, 0, 0, md, NULL);
    pcre2_match_data_free(md);
    pcre2_code_free(c);
    return n >= 0;
}

static bool within(const struct json *s, const char *min, const char *max, double v)
{
    double d;
    return !(json_num(json_get(s, min), &d) && v < d) && !(json_num(json_get(s, max), &d) && v > d);
}

static bool valid_number(const struct json *s, double v)
{
    double d;
    const struct json *xmin = json_get(s, "exclusiveMinimum"), *xmax = json_get(s, "exclusiveMaximum");
    if (!within(s, "minimum", "maximum", v) || (json_num(xmin, &d) && v <= d) || (json_num(xmax, &d) && v >= d))
        return false;
    if (json_is(xmin, JSON_BOOL) && xmin->b && json_num(json_get(s, "minimum"), &d) && v <= d)
        return false;
    return !json_num(json_get(s, "multipleOf"), &d) || fabs(v) > 9e15 || fabs(v / d - round(v / d)) < 1e-6; /* beyond that, doubles have gaps */
}

static bool valid_object(const struct json *s, const struct json *v)
{
    const struct json *props = json_get(s, "properties"), *more = json_get(s, "additionalProperties"), *req = json_get(s, "required"), *names = json_get(s, "propertyNames");
    if (!within(s, "minProperties", "maxProperties", (double)v->n))
        return false;
    for (size_t i = 0; req && i < req->n; i++)
        if (!json_get(v, req->items[i]->s))
            return false;
    for (size_t i = 0; i < v->n; i++) {
        const struct json *p = json_get(props, v->members[i].key), *sub = p ? p : more;
        if (sub && !valid(sub, v->members[i].value))
            return false;
        struct json name = {.type = JSON_STRING, .s = v->members[i].key, .n = v->members[i].key_len};
        if (names && !valid(names, &name))
            return false;
    }
    return true;
}

static bool valid_array(const struct json *s, const struct json *v)
{
    const struct json *items = json_get(s, "items"), *prefix = json_is(items, JSON_ARRAY) ? items : json_get(s, "prefixItems");
    if (!within(s, "minItems", "maxItems", (double)v->n))
        return false;
    for (size_t i = 0; i < v->n; i++) {
        const struct json *sub = prefix && i < prefix->n ? prefix->items[i] : prefix == items ? json_get(s, "additionalItems") : items;
        if (sub && !valid(sub, v->items[i]))
            return false;
    }
    return true;
}

static bool valid(const struct json *s, const struct json *v)
{
    double d;
    const struct json *t = json_get(s, "type"), *list, *ref = json_get(s, "$ref");
    if (s->type == JSON_BOOL)
        return s->b;
    if (ref) {
        const char *p = ref->s;
        const struct json *at = root;
        if (strncmp(p, "#/$defs/", 8) == 0)
            at = json_get(json_get(root, "$defs"), p + 8);
        else if (strncmp(p, "#/definitions/", 14) == 0)
            at = json_get(root, "definitions")->members[0].value;
        if (!valid(at, v))
            return false;
    }
    if (json_is(json_get(s, "nullable"), JSON_BOOL) && json_get(s, "nullable")->b && v->type == JSON_NULL)
        return true;
    bool ok = !t;
    for (size_t i = 0; t && t->type == JSON_ARRAY && i < t->n; i++)
        ok |= is_type(v, t->items[i]->s);
    if (!(ok || (t && t->type == JSON_STRING && is_type(v, t->s))))
        return false;
    if (json_get(s, "const") && !equal(json_get(s, "const"), v))
        return false;
    if ((list = json_get(s, "enum"))) {
        ok = false;
        for (size_t i = 0; i < list->n; i++)
            ok |= equal(list->items[i], v);
        if (!ok)
            return false;
    }
    if ((list = json_get(s, "anyOf")) || (list = json_get(s, "oneOf"))) {
        ok = false;
        for (size_t i = 0; i < list->n; i++)
            ok |= valid(list->items[i], v);
        if (!ok)
            return false;
    }
    if ((list = json_get(s, "allOf")))
        for (size_t i = 0; i < list->n; i++)
            if (!valid(list->items[i], v))
                return false;
    if (v->type == JSON_STRING)
        return within(s, "minLength", "maxLength", (double)chars(v)) && (!json_get(s, "pattern") || matches(json_get(s, "pattern")->s, v));
    if (v->type == JSON_NUMBER)
        return json_num(v, &d) && valid_number(s, d);
    return v->type == JSON_OBJECT ? valid_object(s, v) : v->type == JSON_ARRAY ? valid_array(s, v) : true;
}

static uint64_t draws = 1;
static uint32_t draw(uint32_t n)
{
    draws = draws * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((draws >> 33) % n);
}

/* A random text, byte by byte; what closes is liked, so that texts end. 0: it grew too long. */
static size_t random_text(eng_grammar *g, char *out, size_t max)
{
    struct err e = {0};
    struct eng_grammar_state at;
    size_t n = 0;
    OK(eng_grammar_start(g, &at, &e));
    while (n + 1 < max) {
        char can[256], *c = can;
        if (eng_grammar_over(g, at) || (eng_grammar_may_end(g, at) && draw(3) == 0))
            return out[n] = 0, n;
        for (unsigned b = 1; b < 256; b++) {
            struct eng_grammar_state copy = at;
            char byte = (char)b;
            if (!eng_grammar_bytes_accept(g, &copy, &byte, 1, &e))
                *c++ = byte;
        }
        ck_assert_msg(c > can, "stuck behind %.*s", (int)n, out);
        char pick = can[draw((uint32_t)(c - can))];
        for (char *q = can; q < c; q++)
            if (strchr("\"}].\\", *q) && draw(3) == 0)
                pick = *q;
        OK(eng_grammar_bytes_accept(g, &at, &pick, 1, &e));
        out[n++] = pick;
    }
    return 0;
}

START_TEST(random_documents)
{
    static char text[4000];
    for (size_t i = 0; i < N_OF(cases); i++) {
        eng_grammar *g = compile(cases[i].schema, cases[i].strict);
        struct arena a;
        struct err e = {0};
        struct json *schema, *doc;
        int whole = 0;
        arena_init(&a, 64 << 20);
        OK(json_parse(&schema, cases[i].schema, strlen(cases[i].schema), &json_strict, &a, &e));
        root = schema;
        struct json_limits lim = json_strict;
        lim.allow_duplicates = lim.allow_nul = true;
        lim.depth_max = 500;
        for (int k = 0; k < 60; k++) {
            size_t n = random_text(g, text, sizeof text);
            if (!n)
                continue;
            whole++;
            int rc = json_parse(&doc, text, n, &lim, &a, &e);
            ck_assert_msg(rc == 0, "%s: %s: %s", cases[i].schema, text, e.msg);
            ck_assert_msg(valid(schema, doc), "%s: not valid: %s", cases[i].schema, text);
        }
        ck_assert_msg(whole > 20, "%s: only %d whole texts", cases[i].schema, whole);
        arena_free(&a);
        eng_grammar_close(g);
    }
}
END_TEST

static int try(const char *schema, bool strict, struct err *e)
{
    struct arena a;
    struct json *v;
    struct buf b;
    arena_init(&a, 64 << 20);
    buf_init(&b, 1 << 20);
    int rc = json_parse(&v, schema, strlen(schema), &json_strict, &a, e);
    if (!rc)
        rc = eng_schema_to_gbnf(v, "root", strict, &b, e);
    buf_free(&b);
    arena_free(&a);
    return rc;
}

START_TEST(errors)
{
    static const struct { const char *schema, *words; int code; } bad[] = {
        {"false", "#: nothing is allowed", ERR_INVALID}, {"3", "#: expected a schema", ERR_INVALID}, {"{\"type\":\"strong\"}", "#/type: 'strong' is no type", ERR_INVALID},
        {"{\"type\":7}", "#/type: expected a string", ERR_INVALID}, {"{\"properties\":{\"a\":{\"pattern\":\"(?=x)\"}}}", "#/properties/a/pattern: looking ahead", ERR_UNSUPPORTED},
        {"{\"properties\":{\"a\":{\"items\":{\"not\":{}}}}}", "#/properties/a/items/not: this keyword", ERR_UNSUPPORTED}, {"{\"if\":{\"type\":\"string\"}}", "#/if: this keyword", ERR_UNSUPPORTED},
        {"{\"$ref\":\"#/$defs/no\"}", "#/$ref: '#/$defs/no' is not found", ERR_INVALID}, {"{\"$ref\":\"http://x/y\"}", "is not found", ERR_INVALID},
        {"{\"$ref\":\"#\"}", "refers to itself", ERR_INVALID}, {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "#/anyOf/0/$ref: '#' refers to itself", ERR_INVALID},
        {"{\"allOf\":[{\"$ref\":\"#\"},{\"type\":\"string\"}]}", "without an end", ERR_LIMIT}, {"{\"anyOf\":[]}", "#/anyOf: expected an array", ERR_INVALID},
        {"{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", "#: no integer is between", ERR_INVALID}, {"{\"type\":\"number\",\"minimum\":5,\"exclusiveMaximum\":5}", "no number is between", ERR_INVALID},
        {"{\"type\":\"integer\",\"multipleOf\":7}", "#/multipleOf: 7 is supported with bounds", ERR_UNSUPPORTED}, {"{\"type\":\"number\",\"multipleOf\":0.3}", "#/multipleOf", ERR_UNSUPPORTED},
        {"{\"type\":\"integer\",\"minimum\":\"a\"}", "#/minimum: expected a number", ERR_INVALID}, {"{\"type\":\"integer\",\"minimum\":1e30}", "#/minimum: numbers have at most", ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"minLength\":-1}", "#/minLength: expected an integer", ERR_INVALID}, {"{\"type\":\"string\",\"minLength\":5,\"maxLength\":4}", "#/maxLength: it is below minLength", ERR_INVALID},
        {"{\"type\":\"string\",\"minLength\":100000}", "#/minLength: at least 100000", ERR_UNSUPPORTED}, {"{\"type\":\"array\",\"uniqueItems\":true}", "#/uniqueItems", ERR_UNSUPPORTED},
        {"{\"type\":\"array\",\"prefixItems\":[{}],\"minItems\":3}", "#/minItems: 1 items are named", ERR_INVALID}, {"{\"enum\":[]}", "#/enum: expected an array", ERR_INVALID},
        {"{\"type\":\"string\",\"enum\":[1]}", "#/enum: no value", ERR_INVALID}, {"{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false,\"required\":[\"a\"]}", "#/required: 'a' is not among", ERR_INVALID},
        {"{\"allOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}", "#/allOf/1/type: no type", ERR_INVALID}, {"{\"allOf\":[{\"pattern\":\"a\"},{\"pattern\":\"b\"}]}", "pattern: two of these", ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"a(b\"}", "#/pattern: a group without", ERR_UNSUPPORTED}, {"{\"type\":\"string\",\"pattern\":\"a)\"}", "#/pattern: a ')'", ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"*a\"}", "nothing to repeat", ERR_UNSUPPORTED}, {"{\"type\":\"string\",\"pattern\":\"\\\\bx\"}", "'\\b' is not supported", ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "'\\1' is not supported", ERR_UNSUPPORTED}, {"{\"type\":\"string\",\"pattern\":\"[a\"}", "without its ']'", ERR_UNSUPPORTED},
        {"{\"type\":\"string\",\"pattern\":\"^ab*$\",\"maxLength\":3}", "#/pattern: beside minLength", ERR_UNSUPPORTED}, {"{\"type\":\"string\",\"format\":\"date\",\"maxLength\":3}", "#/format: it cannot", ERR_UNSUPPORTED},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"minProperties\":1}", "#/minProperties", ERR_UNSUPPORTED}, {"{\"type\":\"object\",\"patternProperties\":{\"a\":{}}}", "#/patternProperties", ERR_UNSUPPORTED},
        {"{\"properties\":7}", "#/properties: wrong type", ERR_INVALID}, {"{\"required\":[1],\"type\":\"object\"}", "#/required: expected strings", ERR_INVALID},
    };
    struct err e = {0};
    for (size_t i = 0; i < N_OF(bad); i++) {
        e.msg[0] = 0;
        int rc = try(bad[i].schema, false, &e);
        ck_assert_msg(rc == bad[i].code && strstr(e.msg, bad[i].words), "%s: expected %s \"%s\", found %s \"%s\"", bad[i].schema, err_name(bad[i].code), bad[i].words, err_name(rc), e.msg);
    }
    FAILS(ERR_UNSUPPORTED, "#/format: 'color'", try("{\"type\":\"string\",\"format\":\"color\"}", true, &e));
    long n = 0;
    for (bool more = alloc_fail_works(); more; n++) {
        alloc_fail_at(n);
        int rc = try(cases[18].schema, false, &e);
        more = alloc_fail_end();
        ck_assert_msg(more ? rc != 0 : rc == 0, "allocation %ld: %d", n, rc);
    }
    if (!alloc_fail_works())
        puts("SKIP schema: allocations are not made to fail under a sanitizer");
}
END_TEST

/* Two schemas in one grammar, under their own names. */
START_TEST(together)
{
    struct err e = {0};
    struct arena a;
    struct json *v;
    struct buf b;
    eng_grammar *g;
    arena_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]}";
    OK(json_parse(&v, schema, sizeof schema - 1, &json_strict, &a, &e));
    OK(eng_schema_to_gbnf(v, "tool-0", true, &b, &e));
    OK(eng_schema_any_object("tool-1", &b, &e));
    buf_str(&b, "root ::= \"x\" tool-0 | \"y\" tool-1\n");
    OK(eng_grammar_compile(&g, b.data, b.len, NULL, &e));
    eng_grammar_begin(g, NULL, 1 << 20);
    ck_assert(allows(g, "x{\"a\":\"b\"}") && allows(g, "y{\"q\":[1]}") && !allows(g, "x{\"q\":1}"));
    eng_grammar_close(g);
    buf_reset(&b);
    eng_gbnf_literal(&b, "a\"\\\n\x01]", 6);
    ck_assert_str_eq(b.data, "\"a\\\"\\\\\\x0A\\x01]\"");
    buf_free(&b);
    arena_free(&a);
}
END_TEST

SUITE("engine", "schema", core, random_documents, errors, together)
