/* Values of request bodies, and the groups of fields that every API has in some spelling. */
#include "gateway/fields.h"

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

const char *const gw_json_type_names[] = {"null", "a boolean", "a number", "a string", "an array", "an object"};

int gw_wrong_type(struct gw_api_error *ae, const char *param, const char *expected, const struct json *v)
{
    return gw_api_error_set(ae, 400, "invalid_type", param, "Invalid type for '%s': expected %s, but got %s instead.", param, expected, gw_json_type_names[v->type]);
}

const struct json *gw_field(const struct json *obj, const char *key) /* null is absent */
{
    const struct json *v = json_get(obj, key);
    return v && v->type != JSON_NULL ? v : NULL;
}

int gw_get_bool(const struct json *obj, const char *key, const char *param, bool *out, struct gw_api_error *ae)
{
    const struct json *v = gw_field(obj, key);
    if (!v)
        return 0;
    if (v->type != JSON_BOOL)
        return gw_wrong_type(ae, param, "a boolean", v);
    *out = v->b;
    return 0;
}

int gw_get_int(const struct json *obj, const char *key, int64_t min, int64_t max, int64_t *out, bool *given, struct gw_api_error *ae)
{
    const struct json *v = gw_field(obj, key);
    int64_t x;
    *given = false;
    if (!v)
        return 0;
    if (!json_int(v, &x)) {
        if (v->type != JSON_NUMBER)
            return gw_wrong_type(ae, key, "an integer", v);
        return gw_api_error_set(ae, 400, "invalid_type", key, "Invalid type for '%s': expected an integer that fits 64 bits, but got %.40s.", key, v->s);
    }
    if (x < min || x > max)
        return gw_api_error_set(ae, 400, "invalid_value", key, "Invalid '%s': expected a value from %lld to %lld, but got %lld.", key, (long long)min, (long long)max, (long long)x);
    *out = x;
    *given = true;
    return 0;
}

int gw_get_float(const struct json *obj, const char *key, double min, double max, float *out, struct gw_api_error *ae)
{
    const struct json *v = gw_field(obj, key);
    double x;
    if (!v)
        return 0;
    if (v->type != JSON_NUMBER)
        return gw_wrong_type(ae, key, "a number", v);
    if (!json_num(v, &x) || !(x >= min && x <= max))
        return gw_api_error_set(ae, 400, "invalid_value", key, "Invalid '%s': expected a value from %g to %g, but got %.40s.", key, min, max, v->s);
    *out = (float)x;
    return 0;
}

/* ---- the rest --------------------------------------------------------------------------------------------- */

static int add_stop(struct gw_chat_req *r, const struct json *s, const char *param, struct gw_api_error *ae)
{
    if (s->type != JSON_STRING)
        return gw_wrong_type(ae, param, "a string", s);
    if (!s->n || s->n > GW_STOP_BYTES_MAX)
        return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid '%s': expected 1 to %d bytes, but got %zu.", param, GW_STOP_BYTES_MAX, s->n);
    r->stops[r->n_stops] = s->s;
    r->stop_lens[r->n_stops++] = (uint32_t)s->n;
    return 0;
}

int gw_get_stops(struct gw_chat_req *r, const struct json *body, const char *key, struct arena *a, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, key);
    char param[48];
    int rc = 0;
    if (!v)
        return 0;
    if (v->type != JSON_STRING && v->type != JSON_ARRAY)
        return gw_wrong_type(ae, key, "a string or an array of strings", v);
    if (v->type == JSON_ARRAY && v->n > GW_STOPS_MAX)
        return gw_api_error_set(ae, 400, "array_above_max_length", key, "Invalid '%s': expected at most %d strings, but got %zu.", key, GW_STOPS_MAX, v->n);
    r->stops = ARENA_ARRAY(a, const char *, GW_STOPS_MAX);
    r->stop_lens = ARENA_ARRAY(a, uint32_t, GW_STOPS_MAX);
    if (!r->stops || !r->stop_lens)
        return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory while reading the request.");
    if (v->type == JSON_STRING)
        return add_stop(r, v, key, ae);
    for (size_t i = 0; i < v->n && !rc; i++) {
        snprintf(param, sizeof param, "%s[%zu]", key, i);
        rc = add_stop(r, v->items[i], param, ae);
    }
    return rc;
}

int gw_get_lengths(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    int64_t old = 0, now = 0, min = 0;
    bool has_old, has_now, has_min;
    int rc;
    if ((rc = gw_get_int(body, "max_tokens", 1, UINT32_MAX, &old, &has_old, ae)) ||
        (rc = gw_get_int(body, "max_completion_tokens", 1, UINT32_MAX, &now, &has_now, ae)) ||
        (rc = gw_get_int(body, "min_tokens", 0, UINT32_MAX, &min, &has_min, ae)))
        return rc;
    if (has_old && has_now && old != now)
        return gw_api_error_set(ae, 400, "invalid_value", "max_tokens", "'max_tokens' (%lld) and 'max_completion_tokens' (%lld) were both given and differ.", (long long)old, (long long)now);
    r->max_tokens = (uint32_t)(has_now ? now : has_old ? old : 0);
    r->min_tokens = (uint32_t)min;
    if (r->max_tokens && r->min_tokens > r->max_tokens)
        return gw_api_error_set(ae, 400, "invalid_value", "min_tokens", "Invalid 'min_tokens': %u is more than the %u tokens asked for at most.", r->min_tokens, r->max_tokens);
    return gw_get_bool(body, "ignore_eos", "ignore_eos", &r->ignore_eos, ae);
}

int gw_get_sampling(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    int64_t top_k = 0, seed = 0;
    bool has_top_k, has_seed;
    int rc;
    if ((rc = gw_get_float(body, "temperature", 0, 2, &r->sampling.temperature, ae)) ||
        (rc = gw_get_float(body, "presence_penalty", -2, 2, &r->sampling.presence, ae)) ||
        (rc = gw_get_float(body, "frequency_penalty", -2, 2, &r->sampling.frequency, ae)) ||
        (rc = gw_get_float(body, "repetition_penalty", 0.01, 10, &r->sampling.repetition, ae)) ||
        (rc = gw_get_float(body, "top_p", 0, 1, &r->sampling.top_p, ae)) ||
        (rc = gw_get_float(body, "min_p", 0, 1, &r->sampling.min_p, ae)) ||
        (rc = gw_get_int(body, "top_k", -1, INT32_MAX, &top_k, &has_top_k, ae)) ||
        (rc = gw_get_int(body, "seed", INT64_MIN, INT64_MAX, &seed, &has_seed, ae)))
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

int gw_get_stream(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    const struct json *o;
    bool obfuscation = false;
    int rc = gw_get_bool(body, "stream", "stream", &r->stream, ae);
    if (rc || !(o = gw_field(body, "stream_options")))
        return rc;
    if (o->type != JSON_OBJECT)
        return gw_wrong_type(ae, "stream_options", "an object", o);
    if (!r->stream)
        return gw_api_error_set(ae, 400, "invalid_value", "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is enabled.");
    if ((rc = gw_get_bool(o, "include_usage", "stream_options.include_usage", &r->include_usage, ae)))
        return rc;
    return gw_get_bool(o, "include_obfuscation", "stream_options.include_obfuscation", &obfuscation, ae);
}

/* A map from a token's id, in decimal, to a number. */
int gw_get_bias(struct gw_chat_req *r, const struct json *body, struct arena *a, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, "logit_bias");
    char param[48];
    if (!v)
        return 0;
    if (v->type != JSON_OBJECT)
        return gw_wrong_type(ae, "logit_bias", "an object", v);
    if (v->n > ENG_BIAS_MAX)
        return gw_api_error_set(ae, 400, "invalid_value", "logit_bias", "Invalid 'logit_bias': expected at most %d tokens, but got %zu.", ENG_BIAS_MAX, v->n);
    struct eng_bias *bias = ARENA_ARRAY(a, struct eng_bias, v->n ? v->n : 1);
    if (!bias)
        return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory while reading the request.");
    for (size_t i = 0; i < v->n; i++) {
        const struct json_member *m = &v->members[i];
        uint64_t id = 0;
        double x;
        bool ok = m->key_len && m->key_len <= 9 && (m->key[0] != '0' || m->key_len == 1);
        for (size_t k = 0; ok && k < m->key_len; k++) {
            ok = m->key[k] >= '0' && m->key[k] <= '9';
            id = id * 10 + (uint64_t)(m->key[k] - '0');
        }
        if (!ok)
            return gw_api_error_set(ae, 400, "invalid_value", "logit_bias", "Invalid key in 'logit_bias': '%.40s'. Expected the id of a token.", m->key);
        snprintf(param, sizeof param, "logit_bias.%llu", (unsigned long long)id);
        if (m->value->type != JSON_NUMBER)
            return gw_wrong_type(ae, param, "a number", m->value);
        if (!json_num(m->value, &x) || !(x >= -100 && x <= 100))
            return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid '%s': expected a value from -100 to 100, but got %.40s.", param, m->value->s);
        bias[i] = (struct eng_bias){(int32_t)id, (float)x};
    }
    r->bias = bias;
    r->n_bias = (uint32_t)v->n;
    return 0;
}

int gw_get_n(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae)
{
    int64_t n = 1, best = 1;
    bool has_n, has_best;
    int rc;
    if ((rc = gw_get_int(body, "n", 1, GW_CHOICES_MAX, &n, &has_n, ae)) || (rc = gw_get_int(body, "best_of", 1, GW_CHOICES_MAX, &best, &has_best, ae)))
        return rc;
    if (has_best && best != n)
        return gw_api_error_set(ae, 400, "unsupported_value", "best_of", "Unsupported value: 'best_of' other than 'n' is not supported.");
    r->n = (uint32_t)n;
    return 0;
}

int gw_parse_body(const char *body, size_t n, struct arena *a, struct json **tree, struct gw_api_error *ae)
{
    struct err e;
    int rc = json_parse(tree, body, n, &json_strict, a, &e);
    if (rc == ERR_NOMEM && a->full) /* the request's doing: sent again it would end the same way */
        return gw_api_error_set(ae, 400, "prompt_too_large", NULL, "The JSON of your request needs more than the %zu bytes of memory that this server gives one request.",
                                a->bytes_max);
    if (rc == ERR_NOMEM)
        return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory while reading the request.");
    if (rc)
        return gw_api_error_set(ae, 400, NULL, NULL, "We could not parse the JSON body of your request: %s", e.msg);
    if ((*tree)->type != JSON_OBJECT)
        return gw_api_error_set(ae, 400, NULL, NULL, "The body of the request must be a JSON object, but it is %s.", gw_json_type_names[(*tree)->type]);
    return 0;
}

int gw_get_model(const struct json *body, const char **model, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, "model");
    if (!v)
        return gw_api_error_set(ae, 400, "missing_required_parameter", "model", "Missing required parameter: 'model'.");
    if (v->type != JSON_STRING)
        return gw_wrong_type(ae, "model", "a string", v);
    *model = v->s;
    return 0;
}
