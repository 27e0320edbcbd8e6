/* Answers and errors in Anthropic's shapes. Parts of one kind that follow each other are one block. */
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
    buf_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":",
               met ? "stop_sequence" : p->finish != ENG_STOP ? "max_tokens" : p->calls ? "tool_use" : "end_turn");
    json_put_cstr(b, met ? h->stops[p->stop] : NULL);
}

static void begin(struct buf *b, const struct gw_answer_head *h)
{
    struct eng_usage u = {.prompt_tokens = h->prompt_tokens};
    buf_str(b, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    put_head(b, h);
    buf_str(b, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,");
    put_usage(b, &u);
    buf_str(b, "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n");
}

static void begin_delta(struct buf *b, const struct gw_blocks *k)
{
    buf_printf(b, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":%u,\"delta\":", k->n - 1);
}

static void close_block(struct buf *b, struct gw_blocks *k)
{
    if (!k->open)
        return;
    if (k->type == GW_PART_REASONING) {
        begin_delta(b, k);
        buf_str(b, "{\"type\":\"signature_delta\",\"signature\":\"\"}}\n\n");
    }
    buf_printf(b, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":%u}\n\n", k->n - 1);
    k->open = false;
}

static void open_block(struct buf *b, struct gw_blocks *k, enum gw_part_type type, const struct gw_part *call)
{
    if (k->open && k->type == type && type != GW_PART_CALL)
        return;
    close_block(b, k);
    *k = (struct gw_blocks){k->n + 1, true, type};
    buf_printf(b, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":%u,\"content_block\":", k->n - 1);
    if (type == GW_PART_CALL) {
        buf_str(b, "{\"type\":\"tool_use\",\"id\":");
        json_put_str(b, call->id, call->id_n);
        buf_str(b, ",\"name\":");
        json_put_str(b, call->s, call->n);
        buf_str(b, ",\"input\":{}}");
    } else {
        buf_str(b, type == GW_PART_REASONING ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}" : "{\"type\":\"text\",\"text\":\"\"}");
    }
    buf_str(b, "}\n\n");
}

static void put_delta(struct buf *b, const struct gw_blocks *k, const char *type, const char *key, const struct gw_part *p)
{
    begin_delta(b, k);
    buf_printf(b, "{\"type\":\"%s\",\"%s\":", type, key);
    json_put_str(b, p->s, p->n);
    buf_str(b, "}}\n\n");
}

static void put_part(struct buf *b, const struct gw_answer_head *h, struct gw_blocks *k, const struct gw_part *p)
{
    switch (p->type) {
    case GW_PART_CALL: open_block(b, k, GW_PART_CALL, p); break;
    case GW_PART_ARGUMENTS: put_delta(b, k, "input_json_delta", "partial_json", p); break;
    case GW_PART_END: close_block(b, k); break;
    case GW_PART_REASONING:
        if (h->hide_reasoning)
            return;
        open_block(b, k, p->type, NULL);
        put_delta(b, k, "thinking_delta", "thinking", p);
        break;
    default:
        open_block(b, k, p->type, NULL);
        put_delta(b, k, "text_delta", "text", p);
    }
}

static void piece(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    for (size_t i = 0; i < p->n; i++)
        put_part(b, h, p->blocks, &p->part[i]);
    if (p->ended && !p->blocks->n) /* an answer without anything is an empty text */
        open_block(b, p->blocks, GW_PART_CONTENT, NULL);
    if (p->ended)
        close_block(b, p->blocks);
}

static void end(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *last, const struct eng_usage *u)
{
    buf_str(b, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    put_stop(b, h, last);
    buf_str(b, "},");
    put_usage(b, u);
    buf_str(b, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

/* The parts from i on that make one block; returns the first that does not. */
static size_t put_block(struct buf *b, const struct gw_piece *p, size_t i)
{
    const struct gw_part *c = &p->part[i++];
    struct buf t;
    enum gw_part_type more = c->type == GW_PART_CALL ? GW_PART_ARGUMENTS : c->type;
    buf_init(&t, SIZE_MAX / 2);
    if (c->type == GW_PART_CALL) {
        buf_str(b, "{\"type\":\"tool_use\",\"id\":");
        json_put_str(b, c->id, c->id_n);
        buf_str(b, ",\"name\":");
        json_put_str(b, c->s, c->n);
    } else {
        buf_add(&t, c->s, c->n);
    }
    for (; i < p->n && (p->part[i].type == more || p->part[i].type == GW_PART_END); i++)
        buf_add(&t, p->part[i].s, p->part[i].n);
    if (c->type == GW_PART_CALL) { /* the arguments are JSON: a call that was not would be text */
        buf_str(b, ",\"input\":");
        buf_add(b, t.len ? t.data : "{}", t.len ? t.len : 2);
    } else {
        buf_str(b, c->type == GW_PART_REASONING ? "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":" : "{\"type\":\"text\",\"text\":");
        json_put_str(b, t.len ? t.data : "", t.len);
    }
    buf_char(b, '}');
    b->failed |= t.failed;
    buf_free(&t);
    return i;
}

static void whole(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p, size_t n, const struct eng_usage *u)
{
    bool any = false;
    (void)n; /* one answer a request */
    put_head(b, h);
    buf_str(b, ",\"content\":[");
    for (size_t i = 0; i < p->n;) {
        if (p->part[i].type == GW_PART_END || (p->part[i].type == GW_PART_REASONING && h->hide_reasoning)) {
            i++;
            continue;
        }
        if (any)
            buf_char(b, ',');
        i = put_block(b, p, i);
        any = true;
    }
    buf_str(b, any ? "]," : "{\"type\":\"text\",\"text\":\"\"}],");
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

const struct gw_api gw_api_messages = {.route = GW_ROUTE_MESSAGES, .id_prefix = "msg_", .call_prefix = "toolu_", .heartbeat = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
                                       .parse = gw_anthropic_parse, .begin = begin, .piece = piece, .end = end, .error = stream_error, .whole = whole};
