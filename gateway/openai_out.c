#include "gateway/openai_out.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"

void gw_out_id(char id[40])
{
    uint8_t r[14];
    if (!hash_random(r, sizeof r))
        memset(r, 0, sizeof r);
    memcpy(id, "chatcmpl-", 9);
    hash_hex(r, sizeof r, id + 9);
}

const char *gw_out_finish_reason(enum eng_finish f)
{
    return f == ENG_STOP ? "stop" : f == ENG_LENGTH ? "length" : NULL;
}

static void put_usage(struct buf *b, const struct eng_usage *u)
{
    buf_printf(b, "{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%llu,\"prompt_tokens_details\":{\"cached_tokens\":%u}}",
               u->prompt_tokens, u->output_tokens, (unsigned long long)u->prompt_tokens + u->output_tokens, u->cached_tokens);
}

static void put_head(struct buf *b, const struct gw_answer_head *h, const char *object)
{
    buf_printf(b, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", h->id, object, (long long)h->created);
    json_put_cstr(b, h->model);
    buf_str(b, ",\"system_fingerprint\":");
    json_put_cstr(b, h->fingerprint);
}

static void begin_chunk(struct buf *b, const struct gw_answer_head *h)
{
    buf_str(b, "data: ");
    put_head(b, h, "chat.completion.chunk");
}

static void end_chunk(struct buf *b, const struct gw_answer_head *h)
{
    buf_str(b, h->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

void gw_out_chunk_role(struct buf *b, const struct gw_answer_head *h)
{
    begin_chunk(b, h);
    buf_str(b, ",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
    end_chunk(b, h);
}

void gw_out_chunk_text(struct buf *b, const struct gw_answer_head *h, const char *text, size_t n)
{
    begin_chunk(b, h);
    buf_str(b, ",\"choices\":[{\"index\":0,\"delta\":{\"content\":");
    json_put_str(b, text, n);
    buf_str(b, "},\"logprobs\":null,\"finish_reason\":null}]");
    end_chunk(b, h);
}

void gw_out_chunk_end(struct buf *b, const struct gw_answer_head *h, const char *finish_reason, const struct eng_usage *u)
{
    begin_chunk(b, h);
    buf_printf(b, ",\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"%s\"}]", finish_reason);
    end_chunk(b, h);
    if (h->include_usage) {
        begin_chunk(b, h);
        buf_str(b, ",\"choices\":[],\"usage\":");
        put_usage(b, u);
        buf_str(b, "}\n\n");
    }
    buf_str(b, "data: [DONE]\n\n");
}

void gw_out_chunk_error(struct buf *b, const struct gw_api_error *ae)
{
    buf_str(b, "data: ");
    gw_out_error(b, ae);
    buf_str(b, "\n\ndata: [DONE]\n\n");
}

void gw_out_completion(struct buf *b, const struct gw_answer_head *h, const char *text, size_t n, const char *finish_reason, const struct eng_usage *u)
{
    put_head(b, h, "chat.completion");
    buf_str(b, ",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":");
    json_put_str(b, text, n);
    buf_printf(b, ",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"%s\"}],\"usage\":", finish_reason);
    put_usage(b, u);
    buf_char(b, '}');
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
