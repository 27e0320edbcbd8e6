#include "gateway/openai_out.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"

void gw_out_id(char id[48], const char *prefix)
{
    uint8_t r[14];
    size_t n = strlen(prefix);
    if (!hash_random(r, sizeof r))
        memset(r, 0, sizeof r);
    memcpy(id, prefix, n + 1);
    hash_hex(r, sizeof r, id + n);
}

const char *gw_out_finish_reason(enum eng_finish f)
{
    return f == ENG_STOP ? "stop" : f == ENG_LENGTH ? "length" : NULL;
}

void gw_out_usage(struct buf *b, const struct eng_usage *u)
{
    double prefill = (double)u->prefill_ns * 1e-9, decode = (double)u->decode_ns * 1e-9;
    uint32_t computed = u->prompt_tokens > u->cached_tokens ? u->prompt_tokens - u->cached_tokens : 0;
    buf_printf(b, "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
               u->prompt_tokens, u->output_tokens, (unsigned long long)u->prompt_tokens + u->output_tokens, u->cached_tokens);
    buf_printf(b, ",\"timings\":{\"queue_ms\":%.3f,\"cache_n\":%u,\"prompt_n\":%u,\"prompt_ms\":%.3f,\"prompt_per_second\":%.3f,\"predicted_n\":%u,"
               "\"predicted_ms\":%.3f,\"predicted_per_second\":%.3f,\"draft_n\":%u,\"draft_n_accepted\":%u}", (double)u->queue_ns * 1e-6, u->cached_tokens, computed, prefill * 1e3,
               prefill > 0 ? computed / prefill : 0, u->output_tokens, decode * 1e3, decode > 0 ? u->output_tokens / decode : 0, u->draft_tokens, u->draft_accepted);
}

void gw_out_head(struct buf *b, const struct gw_answer_head *h, const char *object)
{
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", h->id, object, (long long)h->created);
    json_put_cstr(b, h->model);
    buf_str(b, ",\"system_fingerprint\":");
    json_put_cstr(b, h->fingerprint);
}

/* ---- chat -------------------------------------------------------------------------------------------------- */

static void begin_chunk(struct buf *b, const struct gw_answer_head *h, uint32_t index)
{
    buf_str(b, "data: ");
    gw_out_head(b, h, "chat.completion.chunk");
    buf_printf(b, ",\"choices\":[{\"index\":%u,\"delta\":", index);
}

static void end_chunk(struct buf *b, const struct gw_answer_head *h)
{
    buf_str(b, h->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

static void put_logprobs(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    buf_str(b, ",\"logprobs\":");
    if (h->logprobs)
        gw_lp_put_chat(b, p->lp, h->tok, p->n_lp);
    else
        buf_str(b, "null");
}

static void piece(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    if (p->first) {
        begin_chunk(b, h, p->index);
        buf_str(b, "{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
        end_chunk(b, h);
    }
    if (p->n || p->n_lp) {
        begin_chunk(b, h, p->index);
        buf_str(b, "{\"content\":");
        json_put_str(b, p->n ? p->text : "", p->n);
        buf_char(b, '}');
        put_logprobs(b, h, p);
        buf_str(b, ",\"finish_reason\":null}]");
        end_chunk(b, h);
    }
    if (p->ended) {
        begin_chunk(b, h, p->index);
        buf_printf(b, "{},\"logprobs\":null,\"finish_reason\":\"%s\"}]", gw_out_finish_reason(p->finish));
        end_chunk(b, h);
    }
}

static void end(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *last, const struct eng_usage *u)
{
    (void)last;
    if (h->include_usage) {
        buf_str(b, "data: ");
        gw_out_head(b, h, "chat.completion.chunk");
        buf_str(b, ",\"choices\":[],");
        gw_out_usage(b, u);
        buf_str(b, "}\n\n");
    }
    buf_str(b, "data: [DONE]\n\n");
}

static void whole(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p, size_t n, const struct eng_usage *u)
{
    gw_out_head(b, h, "chat.completion");
    buf_str(b, ",\"choices\":[");
    for (size_t i = 0; i < n; i++) {
        buf_printf(b, "%s{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", p[i].index);
        json_put_str(b, p[i].n ? p[i].text : "", p[i].n);
        buf_str(b, ",\"refusal\":null}");
        put_logprobs(b, h, &p[i]);
        buf_printf(b, ",\"finish_reason\":\"%s\"}", gw_out_finish_reason(p[i].finish));
    }
    buf_str(b, "],");
    gw_out_usage(b, u);
    buf_char(b, '}');
}

const struct gw_api gw_api_chat = {.route = GW_ROUTE_CHAT, .id_prefix = "chatcmpl-", .heartbeat = ": keep-alive\n\n", .parse = gw_openai_parse_chat,
                                   .piece = piece, .end = end, .error = gw_out_chunk_error, .whole = whole};

/* ---- errors, models ---------------------------------------------------------------------------------------- */

void gw_out_chunk_error(struct buf *b, const struct gw_api_error *ae)
{
    buf_str(b, "data: ");
    gw_out_error(b, ae);
    buf_str(b, "\n\ndata: [DONE]\n\n");
}

void gw_out_error(struct buf *b, const struct gw_api_error *ae)
{
    buf_str(b, "{\"error\":{\"message\":");
    json_put_cstr(b, ae->msg);
    buf_str(b, ",\"type\":");
    json_put_cstr(b, ae->type);
    buf_str(b, ",\"param\":");
    json_put_cstr(b, *ae->param ? ae->param : NULL);
    buf_str(b, ",\"code\":");
    json_put_cstr(b, ae->code);
    buf_str(b, "}}");
}

void gw_out_model(struct buf *b, const char *id, int64_t created, uint32_t ctx)
{
    buf_str(b, "{\"id\":");
    json_put_cstr(b, id);
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"sluice\",\"max_model_len\":%u}", (long long)created, ctx);
}
