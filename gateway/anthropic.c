/* A request in Anthropic's terms becomes one in the template's: `system` is the first message, text blocks are text parts, tool_use and
 * thinking are calls and reasoning of the assistant's message, tool_result a message of the role tool. */
#include "gateway/anthropic.h"

#include <stdio.h>
#include <string.h>

#include "gateway/fields.h"

static int no_memory(struct gw_api_error *ae) { return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory while reading the request."); }

static bool set_str(struct arena *a, struct json *o, const char *key, const char *s, size_t n)
{
    const struct json *v = json_new_str(a, s, n);
    return v && json_set(a, o, key, v);
}

/* Appends one block of text to parts. */
static int get_text(const struct json *block, const char *param, struct arena *a, struct json *parts, struct gw_api_error *ae)
{
    const struct json *type = json_get(block, "type"), *text = json_get(block, "text");
    if (block->type != JSON_OBJECT)
        return gw_wrong_type(ae, param, "an object", block);
    if (!json_eq(type, "text"))
        return gw_api_error_set(ae, 400, "unsupported_value", param, "%s: expected a block of type 'text'; '%.40s' is not supported by this server.", param,
                                json_str(type) ? json_str(type) : "(no type)");
    if (!json_is(text, JSON_STRING))
        return gw_api_error_set(ae, 400, "invalid_type", param, "%s.text: expected a string.", param);
    struct json *part = json_new(a, JSON_OBJECT);
    if (!part || !set_str(a, part, "type", "text", 4) || !json_set(a, part, "text", text) || !json_push(a, parts, part))
        return no_memory(ae);
    return 0;
}

/* A string stays one; blocks of text become parts. */
static int get_content(const struct json *v, const char *param, struct arena *a, const struct json **out, struct gw_api_error *ae)
{
    char at[128];
    int rc = 0;
    if (!v)
        return gw_api_error_set(ae, 400, "missing_required_parameter", param, "%s: Field required", param);
    *out = v;
    if (v->type == JSON_STRING)
        return 0;
    if (v->type != JSON_ARRAY)
        return gw_wrong_type(ae, param, "a string or an array of blocks", v);
    struct json *parts = json_new(a, JSON_ARRAY);
    if (!parts)
        return no_memory(ae);
    for (size_t i = 0; i < v->n && !rc; i++) {
        snprintf(at, sizeof at, "%s.%zu", param, i);
        rc = get_text(v->items[i], at, a, parts, ae);
    }
    if (!rc && !parts->n)
        return gw_api_error_set(ae, 400, "invalid_value", param, "%s: expected at least one block of text", param);
    *out = parts;
    return rc;
}

static int add_message(struct arena *a, struct json *list, const char *role, const struct json *content, struct gw_api_error *ae)
{
    struct json *m = json_new(a, JSON_OBJECT);
    if (!m || !set_str(a, m, "role", role, strlen(role)) || !json_set(a, m, "content", content) || !json_push(a, list, m))
        return no_memory(ae);
    return 0;
}

static int need_string(const struct json *o, const char *key, const char *param, const struct json **out, struct gw_api_error *ae)
{
    char at[128];
    snprintf(at, sizeof at, "%s.%s", param, key);
    *out = gw_field(o, key);
    if (!*out)
        return gw_api_error_set(ae, 400, "missing_required_parameter", at, "%s: Field required", at);
    return (*out)->type == JSON_STRING ? 0 : gw_wrong_type(ae, at, "a string", *out);
}

/* What blocks of one message become: text parts, and calls and reasoning of an assistant. Results are messages of their own, before the text. */
struct blocks { struct arena *a; struct json *list, *parts, *calls; struct buf reasoning; struct gw_api_error *ae; };

static int get_tool_use(struct blocks *k, const struct json *block, const char *param)
{
    const struct json *id, *name, *input = gw_field(block, "input");
    struct json *call = json_new(k->a, JSON_OBJECT), *fn = json_new(k->a, JSON_OBJECT);
    char at[128];
    int rc;
    if ((rc = need_string(block, "id", param, &id, k->ae)) || (rc = need_string(block, "name", param, &name, k->ae)))
        return rc;
    snprintf(at, sizeof at, "%.100s.input", param);
    if (!input)
        return gw_api_error_set(k->ae, 400, "missing_required_parameter", at, "%s: Field required", at);
    if (input->type != JSON_OBJECT)
        return gw_wrong_type(k->ae, at, "an object", input);
    if (!call || !fn || !json_set(k->a, call, "id", id) || !set_str(k->a, call, "type", "function", 8) || !json_set(k->a, fn, "name", name) ||
        !json_set(k->a, fn, "arguments", input) || !json_set(k->a, call, "function", fn) || !json_push(k->a, k->calls, call))
        return no_memory(k->ae);
    return 0;
}

static int get_tool_result(struct blocks *k, const struct json *block, const char *param)
{
    const struct json *id, *content = gw_field(block, "content");
    struct json *m = json_new(k->a, JSON_OBJECT);
    bool failed = false;
    char at[128];
    int rc = need_string(block, "tool_use_id", param, &id, k->ae);
    snprintf(at, sizeof at, "%.100s.content", param);
    if (rc || (rc = gw_get_bool(block, "is_error", param, &failed, k->ae)))
        return rc;
    bool empty = !content || (content->type == JSON_ARRAY && !content->n);
    if (empty)
        content = json_new_str(k->a, "", 0);
    else if ((rc = get_content(content, at, k->a, &content, k->ae)))
        return rc;
    if (!m || !content || !set_str(k->a, m, "role", "tool", 4) || !json_set(k->a, m, "tool_call_id", id) || !json_set(k->a, m, "content", content) ||
        !json_push(k->a, k->list, m))
        return no_memory(k->ae);
    return 0;
}

static int get_block(struct blocks *k, const struct json *block, const char *param, bool assistant)
{
    const struct json *type = json_get(block, "type"), *text;
    if (assistant && json_eq(type, "thinking")) {
        int rc = need_string(block, "thinking", param, &text, k->ae);
        if (!rc)
            buf_add(&k->reasoning, text->s, text->n);
        return rc;
    }
    if (assistant && json_eq(type, "redacted_thinking")) /* of another server: nothing that a prompt could show */
        return 0;
    if (assistant && json_eq(type, "tool_use"))
        return get_tool_use(k, block, param);
    if (!assistant && json_eq(type, "tool_result"))
        return get_tool_result(k, block, param);
    return get_text(block, param, k->a, k->parts, k->ae);
}

static int add_blocks(struct blocks *k, const char *role, const char *param)
{
    struct json *m = json_new(k->a, JSON_OBJECT);
    bool assistant = !strcmp(role, "assistant"), ok = m && set_str(k->a, m, "role", role, strlen(role));
    if (!k->parts->n && !k->calls->n && !k->reasoning.len)
        return gw_api_error_set(k->ae, 400, "invalid_value", param, "%s: expected at least one block of text", param);
    if (k->parts->n)
        ok = ok && json_set(k->a, m, "content", k->parts);
    else if (!k->calls->n)
        ok = ok && set_str(k->a, m, "content", "", 0);
    if (assistant && k->calls->n)
        ok = ok && json_set(k->a, m, "tool_calls", k->calls);
    if (k->reasoning.len)
        ok = ok && set_str(k->a, m, "reasoning_content", k->reasoning.data, k->reasoning.len);
    return ok && !k->reasoning.failed && json_push(k->a, k->list, m) ? 0 : no_memory(k->ae);
}

static int get_message(const struct json *m, const char *param, struct arena *a, struct json *list, struct gw_api_error *ae)
{
    const struct json *v = gw_field(m, "content"), *role = json_get(m, "role");
    char at[128];
    int rc = 0;
    if (!v || v->type != JSON_ARRAY) {
        const struct json *content;
        return (rc = get_content(v, param, a, &content, ae)) ? rc : add_message(a, list, role->s, content, ae);
    }
    struct blocks k = {a, list, json_new(a, JSON_ARRAY), json_new(a, JSON_ARRAY), {0}, ae};
    size_t before = list->n;
    if (!k.parts || !k.calls)
        return no_memory(ae);
    buf_init(&k.reasoning, a->bytes_max);
    for (size_t i = 0; i < v->n && !rc; i++) {
        snprintf(at, sizeof at, "%s.%zu", param, i);
        rc = get_block(&k, v->items[i], at, json_eq(role, "assistant"));
    }
    if (!rc && (k.parts->n || k.calls->n || k.reasoning.len || list->n == before)) /* results alone are enough */
        rc = add_blocks(&k, role->s, param);
    buf_free(&k.reasoning);
    return rc;
}

static int get_messages(const struct json *body, struct arena *a, struct json *list, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, "messages"), *role = NULL;
    char param[64];
    int rc = 0;
    if (!v)
        return gw_api_error_set(ae, 400, "missing_required_parameter", "messages", "messages: Field required");
    if (v->type != JSON_ARRAY)
        return gw_wrong_type(ae, "messages", "an array", v);
    if (!v->n)
        return gw_api_error_set(ae, 400, "empty_array", "messages", "messages: at least one message is required");
    for (size_t i = 0; i < v->n && !rc; i++) {
        const struct json *m = v->items[i];
        snprintf(param, sizeof param, "messages.%zu", i);
        if (m->type != JSON_OBJECT)
            return gw_wrong_type(ae, param, "an object", m);
        role = json_get(m, "role");
        if (!json_eq(role, "user") && !json_eq(role, "assistant"))
            return gw_api_error_set(ae, 400, "invalid_value", param, "%s.role: expected 'user' or 'assistant'", param);
        snprintf(param, sizeof param, "messages.%zu.content", i);
        rc = get_message(m, param, a, list, ae);
    }
    return rc;
}

/* A last message of the assistant's is the beginning of the answer. Its end is where the answer goes on: white space there is refused as in Anthropic's API. */
static int get_beginning(const struct json *list, struct arena *a, struct json *out, struct gw_api_error *ae)
{
    const struct json *last = list->items[list->n - 1], *content = json_get(last, "content");
    if (json_is(content, JSON_ARRAY) && content->n)
        content = json_get(content->items[content->n - 1], "text");
    if (!json_eq(json_get(last, "role"), "assistant"))
        return 0;
    if (json_is(content, JSON_STRING) && content->n && strchr(" \t\r\n", content->s[content->n - 1]))
        return gw_api_error_set(ae, 400, "invalid_value", "messages", "messages: final assistant content cannot end with trailing whitespace");
    return json_set(a, out, "continue_final_message", json_new_bool(a, true)) ? 0 : no_memory(ae);
}

/* ---- tools and thinking ------------------------------------------------------------------------------------ */

static int add_tool(const struct json *v, size_t i, struct arena *a, struct json *list, struct gw_api_error *ae)
{
    const struct json *name, *type = gw_field(v, "type"), *schema = gw_field(v, "input_schema"), *x;
    struct json *tool = json_new(a, JSON_OBJECT), *fn = json_new(a, JSON_OBJECT);
    char param[48], at[80];
    int rc;
    snprintf(param, sizeof param, "tools.%zu", i);
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(ae, param, "an object", v);
    if (type && !json_eq(type, "custom"))
        return gw_api_error_set(ae, 400, "unsupported_value", param, "%s.type: expected 'custom': this server has no tools of its own", param);
    if ((rc = need_string(v, "name", param, &name, ae)))
        return rc;
    snprintf(at, sizeof at, "%s.input_schema", param);
    if (!schema)
        return gw_api_error_set(ae, 400, "missing_required_parameter", at, "%s: Field required", at);
    if (schema->type != JSON_OBJECT)
        return gw_wrong_type(ae, at, "an object", schema);
    bool ok = tool && fn && set_str(a, tool, "type", "function", 8) && json_set(a, fn, "name", name);
    if (ok && (x = gw_field(v, "description")))
        ok = json_set(a, fn, "description", x);
    if (ok && (x = gw_field(v, "strict")))
        ok = json_set(a, fn, "strict", x);
    return ok && json_set(a, fn, "parameters", schema) && json_set(a, tool, "function", fn) && json_push(a, list, tool) ? 0 : no_memory(ae);
}

/* tool_choice: {type: auto | any | tool | none, name, disable_parallel_tool_use}. */
static int add_choice(const struct json *v, struct arena *a, struct json *out, struct gw_api_error *ae)
{
    static const struct { const char *from, *to; } words[] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const struct json *type = json_get(v, "type"), *name;
    bool alone = false, ok = false;
    int rc;
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(ae, "tool_choice", "an object", v);
    if ((rc = gw_get_bool(v, "disable_parallel_tool_use", "tool_choice.disable_parallel_tool_use", &alone, ae)))
        return rc;
    for (size_t i = 0; i < 3; i++)
        if (json_eq(type, words[i].from))
            ok = set_str(a, out, "tool_choice", words[i].to, strlen(words[i].to));
    if (json_eq(type, "tool")) {
        struct json *choice = json_new(a, JSON_OBJECT), *fn = json_new(a, JSON_OBJECT);
        if ((rc = need_string(v, "name", "tool_choice", &name, ae)))
            return rc;
        ok = choice && fn && set_str(a, choice, "type", "function", 8) && json_set(a, fn, "name", name) && json_set(a, choice, "function", fn) &&
             json_set(a, out, "tool_choice", choice);
    } else if (!ok) {
        return gw_api_error_set(ae, 400, "invalid_value", "tool_choice", "tool_choice.type: expected 'auto', 'any', 'tool' or 'none'");
    }
    if (ok && alone)
        ok = json_set(a, out, "parallel_tool_calls", json_new_bool(a, false));
    return ok ? 0 : no_memory(ae);
}

static int get_tools(struct gw_chat_req *r, const struct json *body, struct arena *a, struct json *out, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, "tools"), *choice = gw_field(body, "tool_choice");
    struct json *list = json_new(a, JSON_ARRAY);
    int rc = list ? 0 : no_memory(ae);
    if (v && v->type != JSON_ARRAY)
        return gw_wrong_type(ae, "tools", "an array", v);
    for (size_t i = 0; v && i < v->n && !rc; i++)
        rc = add_tool(v->items[i], i, a, list, ae);
    if (!rc && v && v->n && !json_set(a, out, "tools", list))
        rc = no_memory(ae);
    if (rc || (choice && (rc = add_choice(choice, a, out, ae))))
        return rc;
    return gw_tools_read(&r->tools, out, a, ae);
}

static int get_thinking(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, "thinking"), *type = json_get(v, "type");
    int64_t budget;
    bool given;
    if (!v)
        return 0;
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(ae, "thinking", "an object", v);
    if (!json_eq(type, "enabled") && !json_eq(type, "disabled") && !json_eq(type, "adaptive"))
        return gw_api_error_set(ae, 400, "invalid_value", "thinking", "thinking.type: expected 'enabled', 'disabled' or 'adaptive'");
    r->think = json_eq(type, "enabled") ? GW_THINK_ON : json_eq(type, "disabled") ? GW_THINK_OFF : GW_THINK_UNSAID;
    r->think_param = "thinking";
    return gw_get_int(v, "budget_tokens", 1, UINT32_MAX, &budget, &given, ae); /* max_tokens is what bounds an answer here */
}

static int check_unsupported(const struct json *body, struct gw_api_error *ae)
{
    if (gw_field(body, "mcp_servers") || gw_field(body, "container"))
        return gw_api_error_set(ae, 400, "unsupported_parameter", "container", "mcp_servers, container: not supported by this server");
    return 0;
}

int gw_anthropic_parse_count(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae)
{
    struct json *tree = NULL;
    const struct json *system, *content;
    struct eng_sampling defaults = r->sampling;
    int rc;
    memset(r, 0, sizeof *r);
    r->sampling = defaults;
    r->n = r->n_prompts = 1;
    if ((rc = gw_parse_body(body, n, a, &tree, ae)) || (rc = gw_get_model(tree, &r->model, ae)))
        return rc;
    struct json *list = json_new(a, JSON_ARRAY), *out = json_new(a, JSON_OBJECT);
    if (!list || !out)
        return no_memory(ae);
    if ((system = gw_field(tree, "system")) && system->n && ((rc = get_content(system, "system", a, &content, ae)) || (rc = add_message(a, list, "system", content, ae))))
        return rc;
    if ((rc = get_messages(tree, a, list, ae)) || (rc = get_beginning(list, a, out, ae)) || (rc = check_unsupported(tree, ae)) || (rc = get_tools(r, tree, a, out, ae)) || (rc = get_thinking(r, tree, ae)))
        return rc;
    if (!json_set(a, out, "messages", list) || !json_set(a, out, "request", tree)) /* the latter for gw_anthropic_parse */
        return no_memory(ae);
    r->body = out;
    return 0;
}

int gw_anthropic_parse(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae)
{
    int64_t max = 0, top_k = 0;
    bool has_max, has_top_k;
    int rc = gw_anthropic_parse_count(r, body, n, a, ae);
    const struct json *v, *tree = rc ? NULL : json_get(r->body, "request");
    if (rc || (rc = gw_get_int(tree, "max_tokens", 1, UINT32_MAX, &max, &has_max, ae)))
        return rc;
    if (!has_max)
        return gw_api_error_set(ae, 400, "missing_required_parameter", "max_tokens", "max_tokens: Field required");
    r->max_tokens = (uint32_t)max;
    if ((rc = gw_get_bool(tree, "stream", "stream", &r->stream, ae)) || (rc = gw_get_stops(r, tree, "stop_sequences", a, ae)) ||
        (rc = gw_get_float(tree, "temperature", 0, 1, &r->sampling.temperature, ae)) || (rc = gw_get_float(tree, "top_p", 0, 1, &r->sampling.top_p, ae)) ||
        (rc = gw_get_int(tree, "top_k", 0, INT32_MAX, &top_k, &has_top_k, ae)) || (rc = gw_structured_read_anthropic(&r->structured, tree, a, ae)))
        return rc;
    if (r->sampling.top_p <= 0)
        r->sampling.top_p = 1e-6f; /* as in fields.c */
    if (has_top_k)
        r->sampling.top_k = (int32_t)top_k;
    if ((v = gw_field(tree, "metadata")) && v->type != JSON_OBJECT)
        return gw_wrong_type(ae, "metadata", "an object", v);
    return 0;
}

int gw_anthropic_check_version(const char *version, struct gw_api_error *ae)
{
    static const char like[] = "dddd-dd-dd";
    bool ok = !version || strlen(version) == sizeof like - 1;
    for (size_t i = 0; version && ok && like[i]; i++)
        ok = like[i] == 'd' ? version[i] >= '0' && version[i] <= '9' : version[i] == like[i];
    return ok ? 0 : gw_api_error_set(ae, 400, "invalid_value", NULL, "anthropic-version: expected a date such as 2023-06-01, but got '%.40s'", version);
}
