/* The worker's half of a request: bytes of a body -> prompts as ids, their lengths checked, and a choice for each answer. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "gateway/chat_internal.h"

#define PROMPT_BYTES_PER_TOKEN 16 /* more than text has: a request that is longer and hits a bound is too long for the context */

static const char *prompt_name(const struct gw_chat *c) { return c->req.prompts ? "prompt" : "messages"; }

static int prompt_error(struct gw_chat *c, const struct err *e)
{
    const char *what = prompt_name(c);
    if (e->code == ERR_LIMIT && c->ids.n >= c->ids.max)
        return gw_api_error_set(&c->ae, 400, "context_length_exceeded", what,
                                "This model's maximum context length is %u tokens. However, your %s resulted in more than %zu tokens. Please reduce the length of the %s.",
                                c->served->d.ctx, what, c->ids.max, what);
    if (e->code == ERR_LIMIT && c->body_n / PROMPT_BYTES_PER_TOKEN > c->served->d.ctx)
        return gw_api_error_set(&c->ae, 400, "context_length_exceeded", what,
                                "This model's maximum context length is %u tokens. However, your request has %zu bytes, more than this server renders. Please reduce the length of the %s.",
                                c->served->d.ctx, c->body_n, what);
    if (e->code == ERR_NOMEM)
        return gw_api_error_set(&c->ae, 400, "prompt_too_large", what, "The %s need more memory than this server gives one request: %s", what, e->msg);
    return gw_api_error_set(&c->ae, 400, "invalid_value", what, "The %s cannot be rendered for this model: %s", what, e->msg);
}

static int check_lengths(struct gw_chat *c)
{
    uint32_t most = gw_tenant_limits_of(c->tenant).max_tokens;
    const char *what = prompt_name(c);
    if (most && c->req.max_tokens > most)
        return gw_api_error_set(&c->ae, 400, "invalid_value", json_get(c->req.body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens",
                                "%u tokens were asked for, but this key's limit is %u per request.", c->req.max_tokens, most);
    if (!c->req.max_tokens)
        c->req.max_tokens = most;
    for (uint32_t i = 0; i < c->req.n_prompts; i++) {
        uint32_t n = c->prompt_end[i] - (i ? c->prompt_end[i - 1] : 0);
        if (n >= c->served->d.ctx) /* room for one token of output is needed */
            return gw_api_error_set(&c->ae, 400, "context_length_exceeded", what,
                                    "This model's maximum context length is %u tokens. However, your %s resulted in %u tokens. Please reduce the length of the %s.",
                                    c->served->d.ctx, what, n, what);
        if (!n)
            return gw_api_error_set(&c->ae, 400, "invalid_value", what, "The %s gave no token at all.", what);
    }
    for (uint32_t i = 0; i < c->req.n_bias; i++)
        if ((uint32_t)c->req.bias[i].id >= c->served->d.vocab)
            return gw_api_error_set(&c->ae, 400, "invalid_value", "logit_bias", "Invalid key in 'logit_bias': %d. This model's tokens are below %u.", c->req.bias[i].id,
                                    c->served->d.vocab);
    return 0;
}

/* A text is the caller's own, so a control token in it is text; who means the token sends its id. */
static int one_prompt(struct gw_chat *c, const struct json *p)
{
    struct err e = {0};
    int64_t id = 0;
    int rc = 0;
    if (p->type == JSON_STRING)
        return eng_tok_encode(c->served->tok->tok, p->s, p->n, ENG_TOK_ADDED | ENG_TOK_WRAP, &c->ids, &e) ? prompt_error(c, &e) : 0;
    for (size_t i = 0; i < p->n && !rc; i++) {
        json_int(p->items[i], &id);
        if (id >= c->served->d.vocab)
            return gw_api_error_set(&c->ae, 400, "invalid_value", "prompt", "Invalid 'prompt': token %lld is none of this model's, which are below %u.", (long long)id, c->served->d.vocab);
        rc = eng_ids_push(&c->ids, (int32_t)id, &e);
    }
    return rc ? prompt_error(c, &e) : 0;
}

static int make_prompts(struct gw_chat *c)
{
    struct err e = {0};
    if (!(c->prompt_end = ARENA_ARRAY(&c->mem, uint32_t, c->req.n_prompts)))
        return gw_api_error_set(&c->ae, 503, NULL, NULL, "Out of memory.");
    c->ids.max = c->app->cfg.prompt_bytes_max / 16;
    if (!c->req.prompts) {
        if (!c->served->chat)
            return gw_api_error_set(&c->ae, 400, "unsupported_value", "model", "The model '%.200s' has no chat template.", c->req.model);
        struct eng_prompt text;
        if (gw_chat_check_tools(c) || gw_chat_set_reasoning(c))
            return c->ae.status;
        if (eng_chat_prompt(c->served->chat, c->req.body, clock_wall_s(), &c->mem, &c->ids, &text, &e))
            return prompt_error(c, &e);
        const struct eng_reasoning_format *r = &c->served->format.reasoning;
        const struct json *goes_on = json_get(c->req.body, "continue_final_message");
        c->place = goes_on && goes_on->type == JSON_BOOL && goes_on->b ? GW_PLACE_CONTENT : eng_format_ends_in(&r->open, text.text, text.n) ? GW_PLACE_REASONING
                   : eng_format_ends_in(&r->content_open, text.text, text.n) ? GW_PLACE_CONTENT : GW_PLACE_START;
        if (gw_chat_make_grammar(c))
            return c->ae.status;
        c->prompt_end[0] = (uint32_t)c->ids.n;
        return 0;
    }
    for (uint32_t i = 0; i < c->req.n_prompts; i++) {
        if (one_prompt(c, c->req.prompts[i]))
            return c->ae.status;
        c->prompt_end[i] = (uint32_t)c->ids.n;
    }
    return 0;
}

/* The stop strings outlive the request's memory where the answer names the one that was met. */
static bool keep_stops(struct gw_chat *c)
{
    size_t n = 0;
    for (uint32_t i = 0; i < c->req.n_stops; i++)
        n += c->req.stop_lens[i] + 1u;
    if (!n)
        return true;
    if (!(c->stops = malloc(c->req.n_stops * sizeof(char *) + n)))
        return false;
    char **list = (char **)(void *)c->stops, *p = c->stops + c->req.n_stops * sizeof(char *);
    for (uint32_t i = 0; i < c->req.n_stops; i++) {
        list[i] = memcpy(p, c->req.stops[i], c->req.stop_lens[i] + 1u);
        p += c->req.stop_lens[i] + 1u;
    }
    c->head.stops = (const char *const *)list;
    return true;
}

/* The text of prompt i, to be echoed. */
static void put_prompt(struct gw_chat *c, uint32_t i, struct buf *out)
{
    const struct json *p = c->req.prompts[i];
    struct eng_detok d;
    if (p->type == JSON_STRING) {
        buf_add(out, p->s, p->n);
        return;
    }
    eng_detok_init(&d);
    for (uint32_t k = i ? c->prompt_end[i - 1] : 0; k < c->prompt_end[i]; k++)
        eng_detok_push(c->served->tok->tok, &d, c->ids.v[k], true, out);
    eng_detok_end(c->served->tok->tok, &d, out);
}

static int make_choices(struct gw_chat *c)
{
    uint32_t n = c->req.n_prompts * c->req.n;
    if (gw_chat_keep_tools(c))
        return c->ae.status;
    if (!keep_stops(c) || !(c->choices = calloc(n, sizeof *c->choices)))
        return gw_api_error_set(&c->ae, 503, NULL, NULL, "Out of memory.");
    c->n_choices = n;
    atomic_store(&c->n_left, n);
    c->head.logprobs = c->req.logprobs;
    c->head.include_usage = c->req.include_usage;
    c->head.tok = c->served->tok->tok;
    c->head.prompt_tokens = (uint32_t)c->ids.n;
    c->no_eos = c->req.ignore_eos;
    for (uint32_t i = 0; i < n; i++) {
        struct gw_choice *k = &c->choices[i];
        k->c = c;
        k->index = i;
        k->prompt = i / c->req.n;
        k->n_prompt = c->prompt_end[k->prompt] - (k->prompt ? c->prompt_end[k->prompt - 1] : 0);
        buf_init(&k->pend, ANSWER_BYTES_MAX);
        buf_init(&k->text, ANSWER_BYTES_MAX);
        buf_init(&k->toks, ANSWER_BYTES_MAX);
        buf_init(&k->toks_out, ANSWER_BYTES_MAX);
        buf_init(&k->cuts, ANSWER_BYTES_MAX);
        buf_init(&k->cuts_out, ANSWER_BYTES_MAX);
        gw_lp_init(&k->lp, 2 * (size_t)ANSWER_BYTES_MAX);
        if (gw_chat_open_calls(c, k))
            return c->ae.status;
        if (c->req.echo)
            put_prompt(c, k->prompt, &k->pend);
    }
    return 0;
}

/* The form of the answer. Calls that are demanded rule alone; others may come in place of it. */
static int make_grammar(struct gw_chat *c)
{
    const struct gw_chat_req *q = &c->req;
    bool tools = q->tools.n && q->tools.choice != GW_TOOLS_NONE;
    struct gw_structured_place p = {.format = q->prompts ? NULL : &c->served->format, .place = c->place, .no_reasoning = q->think == GW_THINK_OFF,
                                    .tools = tools ? &q->tools : NULL, .tok = c->served->tok->tok};
    if (!q->structured.rules || (tools && q->tools.choice != GW_TOOLS_AUTO))
        return 0;
    if (tools && q->structured.whole)
        return gw_api_error_set(&c->ae, 400, "unsupported_value", q->structured.param, "Unsupported value: '%s' beside 'tools': a grammar of your own rules the whole answer.",
                                q->structured.param);
    gw_call_grammar_free(&c->calls_grammar); /* of strict calls: they are part of the whole */
    memset(&c->calls_grammar, 0, sizeof c->calls_grammar);
    return gw_structured_grammar(&q->structured, &p, &c->mem, &c->grammar, &c->grammar_n, &c->ae);
}

int gw_chat_prepare(struct gw_chat *c)
{
    c->req.sampling = c->served->d.sampling;
    if (c->api->parse(&c->req, c->body ? c->body : "", c->body_n, &c->mem, &c->ae))
        return c->ae.status;
    if (c->req.stream) {
        pthread_mutex_lock(&c->lock);
        c->streaming = true;
        pthread_mutex_unlock(&c->lock);
    }
    if (!gw_served_is(c->served, c->req.model))
        return gw_api_error_set(&c->ae, 404, "model_not_found", "model", "The model '%.200s' does not exist or you do not have access to it.", c->req.model);
    if (make_prompts(c) || make_grammar(c))
        return c->ae.status;
    if (!c->req.seed_given && !hash_random(&c->req.sampling.seed, sizeof c->req.sampling.seed))
        return gw_api_error_set(&c->ae, 503, NULL, NULL, "No random bytes for a seed.");
    return check_lengths(c) ? c->ae.status : make_choices(c);
}
