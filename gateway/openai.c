/* Fields fall into three groups: read here; harmless and only type-checked (the answer is the same without them); refused
 * unless they hold the value that means "off" (the answer would differ). The last two are tables. */
#include "gateway/openai.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *type_of_status(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 429: return "rate_limit_error";
    case 500: return "server_error";
    case 503: return "service_unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

int gw_api_error_set(struct gw_api_error *ae, int status, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;
    memset(ae, 0, sizeof *ae);
    ae->status = status;
    ae->type = type_of_status(status);
    ae->code = code;
    snprintf(ae->param, sizeof ae->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(ae->msg, sizeof ae->msg, fmt, ap);
    va_end(ap);
    return status;
}

/* ---- values ----------------------------------------------------------------------------------------------- */

static const char *const type_names[] = {"null", "a boolean", "a number", "a string", "an array", "an object"};

static int wrong_type(struct gw_api_error *ae, const char *param, const char *expected, const struct json *v)
{
    return gw_api_error_set(ae, 400, "invalid_type", param, "Invalid type for '%s': expected %s, but got %s instead.", param, expected, type_names[v->type]);
}

static const struct json *field(const struct json *obj, const char *key) /* null is absent */
{
    const struct json *v = json_get(obj, key);
    return v && v->type != JSON_NULL ? v : NULL;
}

static int get_bool(const struct json *obj, const char *key, const char *param, bool *out, struct gw_api_error *ae)
{
    const struct json *v = field(obj, key);
    if (!v)
        return 0;
    if (v->type != JSON_BOOL)
        return wrong_type(ae, param, "a boolean", v);
    *out = v->b;
    return 0;
}

static int get_int(const struct json *obj, const char *key, int64_t min, int64_t max, int64_t *out, bool *given, struct gw_api_error *ae)
{
    const struct json *v = field(obj, key);
    int64_t x;
    *given = false;
    if (!v)
        return 0;
    if (!json_int(v, &x)) {
        if (v->type != JSON_NUMBER)
            return wrong_type(ae, key, "an integer", v);
        return gw_api_error_set(ae, 400, "invalid_type", key, "Invalid type for '%s': expected an integer that fits 64 bits, but got %.40s.", key, v->s);
    }
    if (x < min || x > max)
        return gw_api_error_set(ae, 400, "invalid_value", key, "Invalid '%s': expected a value from %lld to %lld, but got %lld.", key, (long long)min, (long long)max, (long long)x);
    *out = x;
    *given = true;
    return 0;
}

static int get_float(const struct json *obj, const char *key, double min, double max, float *out, struct gw_api_error *ae)
{
    const struct json *v = field(obj, key);
    double x;
    if (!v)
        return 0;
    if (v->type != JSON_NUMBER)
        return wrong_type(ae, key, "a number", v);
    if (!json_num(v, &x) || !(x >= min && x <= max))
        return gw_api_error_set(ae, 400, "invalid_value", key, "Invalid '%s': expected a value from %g to %g, but got %.40s.", key, min, max, v->s);
    *out = (float)x;
    return 0;
}

/* ---- fields that are only checked, and fields that are refused -------------------------------------------- */

static const struct { const char *name; enum json_type type; } harmless[] = {
    {"user", JSON_STRING},           {"safety_identifier", JSON_STRING}, {"metadata", JSON_OBJECT},
    {"store", JSON_BOOL},            {"service_tier", JSON_STRING},      {"prompt_cache_key", JSON_STRING},
    {"prompt_cache_retention", JSON_STRING}, {"parallel_tool_calls", JSON_BOOL}, {"prediction", JSON_OBJECT},
};

enum neutral { NEUTRAL_NEVER, NEUTRAL_FALSE, NEUTRAL_ZERO, NEUTRAL_ONE, NEUTRAL_EMPTY, NEUTRAL_WORD, NEUTRAL_TYPE_TEXT, NEUTRAL_ONLY_TEXT };
static const struct { const char *name; enum neutral off; const char *word; } refused[] = {
    {"logprobs", NEUTRAL_FALSE, NULL},         {"top_logprobs", NEUTRAL_ZERO, NULL},      {"tools", NEUTRAL_EMPTY, NULL},
    {"functions", NEUTRAL_EMPTY, NULL},        {"function_call", NEUTRAL_WORD, "none"},   {"tool_choice", NEUTRAL_WORD, "none auto"},
    {"response_format", NEUTRAL_TYPE_TEXT, NULL}, {"logit_bias", NEUTRAL_EMPTY, NULL},    {"modalities", NEUTRAL_ONLY_TEXT, NULL},
    {"presence_penalty", NEUTRAL_ZERO, NULL},  {"frequency_penalty", NEUTRAL_ZERO, NULL}, {"repetition_penalty", NEUTRAL_ONE, NULL},
    {"best_of", NEUTRAL_ONE, NULL},            {"n", NEUTRAL_ONE, NULL},                  {"audio", NEUTRAL_NEVER, NULL},
    {"web_search_options", NEUTRAL_NEVER, NULL}, {"reasoning_effort", NEUTRAL_WORD, "none"}, {"verbosity", NEUTRAL_WORD, "medium"},
    {"echo", NEUTRAL_FALSE, NULL},             {"prompt_logprobs", NEUTRAL_NEVER, NULL},  {"guided_json", NEUTRAL_NEVER, NULL},
    {"guided_regex", NEUTRAL_NEVER, NULL},     {"guided_grammar", NEUTRAL_NEVER, NULL},   {"grammar", NEUTRAL_NEVER, NULL},
    {"structured_outputs", NEUTRAL_NEVER, NULL}, {"continue_final_message", NEUTRAL_FALSE, NULL},
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
    double x;
    switch (off) {
    case NEUTRAL_NEVER: return false;
    case NEUTRAL_FALSE: return v->type == JSON_BOOL && !v->b;
    case NEUTRAL_ZERO: return json_num(v, &x) && x == 0;
    case NEUTRAL_ONE: return json_num(v, &x) && x == 1;
    case NEUTRAL_EMPTY: return (v->type == JSON_ARRAY || v->type == JSON_OBJECT) && v->n == 0;
    case NEUTRAL_WORD: return word_in(v, word);
    case NEUTRAL_TYPE_TEXT: return json_eq(json_get(v, "type"), "text");
    case NEUTRAL_ONLY_TEXT: return v->type == JSON_ARRAY && v->n == 1 && json_eq(v->items[0], "text");
    }
    return false;
}

static int check_tables(const struct json *body, struct gw_api_error *ae)
{
    const struct json *v;
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++)
        if ((v = field(body, harmless[i].name)) && v->type != harmless[i].type)
            return wrong_type(ae, harmless[i].name, type_names[harmless[i].type], v);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (!(v = field(body, refused[i].name)) || is_off(v, refused[i].off, refused[i].word))
            continue;
        if (!strcmp(refused[i].name, "n")) {
            if (v->type != JSON_NUMBER)
                return wrong_type(ae, "n", "an integer", v);
            return gw_api_error_set(ae, 400, "unsupported_value", "n", "Unsupported value: 'n' must be 1 (one choice per request) on this server, but got %.40s.", v->s);
        }
        return gw_api_error_set(ae, 400, "unsupported_parameter", refused[i].name, "Unsupported parameter: '%s' with this value is not supported by this server.", refused[i].name);
    }
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
            return wrong_type(ae, param, "an object", part);
        snprintf(param, sizeof param, "messages[%zu].content[%zu].type", m, i);
        if (!(type = field(part, "type")))
            return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
        if (type->type != JSON_STRING)
            return wrong_type(ae, param, "a string", type);
        if (!json_eq(type, "text"))
            return gw_api_error_set(ae, 400, json_eq(type, "image_url") ? "unsupported_value" : "invalid_value", param,
                                    "Invalid value: '%.60s'. This model takes parts of type 'text' only.", type->s);
        snprintf(param, sizeof param, "messages[%zu].content[%zu].text", m, i);
        if (!(text = field(part, "text")))
            return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
        if (text->type != JSON_STRING)
            return wrong_type(ae, param, "a string", text);
    }
    return 0;
}

/* An earlier turn's calls: the template shows them to the model, so their shape must hold. */
static int check_tool_calls(const struct json *calls, size_t m, struct gw_api_error *ae)
{
    char param[96];
    snprintf(param, sizeof param, "messages[%zu].tool_calls", m);
    if (calls->type != JSON_ARRAY)
        return wrong_type(ae, param, "an array", calls);
    for (size_t i = 0; i < calls->n; i++) {
        const struct json *f = field(calls->items[i], "function");
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
        return wrong_type(ae, param, "an object", msg);
    snprintf(param, sizeof param, "messages[%zu].role", m);
    if (!(v = field(msg, "role")))
        return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s'.", param);
    if (v->type != JSON_STRING)
        return wrong_type(ae, param, "a string", v);
    while (role < 5 && !json_eq(v, roles[role]))
        role++;
    if (role == 5)
        return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid value: '%.60s'. Supported values are: 'system', 'developer', 'user', 'assistant' and 'tool'.", v->s);
    snprintf(param, sizeof param, "messages[%zu].name", m);
    if ((v = field(msg, "name")) && v->type != JSON_STRING)
        return wrong_type(ae, param, "a string", v);
    if (role == 3 && (calls = field(msg, "tool_calls")) && (rc = check_tool_calls(calls, m, ae)))
        return rc;
    snprintf(param, sizeof param, "messages[%zu].content", m);
    if (!(v = field(msg, "content"))) {
        if (calls && calls->n)
            return 0;
        return gw_api_error_set(ae, 400, "missing_required_parameter", param, "Missing required parameter: '%s': expected a string or an array of text parts.", param);
    }
    if (v->type == JSON_ARRAY)
        return check_parts(v, m, ae);
    return v->type == JSON_STRING ? 0 : wrong_type(ae, param, "a string or an array of parts", v);
}

static int check_messages(const struct json *body, struct gw_api_error *ae)
{
    const struct json *v = field(body, "messages");
    int rc = 0;
    if (!v)
        return gw_api_error_set(ae, 400, "missing_required_parameter", "messages", "Missing required parameter: 'messages'.");
    if (v->type != JSON_ARRAY)
        return wrong_type(ae, "messages", "an array of objects", v);
    if (!v->n)
        return gw_api_error_set(ae, 400, "empty_array", "messages", "Invalid 'messages': empty array. Expected an array with at least one message.");
    for (size_t i = 0; i < v->n && !rc; i++)
        rc = check_message(v->items[i], i, ae);
    return rc;
}

/* ---- the rest --------------------------------------------------------------------------------------------- */

static int add_stop(struct gw_chat_req *r, const struct json *s, const char *param, struct gw_api_error *ae)
{
    if (s->type != JSON_STRING)
        return wrong_type(ae, param, "a string", s);
    if (!s->n || s->n > GW_STOP_BYTES_MAX)
        return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid '%s': expected 1 to %d bytes, but got %zu.", param, GW_STOP_BYTES_MAX, s->n);
    r->stops[r->n_stops] = s->s;
    r->stop_lens[r->n_stops++] = (uint32_t)s->n;
    return 0;
}

static int get_stops(struct gw_chat_req *r, const struct json *body, struct arena *a, struct gw_api_error *ae)
{
    const struct json *v = field(body, "stop");
    char param[32];
    int rc = 0;
    if (!v)
        return 0;
    if (v->type != JSON_STRING && v->type != JSON_ARRAY)
        return wrong_type(ae, "stop", "a string or an array of strings", v);
    if (v->type == JSON_ARRAY && v->n > GW_STOPS_MAX)
        return gw_api_error_set(ae, 400, "array_above_max_length", "stop", "Invalid 'stop': expected at most %d strings, but got %zu.", GW_STOPS_MAX, v->n);
    r->stops = ARENA_ARRAY(a, const char *, GW_STOPS_MAX);
    r->stop_lens = ARENA_ARRAY(a, uint32_t, GW_STOPS_MAX);
    if (!r->stops || !r->stop_lens)
        return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory while reading the request.");
    if (v->type == JSON_STRING)
        return add_stop(r, v, "stop", ae);
    for (size_t i = 0; i < v->n && !rc; i++) {
        snprintf(param, sizeof param, "stop[%zu]", i);
        rc = add_stop(r, v->items[i], param, ae);
    }
    return rc;
}

static int get_lengths(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    int64_t old = 0, now = 0, min = 0;
    bool has_old, has_now, has_min;
    int rc;
    if ((rc = get_int(body, "max_tokens", 1, UINT32_MAX, &old, &has_old, ae)) ||
        (rc = get_int(body, "max_completion_tokens", 1, UINT32_MAX, &now, &has_now, ae)) ||
        (rc = get_int(body, "min_tokens", 0, UINT32_MAX, &min, &has_min, ae)))
        return rc;
    if (has_old && has_now && old != now)
        return gw_api_error_set(ae, 400, "invalid_value", "max_tokens", "'max_tokens' (%lld) and 'max_completion_tokens' (%lld) were both given and differ.", (long long)old, (long long)now);
    r->max_tokens = (uint32_t)(has_now ? now : has_old ? old : 0);
    r->min_tokens = (uint32_t)min;
    if (r->max_tokens && r->min_tokens > r->max_tokens)
        return gw_api_error_set(ae, 400, "invalid_value", "min_tokens", "Invalid 'min_tokens': %u is more than the %u tokens asked for at most.", r->min_tokens, r->max_tokens);
    return get_bool(body, "ignore_eos", "ignore_eos", &r->ignore_eos, ae);
}

static int get_sampling(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    int64_t top_k = 0, seed = 0;
    bool has_top_k, has_seed;
    int rc;
    if ((rc = get_float(body, "temperature", 0, 2, &r->sampling.temperature, ae)) ||
        (rc = get_float(body, "top_p", 0, 1, &r->sampling.top_p, ae)) ||
        (rc = get_float(body, "min_p", 0, 1, &r->sampling.min_p, ae)) ||
        (rc = get_int(body, "top_k", -1, INT32_MAX, &top_k, &has_top_k, ae)) ||
        (rc = get_int(body, "seed", INT64_MIN, INT64_MAX, &seed, &has_seed, ae)))
        return rc;
    if (r->sampling.top_p <= 0)
        r->sampling.top_p = 1e-6f; /* 0 means the likeliest token alone; the engine wants a share above 0 */
    if (has_top_k)
        r->sampling.top_k = top_k < 0 ? 0 : (int32_t)top_k;
    r->seed_given = has_seed;
    if (has_seed)
        r->sampling.seed = (uint64_t)seed;
    return 0;
}

static int get_stream(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    const struct json *o;
    bool obfuscation = false;
    int rc = get_bool(body, "stream", "stream", &r->stream, ae);
    if (rc || !(o = field(body, "stream_options")))
        return rc;
    if (o->type != JSON_OBJECT)
        return wrong_type(ae, "stream_options", "an object", o);
    if (!r->stream)
        return gw_api_error_set(ae, 400, "invalid_value", "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled.");
    if ((rc = get_bool(o, "include_usage", "stream_options.include_usage", &r->include_usage, ae)))
        return rc;
    return get_bool(o, "include_obfuscation", "stream_options.include_obfuscation", &obfuscation, ae);
}

int gw_openai_parse_chat(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae)
{
    struct json *tree = NULL;
    const struct json *model;
    struct err e;
    struct eng_sampling defaults = r->sampling;
    int rc;

    memset(r, 0, sizeof *r);
    r->sampling = defaults;
    if ((rc = json_parse(&tree, body, n, &json_strict, a, &e))) {
        if (rc == ERR_NOMEM)
            return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory while reading the request.");
        return gw_api_error_set(ae, 400, NULL, NULL, "We could not parse the JSON body of your request: %s", e.msg);
    }
    if (tree->type != JSON_OBJECT)
        return gw_api_error_set(ae, 400, NULL, NULL, "The body of the request must be a JSON object, but it is %s.", type_names[tree->type]);
    r->body = tree;
    if (!(model = field(tree, "model")))
        return gw_api_error_set(ae, 400, "missing_required_parameter", "model", "Missing required parameter: 'model'.");
    if (model->type != JSON_STRING)
        return wrong_type(ae, "model", "a string", model);
    r->model = model->s;
    if ((rc = check_messages(tree, ae)) || (rc = get_stream(r, tree, ae)) || (rc = get_lengths(r, tree, ae)) ||
        (rc = get_sampling(r, tree, ae)) || (rc = get_stops(r, tree, a, ae)))
        return rc;
    return check_tables(tree, ae);
}
