#include "gateway/openai_out.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

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

static void put(struct buf *b, const char *name, uint64_t v)
{
    buf_str(b, name);
    buf_uint(b, v);
}

static void put_ms(struct buf *b, const char *name, uint64_t ns)
{
    buf_str(b, name);
    buf_milli(b, (ns + 500) / 1000);
}

static void put_rate(struct buf *b, const char *name, uint32_t n, uint64_t ns)
{
    buf_str(b, name);
    buf_milli(b, ns ? (uint64_t)((double)n * 1e12 / (double)ns + 0.5) : 0);
}

void gw_out_usage(struct buf *b, const struct eng_usage *u)
{
    uint32_t computed = u->prompt_tokens > u->cached_tokens ? u->prompt_tokens - u->cached_tokens : 0;
    put(b, "\"usage\":{\"prompt_tokens\":", u->prompt_tokens);
    put(b, ",\"completion_tokens\":", u->output_tokens);
    put(b, ",\"total_tokens\":", (uint64_t)u->prompt_tokens + u->output_tokens);
    put(b, ",\"prompt_tokens_details\":{\"cached_tokens\":", u->cached_tokens);
    put(b, "},\"completion_tokens_details\":{\"reasoning_tokens\":", u->reasoning_tokens);
    put_ms(b, "}},\"timings\":{\"queue_ms\":", u->queue_ns);
    put(b, ",\"cache_n\":", u->cached_tokens);
    put(b, ",\"prompt_n\":", computed);
    put_ms(b, ",\"prompt_ms\":", u->prefill_ns);
    put_rate(b, ",\"prompt_per_second\":", computed, u->prefill_ns);
    put(b, ",\"predicted_n\":", u->output_tokens);
    put_ms(b, ",\"predicted_ms\":", u->decode_ns);
    put_rate(b, ",\"predicted_per_second\":", u->output_tokens, u->decode_ns);
    put(b, ",\"draft_n\":", u->draft_tokens);
    put(b, ",\"draft_n_accepted\":", u->draft_accepted);
    buf_char(b, '}');
}

void gw_out_head(struct buf *b, const struct gw_answer_head *h, const char *object)
{
    buf_str(b, "{\"id\":\"");
    buf_str(b, h->id);
    buf_str(b, "\",\"object\":\"");
    buf_str(b, object);
    put(b, "\",\"created\":", (uint64_t)h->created);
    buf_str(b, ",\"model\":");
    json_put_cstr(b, h->model);
    buf_str(b, ",\"system_fingerprint\":");
    json_put_cstr(b, h->fingerprint);
}

/* ---- chat -------------------------------------------------------------------------------------------------- */

static void begin_chunk(struct buf *b, const struct gw_answer_head *h, uint32_t index)
{
    buf_str(b, "data: ");
    gw_out_head(b, h, "chat.completion.chunk");
    put(b, ",\"choices\":[{\"index\":", index);
    buf_str(b, ",\"delta\":");
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

static void put_part(struct buf *b, const struct gw_part *p)
{
    switch (p->type) {
    case GW_PART_CALL:
        buf_printf(b, "{\"tool_calls\":[{\"index\":%u,\"id\":", p->call);
        json_put_str(b, p->id, p->id_n);
        buf_str(b, ",\"type\":\"function\",\"function\":{\"name\":");
        json_put_str(b, p->s, p->n);
        buf_str(b, ",\"arguments\":\"\"}}]}");
        break;
    case GW_PART_ARGUMENTS:
        buf_printf(b, "{\"tool_calls\":[{\"index\":%u,\"function\":{\"arguments\":", p->call);
        json_put_str(b, p->s, p->n);
        buf_str(b, "}}]}");
        break;
    default:
        buf_str(b, p->type == GW_PART_REASONING ? "{\"reasoning_content\":" : "{\"content\":");
        json_put_str(b, p->n ? p->s : "", p->n);
        buf_char(b, '}');
    }
}

static const char *finish_of(const struct gw_piece *p)
{
    return p->calls && p->finish == ENG_STOP && p->stop < 0 ? "tool_calls" : gw_out_finish_reason(p->finish);
}

/* Logprobs go with the first part, or alone. */
static void put_parts(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    static const struct gw_part none = {.type = GW_PART_CONTENT};
    bool logprobs = p->n_lp > 0;
    for (size_t i = 0; i < p->n || (!i && logprobs); i++) {
        const struct gw_part *part = i < p->n ? &p->part[i] : &none;
        if (i < p->n && (part->type == GW_PART_END || (part->type == GW_PART_REASONING && h->hide_reasoning))) {
            if (!logprobs || i + 1 < p->n)
                continue;
            part = &none;
        }
        begin_chunk(b, h, p->index);
        put_part(b, part);
        if (logprobs)
            put_logprobs(b, h, p);
        else
            buf_str(b, ",\"logprobs\":null");
        logprobs = false;
        buf_str(b, ",\"finish_reason\":null}]");
        end_chunk(b, h);
    }
}

static void piece(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    if (p->first) {
        begin_chunk(b, h, p->index);
        buf_str(b, "{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
        end_chunk(b, h);
    }
    put_parts(b, h, p);
    if (p->ended) {
        begin_chunk(b, h, p->index);
        buf_printf(b, "{},\"logprobs\":null,\"finish_reason\":\"%s\"}]", finish_of(p));
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

/* All text of one kind as one string. False: there is none, and nothing was written. */
static bool put_joined(struct buf *b, const char *key, const struct gw_piece *p, enum gw_part_type type)
{
    struct buf t;
    buf_init(&t, SIZE_MAX / 2);
    for (size_t i = 0; i < p->n; i++)
        if (p->part[i].type == type)
            buf_add(&t, p->part[i].s, p->part[i].n);
    bool any = t.len > 0;
    if (any) {
        buf_str(b, key);
        json_put_str(b, t.data, t.len);
    }
    b->failed |= t.failed;
    buf_free(&t);
    return any;
}

static void put_calls(struct buf *b, const struct gw_piece *p)
{
    uint32_t n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct gw_part *c = &p->part[i];
        if (c->type != GW_PART_CALL)
            continue;
        buf_str(b, n++ ? ",{\"id\":" : ",\"tool_calls\":[{\"id\":");
        json_put_str(b, c->id, c->id_n);
        buf_str(b, ",\"type\":\"function\",\"function\":{\"name\":");
        json_put_str(b, c->s, c->n);
        struct gw_piece args = {.part = c + 1};
        while (c + 1 + args.n < p->part + p->n && c[1 + args.n].type == GW_PART_ARGUMENTS)
            args.n++;
        if (!put_joined(b, ",\"arguments\":", &args, GW_PART_ARGUMENTS))
            buf_str(b, ",\"arguments\":\"\"");
        buf_str(b, "}}");
    }
    if (n)
        buf_char(b, ']');
}

static void put_message(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p)
{
    buf_str(b, "{\"role\":\"assistant\"");
    if (!put_joined(b, ",\"content\":", p, GW_PART_CONTENT))
        buf_str(b, p->calls ? ",\"content\":null" : ",\"content\":\"\"");
    if (!h->hide_reasoning)
        put_joined(b, ",\"reasoning_content\":", p, GW_PART_REASONING);
    put_calls(b, p);
    buf_str(b, ",\"refusal\":null}");
}

static void whole(struct buf *b, const struct gw_answer_head *h, const struct gw_piece *p, size_t n, const struct eng_usage *u)
{
    gw_out_head(b, h, "chat.completion");
    buf_str(b, ",\"choices\":[");
    for (size_t i = 0; i < n; i++) {
        put(b, i ? ",{\"index\":" : "{\"index\":", p[i].index);
        buf_str(b, ",\"message\":");
        put_message(b, h, &p[i]);
        put_logprobs(b, h, &p[i]);
        buf_str(b, ",\"finish_reason\":\"");
        buf_str(b, finish_of(&p[i]));
        buf_str(b, "\"}");
    }
    buf_str(b, "],");
    gw_out_usage(b, u);
    buf_char(b, '}');
}

const struct gw_api gw_api_chat = {.route = GW_ROUTE_CHAT, .id_prefix = "chatcmpl-", .call_prefix = "call_", .heartbeat = ": keep-alive\n\n", .parse = gw_openai_parse_chat,
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

/* Both APIs ask for models at one address, so a model has the fields of both. */
void gw_out_model(struct buf *b, const char *id, int64_t created, uint32_t ctx)
{
    char at[32] = "";
    struct tm t;
    time_t when = (time_t)created;
    if (gmtime_r(&when, &t))
        strftime(at, sizeof at, "%Y-%m-%dT%H:%M:%SZ", &t);
    buf_str(b, "{\"id\":");
    json_put_cstr(b, id);
    buf_printf(b, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"sluice\",\"max_model_len\":%u,\"type\":\"model\",\"display_name\":", (long long)created, ctx);
    json_put_cstr(b, id);
    buf_printf(b, ",\"created_at\":\"%s\"}", at);
}
