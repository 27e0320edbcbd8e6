/* Fields fall into three groups: read here; harmless and only type-checked (the answer is the same without them); refused
 * unless they hold the value that means "off" (the answer would differ). The last two are tables. */
#include "gateway/openai.h"

#include <stdio.h>
#include <string.h>

#include "gateway/fields.h"

/* ---- fields that are only checked, and fields that are refused -------------------------------------------- */

static const struct { const char *name; enum json_type type; } harmless[] = {
    {"user", JSON_STRING},           {"safety_identifier", JSON_STRING}, {"metadata", JSON_OBJECT},
    {"store", JSON_BOOL},            {"service_tier", JSON_STRING},      {"prompt_cache_key", JSON_STRING},
    {"prompt_cache_retention", JSON_STRING}, {"chat_template_kwargs", JSON_OBJECT}, {"prediction", JSON_OBJECT},
};

enum neutral { NEUTRAL_NEVER, NEUTRAL_FALSE, NEUTRAL_EMPTY, NEUTRAL_WORD, NEUTRAL_ONLY_TEXT };
static const struct { const char *name; enum neutral off; const char *word; } refused[] = {
    {"functions", NEUTRAL_EMPTY, NULL},        {"function_call", NEUTRAL_WORD, "none"},      {"modalities", NEUTRAL_ONLY_TEXT, NULL},
    {"audio", NEUTRAL_NEVER, NULL},            {"web_search_options", NEUTRAL_NEVER, NULL},
    {"verbosity", NEUTRAL_WORD, "medium"},     {"prompt_logprobs", NEUTRAL_NEVER, NULL},
    {"guided_regex", NEUTRAL_NEVER, NULL},
    {"stop_token_ids", NEUTRAL_EMPTY, NULL},   {"bad_words", NEUTRAL_EMPTY, NULL},        {"allowed_token_ids", NEUTRAL_EMPTY, NULL},
    {"include_stop_str_in_output", NEUTRAL_FALSE, NULL}, {"use_beam_search", NEUTRAL_FALSE, NULL}, {"suffix", NEUTRAL_EMPTY, NULL},
    {"echo", NEUTRAL_FALSE, NULL}, /* the last one: completions have it */
};

static bool word_in(const struct json *v, const char *words)
{
    const char *s = json_str(v);
    size_t n = s ? strlen(s) : 0;
    for (const char *w = words; n && *w;) {
        size_t len = strcspn(w, " ");
        if (len == n && !memcmp(w, s, n))
            return true;
        w += len + (w[len] == ' ');
    }
    return false;
}

static bool is_off(const struct json *v, enum neutral off, const char *word)
{
    switch (off) {
    case NEUTRAL_NEVER: return false;
    case NEUTRAL_FALSE: return v->type == JSON_BOOL && !v->b;
    case NEUTRAL_EMPTY: return (v->type == JSON_ARRAY || v->type == JSON_OBJECT || v->type == JSON_STRING) && v->n == 0;
    case NEUTRAL_WORD: return word_in(v, word);
    case NEUTRAL_ONLY_TEXT: return v->type == JSON_ARRAY && v->n == 1 && json_eq(v->items[0], "text");
    }
    return false;
}

int gw_check_tables(const struct json *body, bool chat, struct gw_api_error *ae)
{
    const struct json *v;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if ((v = gw_field(body, harmless[i].name)) && v->type != harmless[i].type)
            return gw_wrong_type(ae, harmless[i].name, gw_json_type_names[harmless[i].type], v);
    for (size_t i = 0; i < sizeof refused / sizeof *refused - !chat; i++)
        if ((v = gw_field(body, refused[i].name)) && !is_off(v, refused[i].off, refused[i].word))
            return gw_api_error_set(ae, 400, "unsupported_parameter", refused[i].name, "Unsupported parameter: '%s' with this value is not supported by this server.", refused[i].name);
    return 0;
}

/* ---- messages --------------------------------------------------------------------------------------------- */

static int check_parts(const struct json *content, size_t m, struct gw_api_error *ae)
{
    char param[96];
    if (!content->n) {
        snprintf(param, sizeof param, "messages[%zu].content", m);
        return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid '%s': expected at least one part, but got an empty array.", param);
    }
    for (size_t i = 0; i < content->n; i++) {
        const struct json *part = content->items[i], *type, *text;
        snprintf(param, sizeof param, "messages[%zu].content[%zu]", m, i);
        if (part->type != JSON_OBJECT)
            return gw_wrong_type(ae, param, "an object", part);
        snprintf(param, sizeof param, "messages[%zu].content[%zu].type", m, i);
        if (!(type = gw_field(part, "type")))
            return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
        if (type->type != JSON_STRING)
            return gw_wrong_type(ae, param, "a string", type);
        if (!json_eq(type, "text"))
            return gw_api_error_set(ae, 400, json_eq(type, "image_url") ? "unsupported_value" : "invalid_value", param,
                                    "Invalid value: '%.60s'. This model takes parts of type 'text' only.", type->s);
        snprintf(param, sizeof param, "messages[%zu].content[%zu].text", m, i);
        if (!(text = gw_field(part, "text")))
            return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
        if (text->type != JSON_STRING)
            return gw_wrong_type(ae, param, "a string", text);
    }
    return 0;
}

/* An earlier turn's calls: the template shows them to the model, so their shape must hold. */
static int check_tool_calls(const struct json *calls, size_t m, struct gw_api_error *ae)
{
    char param[96];
    snprintf(param, sizeof param, "messages[%zu].tool_calls", m);
    if (calls->type != JSON_ARRAY)
        return gw_wrong_type(ae, param, "an array", calls);
    for (size_t i = 0; i < calls->n; i++) {
        const struct json *f = gw_field(calls->items[i], "function");
        snprintf(param, sizeof param, "messages[%zu].tool_calls[%zu].function", m, i);
        if (!json_is(f, JSON_OBJECT) || !json_str(json_get(f, "name")) || !json_str(json_get(f, "arguments")))
            return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid '%s': expected an object with the strings 'name' and 'arguments'.", param);
    }
    return 0;
}

static int check_message(const struct json *msg, size_t m, struct gw_api_error *ae)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    char param[96];
    const struct json *v, *calls = NULL;
    size_t role = 0;
    int rc;

    snprintf(param, sizeof param, "messages[%zu]", m);
    if (msg->type != JSON_OBJECT)
        return gw_wrong_type(ae, param, "an object", msg);
    snprintf(param, sizeof param, "messages[%zu].role", m);
    if (!(v = gw_field(msg, "role")))
        return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
    if (v->type != JSON_STRING)
        return gw_wrong_type(ae, param, "a string", v);
    while (role < 5 && !json_eq(v, roles[role]))
        role++;
    if (role == 5)
        return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid value: '%.60s'. Supported values are: 'system', 'developer', 'user', 'assistant' and 'tool'.", v->s);
    snprintf(param, sizeof param, "messages[%zu].name", m);
    if ((v = gw_field(msg, "name")) && v->type != JSON_STRING)
        return gw_wrong_type(ae, param, "a string", v);
    if (role == 3 && (calls = gw_field(msg, "tool_calls")) && (rc = check_tool_calls(calls, m, ae)))
        return rc;
    snprintf(param, sizeof param, "messages[%zu].reasoning_content", m);
    if (role == 3 && (v = gw_field(msg, "reasoning_content")) && v->type != JSON_STRING)
        return gw_wrong_type(ae, param, "a string", v);
    snprintf(param, sizeof param, "messages[%zu].tool_call_id", m);
    if (role == 4 && !(v = gw_field(msg, "tool_call_id")))
        return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
    if (role == 4 && v->type != JSON_STRING)
        return gw_wrong_type(ae, param, "a string", v);
    snprintf(param, sizeof param, "messages[%zu].content", m);
    if (!(v = gw_field(msg, "content"))) {
        if (calls && calls->n)
            return 0;
        return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s': expected a string or an array of text parts.", param);
    }
    if (v->type == JSON_ARRAY)
        return check_parts(v, m, ae);
    return v->type == JSON_STRING ? 0 : gw_wrong_type(ae, param, "a string or an array of parts", v);
}

int gw_check_messages(const struct json *body, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, "messages");
    int rc = 0;
    if (!v)
        return gw_api_error_set(ae, 400, "missing_required_parameter", "messages", "Missing required parameter: 'messages'.");
    if (v->type != JSON_ARRAY)
        return gw_wrong_type(ae, "messages", "an array of objects", v);
    if (!v->n)
        return gw_api_error_set(ae, 400, "empty_array", "messages", "Invalid 'messages': empty array. Expected an array with at least one message.");
    for (size_t i = 0; i < v->n && !rc; i++)
        rc = check_message(v->items[i], i, ae);
    return rc;
}

/* How much the model should reason: an effort, where "none" means not at all, or a switch. */
static int get_reasoning(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    static const char words[] = "none minimal low medium high xhigh max";
    const struct json *v = gw_field(body, "reasoning_effort");
    bool on = false;
    int rc;
    if (v && v->type != JSON_STRING)
        return gw_wrong_type(ae, "reasoning_effort", "a string", v);
    if (v && !word_in(v, words))
        return gw_api_error_set(ae, 400, "invalid_value", "reasoning_effort", "Invalid value: '%.40s'. Supported values are: 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' and 'max'.", v->s);
    if (v && json_eq(v, "none"))
        r->think = GW_THINK_OFF;
    else if (v)
        r->effort = v->s;
    if (v)
        r->think_param = "reasoning_effort";
    if (!gw_field(body, "enable_thinking"))
        return 0;
    if ((rc = gw_get_bool(body, "enable_thinking", "enable_thinking", &on, ae)))
        return rc;
    r->think = on ? GW_THINK_ON : GW_THINK_OFF;
    r->think_param = "enable_thinking";
    return 0;
}

/* ---- the whole --------------------------------------------------------------------------------------------- */

static int get_logprobs(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    int64_t top = 0;
    bool given;
    int rc;
    if ((rc = gw_get_bool(body, "logprobs", "logprobs", &r->logprobs, ae)) || (rc = gw_get_int(body, "top_logprobs", 0, ENG_TOP_MAX, &top, &given, ae)))
        return rc;
    if (top && !r->logprobs)
        return gw_api_error_set(ae, 400, "invalid_value", "top_logprobs", "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.");
    r->top_logprobs = (uint32_t)top;
    return 0;
}

int gw_openai_parse_chat(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae)
{
    struct json *tree = NULL;
    struct eng_sampling defaults = r->sampling;
    int rc;

    memset(r, 0, sizeof *r);
    r->sampling = defaults;
    r->n_prompts = 1;
    if ((rc = gw_parse_body(body, n, a, &tree, ae)))
        return rc;
    r->body = tree;
    if ((rc = gw_get_model(tree, &r->model, ae)) || (rc = gw_check_messages(tree, ae)) || (rc = gw_get_stream(r, tree, ae)) ||
        (rc = gw_get_lengths(r, tree, ae)) || (rc = gw_get_sampling(r, tree, ae)) || (rc = gw_get_stops(r, tree, "stop", a, ae)) ||
        (rc = gw_get_bias(r, tree, a, ae)) || (rc = gw_get_n(r, tree, ae)) || (rc = get_logprobs(r, tree, ae)) || (rc = gw_structured_read(&r->structured, tree, a, ae)) ||
        (rc = gw_tools_read(&r->tools, tree, a, ae)) || (rc = get_reasoning(r, tree, ae)))
        return rc;
    return gw_check_tables(tree, true, ae);
}
