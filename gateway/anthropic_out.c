/* Answers and errors in Anthropic's shapes. One text block, number 0. */
#include "gateway/anthropic.h"
#include "gateway/openai_out.h"

#include <string.h>

static void put_usage(struct buf *b, const struct eng_usage *u)
{
    uint32_t fresh = u->prompt_tokens > u->cached_tokens ? u->prompt_tokens - u->cached_tokens : 0;
    buf_printf(b, "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%u,\"output_tokens\":%u}", fresh,
               u->cached_tokens, u->output_tokens);
}

static void put_head(struct buf *b, const struct gw_answer_head *h)
{
    buf_printf(b, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", h->id);
    json_put_cstr(b, h->model);
}

static void put_stop(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    bool met = p->finish == ENG_STOP && p->stop >= 0 && h->stops;
    buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", met ? "stop_sequence" : p->finish == ENG_STOP ? "end_turn" : "max_tokens");
    json_put_cstr(b, met ? h->stops[p->stop] : NULL);
}

static void begin(struct buf *b, const struct gw_answer_head *h)
{
    struct eng_usage u = {.prompt_tokens = h->prompt_tokens};
    buf_str(b, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    put_head(b, h);
    buf_str(b, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(b, &u);
    buf_str(b, "}}\n\nevent: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n"
               "event: ping\ndata: {\"type\":\"ping\"}\n\n");
}

static void piece(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    (void)h;
    if (p->n) {
        buf_str(b, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":");
        json_put_str(b, p->text, p->n);
        buf_str(b, "}}\n\n");
    }
    if (p->ended)
        buf_str(b, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n");
}

static void end(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *last, const struct eng_usage *u)
{
    buf_str(b, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    put_stop(b, h, last);
    buf_str(b, "},");
    put_usage(b, u);
    buf_str(b, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void whole(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p, size_t n, const struct eng_usage *u)
{
    (void)n; /* one answer a request */
    put_head(b, h);
    buf_str(b, ",\"content\":[{\"type\":\"text\",\"text\":");
    json_put_str(b, p->n ? p->text : "", p->n);
    buf_str(b, "}],");
    put_stop(b, h, p);
    buf_char(b, ',');
    put_usage(b, u);
    buf_char(b, '}');
}

int gw_anthropic_status(const struct gw_api_error *ae)
{
    return ae->status == 503 || (ae->status == 429 && ae->code && !strcmp(ae->code, "queue_full")) ? 529 : ae->status;
}

int gw_anthropic_error(struct buf *b, const struct gw_api_error *ae, const char *request_id)
{
    static const struct { int status; const char *type; } types[] = {
        {400, "invalid_request_error"}, {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"}, {405, "invalid_request_error"},
        {413, "request_too_large"}, {415, "invalid_request_error"}, {429, "rate_limit_error"}, {504, "timeout_error"}, {529, "overloaded_error"}};
    int status = gw_anthropic_status(ae);
    const char *type = "api_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == status)
            type = types[i].type;
    buf_printf(b, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    json_put_cstr(b, ae->msg);
    buf_str(b, "},\"request_id\":");
    json_put_cstr(b, request_id);
    buf_char(b, '}');
    return status;
}

static void stream_error(struct buf *b, const struct gw_api_error *ae)
{
    buf_str(b, "event: error\ndata: ");
    gw_anthropic_error(b, ae, NULL);
    buf_str(b, "\n\n");
}

const struct gw_api gw_api_messages = {.route = GW_ROUTE_MESSAGES, .id_prefix = "msg_", .heartbeat = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                       .parse = gw_anthropic_parse, .begin = begin, .piece = piece, .end = end, .error = stream_error, .whole = whole};
