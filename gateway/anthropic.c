/* A request in Anthropic's terms becomes one in the template's: `system` is the first message, text blocks are text parts. */
#include "gateway/anthropic.h"

#include <stdio.h>
#include <string.h>

#include "gateway/fields.h"

static int no_memory(struct gw_api_error *ae) { return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory while reading the request."); }

/* Appends one block to parts, unless it is of a kind that no prompt has. */
static int get_block(const struct json *block, const char *param, struct arena *a, struct json *parts, struct gw_api_error *ae)
{
    const struct json *type = json_get(block, "type"), *text = json_get(block, "text");
    if (block->type != JSON_OBJECT)
        return gw_wrong_type(ae, param, "an object", block);
    if (json_eq(type, "thinking") || json_eq(type, "redacted_thinking")) /* of an earlier turn: not part of the prompt */
        return 0;
    if (!json_eq(type, "text"))
        return gw_api_error_set(ae, 400, "unsupported_value", param, "%s: expected a block of type 'text'; '%.40s' is not supported by this server.", param,
                                json_str(type) ? json_str(type) : "(no type)");
    if (!json_is(text, JSON_STRING))
        return gw_api_error_set(ae, 400, "invalid_type", param, "%s.text: expected a string.", param);
    struct json *part = json_new(a, JSON_OBJECT), *word = json_new_str(a, "text", 4);
    if (!part || !word || !json_set(a, part, "type", word) || !json_set(a, part, "text", text) || !json_push(a, parts, part))
        return no_memory(ae);
    return 0;
}

/* A string stays one; blocks become parts. */
static int get_content(const struct json *v, const char *param, struct arena *a, const struct json **out, struct gw_api_error *ae)
{
    char at[96];
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
        rc = get_block(v->items[i], at, a, parts, ae);
    }
    if (!rc && !parts->n)
        return gw_api_error_set(ae, 400, "invalid_value", param, "%s: expected at least one block of text", param);
    *out = parts;
    return rc;
}

static int add_message(struct arena *a, struct json *list, const char *role, const struct json *content, struct gw_api_error *ae)
{
    struct json *m = json_new(a, JSON_OBJECT), *r = json_new_str(a, role, strlen(role));
    if (!m || !r || !json_set(a, m, "role", r) || !json_set(a, m, "content", content) || !json_push(a, list, m))
        return no_memory(ae);
    return 0;
}

static int get_messages(const struct json *body, struct arena *a, struct json *list, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, "messages"), *content, *role = NULL;
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
        if (!(rc = get_content(gw_field(m, "content"), param, a, &content, ae)))
            rc = add_message(a, list, role->s, content, ae);
    }
    if (!rc && json_eq(role, "assistant"))
        return gw_api_error_set(ae, 400, "unsupported_value", param, "messages: the last message must be the user's; continuing an assistant message is not supported by this server");
    return rc;
}

static int check_unsupported(const struct json *body, struct gw_api_error *ae)
{
    const struct json *tools = gw_field(body, "tools"), *thinking = gw_field(body, "thinking"), *choice = gw_field(body, "tool_choice");
    if (tools && !(tools->type == JSON_ARRAY && !tools->n))
        return gw_api_error_set(ae, 400, "unsupported_parameter", "tools", "tools: not supported by this server");
    if (choice && !json_eq(json_get(choice, "type"), "none") && !json_eq(json_get(choice, "type"), "auto"))
        return gw_api_error_set(ae, 400, "unsupported_parameter", "tool_choice", "tool_choice: not supported by this server");
    if (json_get(gw_field(body, "output_config"), "format"))
        return gw_api_error_set(ae, 400, "unsupported_parameter", "output_config", "output_config.format: not supported by this server");
    if (thinking && !json_eq(json_get(thinking, "type"), "disabled") && !json_eq(json_get(thinking, "type"), "adaptive"))
        return gw_api_error_set(ae, 400, "unsupported_parameter", "thinking", "thinking: not supported by this server");
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
    if ((rc = get_messages(tree, a, list, ae)) || (rc = check_unsupported(tree, ae)))
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
        (rc = gw_get_int(tree, "top_k", 0, INT32_MAX, &top_k, &has_top_k, ae)))
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
