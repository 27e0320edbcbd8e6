#include "gateway/tools.h"

#include <stdio.h>
#include <string.h>

#include "gateway/fields.h"

bool gw_tools_name_ok(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= 'A' && s[i] <= 'Z') || (s[i] >= '0' && s[i] <= '9') || s[i] == '_' || s[i] == '-' || s[i] == '.'))
            return false;
    return n > 0 && n <= GW_TOOL_NAME_MAX;
}

const struct gw_tool *gw_tools_find(const struct gw_tools *t, const char *name, size_t n)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->v[i].n == n && !memcmp(t->v[i].name, name, n))
            return &t->v[i];
    return NULL;
}

static int missing(struct gw_api_error *ae, const char *param)
{
    return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
}

static int read_tool(struct gw_tools *t, const struct json *v, size_t i, struct gw_api_error *ae)
{
    struct gw_tool *out = &t->v[t->n];
    const struct json *f, *x;
    char param[64];
    int rc;
    snprintf(param, sizeof param, "tools[%zu]", i);
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(ae, param, "an object", v);
    snprintf(param, sizeof param, "tools[%zu].type", i);
    if (!(x = gw_field(v, "type")))
        return missing(ae, param);
    if (!json_eq(x, "function"))
        return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid value for '%s': this server knows tools of type 'function' only.", param);
    snprintf(param, sizeof param, "tools[%zu].function", i);
    if (!(f = gw_field(v, "function")))
        return missing(ae, param);
    if (f->type != JSON_OBJECT)
        return gw_wrong_type(ae, param, "an object", f);
    snprintf(param, sizeof param, "tools[%zu].function.name", i);
    if (!(x = gw_field(f, "name")))
        return missing(ae, param);
    if (x->type != JSON_STRING)
        return gw_wrong_type(ae, param, "a string", x);
    if (!gw_tools_name_ok(x->s, x->n))
        return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid '%s': expected 1 to %d of A-Z a-z 0-9 _ - and '.'.", param, GW_TOOL_NAME_MAX);
    if (gw_tools_find(t, x->s, x->n))
        return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid '%s': '%.64s' names another tool already.", param, x->s);
    *out = (struct gw_tool){.name = x->s, .n = x->n, .parameters = gw_field(f, "parameters")};
    snprintf(param, sizeof param, "tools[%zu].function.description", i);
    if ((x = gw_field(f, "description")) && x->type != JSON_STRING)
        return gw_wrong_type(ae, param, "a string", x);
    snprintf(param, sizeof param, "tools[%zu].function.parameters", i);
    if (out->parameters && out->parameters->type != JSON_OBJECT)
        return gw_wrong_type(ae, param, "an object", out->parameters);
    snprintf(param, sizeof param, "tools[%zu].function.strict", i);
    if ((rc = gw_get_bool(f, "strict", param, &out->strict, ae)))
        return rc;
    t->n++;
    return 0;
}

static int read_choice(struct gw_tools *t, const struct json *v, struct gw_api_error *ae)
{
    static const char *const words[] = {"auto", "none", "required"};
    const struct json *name;
    if (!v)
        return 0;
    for (int i = 0; i < 3; i++)
        if (json_eq(v, words[i])) {
            t->choice = (enum gw_tool_choice)i;
            if (i == GW_TOOLS_REQUIRED && !t->n)
                return gw_api_error_set(ae, 400, "invalid_value", "tool_choice", "'tool_choice' is 'required', but the request has no 'tools'.");
            return 0;
        }
    if (v->type == JSON_STRING)
        return gw_api_error_set(ae, 400, "invalid_value", "tool_choice", "Invalid value: '%.40s'. Supported values are: 'none', 'auto', 'required', or an object that names a function.", v->s);
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(ae, "tool_choice", "a string or an object", v);
    if (!json_eq(json_get(v, "type"), "function"))
        return gw_api_error_set(ae, 400, "unsupported_value", "tool_choice.type", "Invalid value for 'tool_choice.type': this server knows 'function' only.");
    if (!json_str(name = json_get(json_get(v, "function"), "name")))
        return missing(ae, "tool_choice.function.name");
    const struct gw_tool *one = gw_tools_find(t, name->s, name->n);
    if (!one)
        return gw_api_error_set(ae, 400, "invalid_value", "tool_choice", "Tool choice '%.64s' is not among the request's 'tools'.", name->s);
    t->choice = GW_TOOLS_NAMED;
    t->named = (uint32_t)(one - t->v);
    return 0;
}

int gw_tools_read(struct gw_tools *t, const struct json *body, struct arena *a, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, "tools");
    int rc = 0;
    memset(t, 0, sizeof *t);
    t->parallel = true;
    if (v && v->type != JSON_ARRAY)
        return gw_wrong_type(ae, "tools", "an array", v);
    if (v && v->n > GW_TOOLS_MAX)
        return gw_api_error_set(ae, 400, "array_above_max_length", "tools", "Invalid 'tools': expected at most %d, but got %zu.", GW_TOOLS_MAX, v->n);
    if (v && v->n && !(t->v = ARENA_ARRAY(a, struct gw_tool, v->n)))
        return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory while reading the request.");
    for (size_t i = 0; v && i < v->n && !rc; i++)
        rc = read_tool(t, v->items[i], i, ae);
    if (rc || (rc = read_choice(t, gw_field(body, "tool_choice"), ae)))
        return rc;
    rc = gw_get_bool(body, "parallel_tool_calls", "parallel_tool_calls", &t->parallel, ae);
    t->parallel_said = t->parallel && gw_field(body, "parallel_tool_calls");
    return rc;
}

static struct json *copy(const struct json *v, struct arena *a)
{
    struct json *out = NULL;
    struct buf b;
    struct err e;
    buf_init(&b, 64u << 20);
    json_put(&b, v);
    if (b.failed || json_parse(&out, b.data, b.len, &json_strict, a, &e))
        out = NULL;
    buf_free(&b);
    return out;
}

bool gw_tools_copy(struct gw_tools *out, const struct gw_tools *t, struct arena *a)
{
    *out = *t;
    if (t->n && !(out->v = ARENA_ARRAY(a, struct gw_tool, t->n)))
        return false;
    for (uint32_t i = 0; i < t->n; i++) {
        out->v[i] = t->v[i];
        if (!(out->v[i].name = arena_strdup(a, t->v[i].name, t->v[i].n)) || (t->v[i].parameters && !(out->v[i].parameters = copy(t->v[i].parameters, a))))
            return false;
    }
    return true;
}
