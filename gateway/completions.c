/* POST /v1/completions: a prompt as it is, without a template. Source: OpenAI's API reference, completions. */
#include <stdio.h>
#include <string.h>

#include "gateway/api.h"
#include "gateway/fields.h"
#include "gateway/openai_out.h"

/* ---- the request ------------------------------------------------------------------------------------------- */

static int check_ids(const struct json *v, const char *param, struct gw_api_error *ae)
{
    int64_t id;
    for (size_t i = 0; i < v->n; i++)
        if (!json_int(v->items[i], &id) || id < 0 || id > INT32_MAX)
            return gw_api_error_set(ae, 400, "invalid_value", param, "Invalid '%s': expected token ids, but entry %zu is none.", param, i);
    return 0;
}

/* A string, token ids, an array of strings, or an array of arrays of token ids. */
static int get_prompts(struct gw_chat_req *r, const struct json *body, struct arena *a, struct gw_api_error *ae)
{
    const struct json *v = gw_field(body, "prompt");
    int rc = 0;
    if (!v)
        return gw_api_error_set(ae, 400, "missing_required_parameter", "prompt", "Missing required parameter: 'prompt'.");
    if (v->type != JSON_STRING && v->type != JSON_ARRAY)
        return gw_wrong_type(ae, "prompt", "a string, an array of strings, or arrays of token ids", v);
    if (!v->n)
        return gw_api_error_set(ae, 400, v->type == JSON_ARRAY ? "empty_array" : "invalid_value", "prompt", "Invalid 'prompt': it is empty.");
    bool many = v->type == JSON_ARRAY && v->items[0]->type != JSON_NUMBER;
    r->n_prompts = many ? v->n > GW_CHOICES_MAX ? GW_CHOICES_MAX + 1 : (uint32_t)v->n : 1;
    if (r->n_prompts > GW_CHOICES_MAX || r->n_prompts * r->n > GW_CHOICES_MAX)
        return gw_api_error_set(ae, 400, "array_above_max_length", "prompt", "Invalid 'prompt': %zu prompts times n=%u are more than the %d answers of a request.",
                                many ? v->n : 1, r->n, GW_CHOICES_MAX);
    if (!(r->prompts = ARENA_ARRAY(a, const struct json *, r->n_prompts)))
        return gw_api_error_set(ae, 503, NULL, NULL, "Out of memory while reading the request.");
    for (uint32_t i = 0; i < r->n_prompts && !rc; i++) {
        char param[32] = "prompt";
        const struct json *p = r->prompts[i] = many ? v->items[i] : v;
        if (many)
            snprintf(param, sizeof param, "prompt[%u]", i);
        if (p->type == r->prompts[0]->type && p->type == JSON_ARRAY && p->n)
            rc = check_ids(p, param, ae);
        else if (p->type != JSON_STRING || !p->n || p->type != r->prompts[0]->type)
            rc = gw_api_error_set(ae, 400, "invalid_type", param, "Invalid type for '%s': expected strings that are not empty, or arrays of token ids.", param);
    }
    return rc;
}

int gw_openai_parse_completion(struct gw_chat_req *r, const char *body, size_t n, struct arena *a, struct gw_api_error *ae)
{
    struct json *tree = NULL;
    struct eng_sampling defaults = r->sampling;
    int64_t top = 0;
    bool given;
    int rc;

    memset(r, 0, sizeof *r);
    r->sampling = defaults;
    if ((rc = gw_parse_body(body, n, a, &tree, ae)))
        return rc;
    r->body = tree;
    if ((rc = gw_get_model(tree, &r->model, ae)) || (rc = gw_get_n(r, tree, ae)) || (rc = get_prompts(r, tree, a, ae)) || (rc = gw_get_stream(r, tree, ae)) ||
        (rc = gw_get_lengths(r, tree, ae)) || (rc = gw_get_sampling(r, tree, ae)) || (rc = gw_get_stops(r, tree, "stop", a, ae)) ||
        (rc = gw_get_bias(r, tree, a, ae)) || (rc = gw_get_bool(tree, "echo", "echo", &r->echo, ae)) ||
        (rc = gw_get_int(tree, "logprobs", 0, ENG_TOP_MAX, &top, &r->logprobs, ae)) || (rc = gw_structured_read(&r->structured, tree, a, ae)) || (rc = gw_check_tables(tree, false, ae)))
        return rc;
    r->top_logprobs = (uint32_t)top;
    if (r->echo && r->logprobs)
        return gw_api_error_set(ae, 400, "unsupported_value", "logprobs", "Unsupported value: 'logprobs' of an echoed prompt are not supported by this server.");
    if (!gw_field(tree, "max_tokens") && !gw_field(tree, "max_completion_tokens"))
        r->max_tokens = 16; /* OpenAI's default here */
    if (gw_get_int(tree, "min_tokens", 0, UINT32_MAX, &top, &given, ae) || (given && top > r->max_tokens))
        return gw_api_error_set(ae, 400, "invalid_value", "min_tokens", "Invalid 'min_tokens': it is more than the %u tokens asked for at most.", r->max_tokens);
    return 0;
}

/* ---- the answer -------------------------------------------------------------------------------------------- */

static void put_choice(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    buf_str(b, "{\"text\":");
    json_put_str(b, p->n ? p->part->s : "", p->n ? p->part->n : 0); /* no format is read: one part or none */
    buf_printf(b, ",\"index\":%u,\"logprobs\":", p->index);
    if (h->logprobs)
        gw_lp_put_completion(b, p->lp, h->tok, p->n_lp);
    else
        buf_str(b, "null");
    if (p->ended)
        buf_printf(b, ",\"finish_reason\":\"%s\"}", gw_out_finish_reason(p->finish));
    else
        buf_str(b, ",\"finish_reason\":null}");
}

static void piece(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    if (!p->n && !p->n_lp && !p->ended)
        return;
    buf_str(b, "data: ");
    gw_out_head(b, h, "text_completion");
    buf_str(b, ",\"choices\":[");
    put_choice(b, h, p);
    buf_str(b, h->include_usage ? "],\"usage\":null}\n\n" : "]}\n\n");
}

static void end(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *last, const struct eng_usage *u)
{
    (void)last;
    if (h->include_usage) {
        buf_str(b, "data: ");
        gw_out_head(b, h, "text_completion");
        buf_str(b, ",\"choices\":[],");
        gw_out_usage(b, u);
        buf_str(b, "}\n\n");
    }
    buf_str(b, "data: [DONE]\n\n");
}

static void whole(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p, size_t n, const struct eng_usage *u)
{
    gw_out_head(b, h, "text_completion");
    buf_str(b, ",\"choices\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_char(b, ',');
        put_choice(b, h, &p[i]);
    }
    buf_str(b, "],");
    gw_out_usage(b, u);
    buf_char(b, '}');
}

const struct gw_api gw_api_completions = {.route = GW_ROUTE_COMPLETIONS, .id_prefix = "cmpl-", .heartbeat = ": keep-alive\n\n",
                                          .parse = gw_openai_parse_completion, .piece = piece, .end = end, .error = gw_out_chunk_error, .whole = whole};
