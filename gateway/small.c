#include "gateway/small.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "gateway/anthropic.h"
#include "gateway/fields.h"

#define ANSWER_MAX (256u << 20)

struct job {
    atomic_int refs;             /* the exchange's, the worker's, a posted task's */
    struct gw_app *app;
    enum gw_route route;
    gw_loop *loop;
    gw_exchange *x;              /* loop; NULL: the client left */
    gw_tenant *tenant;
    char *body; size_t body_n;
    struct gw_served *served;
    struct arena mem;
    struct eng_ids ids;
    struct buf out;
    struct gw_api_error ae;
};

static void unref(struct job *j)
{
    if (atomic_fetch_sub(&j->refs, 1) != 1)
        return;
    free(j->body);
    gw_served_unref(j->served);
    arena_free(&j->mem);
    eng_ids_free(&j->ids);
    buf_free(&j->out);
    free(j);
}

/* ---- worker ------------------------------------------------------------------------------------------------ */

static int cannot(struct job *j, const char *what, const struct err *e)
{
    return gw_api_error_set(&j->ae, 400, e->code == ERR_LIMIT ? "context_length_exceeded" : "invalid_value", what, "Invalid '%s': %s", what, e->msg);
}

/* `model` may be left out here, as in vLLM. */
static int check_model(struct job *j, const char *model)
{
    if (model && !gw_served_is(j->served, model))
        return gw_api_error_set(&j->ae, 404, "model_not_found", "model", "The model '%.200s' does not exist or you do not have access to it.", model);
    return 0;
}

static int render(struct job *j, const struct json *body)
{
    struct err e;
    if (!j->served->chat)
        return gw_api_error_set(&j->ae, 400, "unsupported_value", "model", "This model has no chat template.");
    return eng_chat_prompt(j->served->chat, body, clock_wall_s(), &j->mem, &j->ids, NULL, &e) ? cannot(j, "messages", &e) : 0;
}

static int parse(struct job *j, struct json **tree)
{
    const char *model = NULL;
    int rc = gw_parse_body(j->body ? j->body : "", j->body_n, &j->mem, tree, &j->ae);
    if (!rc && gw_field(*tree, "model"))
        rc = gw_get_model(*tree, &model, &j->ae);
    return rc ? rc : check_model(j, model);
}

static int tokenize(struct job *j)
{
    struct json *tree;
    struct err e;
    bool wrap = true, strs = false;
    int rc = parse(j, &tree);
    const struct json *prompt = rc ? NULL : gw_field(tree, "prompt");
    if (rc || (rc = gw_get_bool(tree, "add_special_tokens", "add_special_tokens", &wrap, &j->ae)) ||
        (rc = gw_get_bool(tree, "return_token_strs", "return_token_strs", &strs, &j->ae)))
        return rc;
    if (!prompt && gw_field(tree, "messages"))
        rc = gw_check_messages(tree, &j->ae) ? j->ae.status : render(j, tree);
    else if (!prompt)
        rc = gw_api_error_set(&j->ae, 400, "missing_required_parameter", "prompt", "Missing required parameter: 'prompt' or 'messages'.");
    else if (prompt->type != JSON_STRING)
        rc = gw_wrong_type(&j->ae, "prompt", "a string", prompt);
    else if (eng_tok_encode(j->served->tok->tok, prompt->s, prompt->n, ENG_TOK_ADDED | (wrap ? ENG_TOK_WRAP : 0u), &j->ids, &e))
        rc = cannot(j, "prompt", &e);
    if (rc)
        return rc;
    buf_printf(&j->out, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", j->ids.n, j->served->d.ctx);
    for (size_t i = 0; i < j->ids.n; i++)
        buf_printf(&j->out, "%s%d", i ? "," : "", j->ids.v[i]);
    buf_str(&j->out, strs ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (size_t i = 0; strs && i < j->ids.n; i++) {
        size_t n = 0;
        const char *piece = eng_tok_piece(j->served->tok->tok, j->ids.v[i], &n);
        if (i)
            buf_char(&j->out, ',');
        json_put_str(&j->out, piece ? piece : "", n);
    }
    if (strs)
        buf_str(&j->out, "]}");
    return 0;
}

static int detokenize(struct job *j)
{
    struct json *tree;
    struct eng_detok d;
    struct buf text;
    int64_t id;
    int rc = parse(j, &tree);
    const struct json *v = rc ? NULL : gw_field(tree, "tokens");
    if (rc)
        return rc;
    if (!v)
        return gw_api_error_set(&j->ae, 400, "missing_required_parameter", "tokens", "Missing required parameter: 'tokens'.");
    if (v->type != JSON_ARRAY)
        return gw_wrong_type(&j->ae, "tokens", "an array of token ids", v);
    eng_detok_init(&d);
    buf_init(&text, ANSWER_MAX);
    for (size_t i = 0; i < v->n && !rc; i++) {
        if (!json_int(v->items[i], &id) || id < 0 || id >= j->served->d.vocab)
            rc = gw_api_error_set(&j->ae, 400, "invalid_value", "tokens", "Invalid 'tokens': entry %zu is no token id below %u.", i, j->served->d.vocab);
        else
            eng_detok_push(j->served->tok->tok, &d, (int32_t)id, false, &text);
    }
    eng_detok_end(j->served->tok->tok, &d, &text);
    buf_str(&j->out, "{\"prompt\":");
    json_put_str(&j->out, text.len ? text.data : "", text.len);
    buf_char(&j->out, '}');
    j->out.failed |= text.failed;
    buf_free(&text);
    return rc;
}

static int count(struct job *j)
{
    struct gw_chat_req r = {0};
    int rc = gw_anthropic_parse_count(&r, j->body ? j->body : "", j->body_n, &j->mem, &j->ae);
    if (rc || (rc = check_model(j, r.model)) || (rc = render(j, r.body)))
        return rc;
    buf_printf(&j->out, "{\"input_tokens\":%zu}", j->ids.n);
    return 0;
}

/* ---- loop -------------------------------------------------------------------------------------------------- */

static void done(void *arg)
{
    struct job *j = arg;
    gw_tenant_leave(j->tenant, 0, clock_now_ns());
    if (j->x && !j->ae.status && j->out.failed)
        gw_api_error_set(&j->ae, 503, NULL, NULL, "Out of memory while writing the answer.");
    if (j->x && j->ae.status) {
        gw_app_error(j->app, j->x, j->route, &j->ae);
    } else if (j->x) {
        gw_metrics_answer(&j->app->metrics, j->route, 200);
        struct gw_app_headers h;
        gw_app_headers(&h, j->route, j->x, j->tenant);
        gw_respond(j->x, 200, "application/json", h.h, h.n, j->out.data, j->out.len);
    }
    if (j->x) {
        j->x = NULL;
        unref(j);
    }
    unref(j);
}

static void work(void *arg, struct arena *mem)
{
    (void)mem;
    struct job *j = arg;
    switch (j->route) {
    case GW_ROUTE_TOKENIZE: tokenize(j); break;
    case GW_ROUTE_DETOKENIZE: detokenize(j); break;
    default: count(j);
    }
    if (gw_loop_post(j->loop, done, j)) { /* the loop has ended: nobody waits */
        gw_tenant_leave(j->tenant, 0, clock_now_ns());
        unref(j);
    }
}

static void on_gone(void *ctx, gw_exchange *x, enum gw_gone why)
{
    struct job *j = ctx;
    (void)x;
    (void)why;
    j->x = NULL;
    unref(j);
}

static void refuse(struct gw_app *a, gw_exchange *x, enum gw_route route, int status, const char *code, uint64_t retry_ms, const char *msg)
{
    struct gw_api_error ae;
    gw_api_error_set(&ae, status, code, NULL, "%s", msg);
    ae.retry_after_s = (uint32_t)((retry_ms + 999) / 1000);
    gw_app_error(a, x, route, &ae);
}

void gw_small_start(struct gw_app *a, enum gw_route route, gw_exchange *x, gw_tenant *tenant)
{
    struct err e;
    uint64_t retry_ms = 0;
    if (!tenant) {
        refuse(a, x, route, 401, "invalid_api_key", 0, "Incorrect API key provided.");
        return;
    }
    if (gw_tenant_enter(tenant, clock_now_ns(), &retry_ms, &e)) {
        refuse(a, x, route, 429, "rate_limit_exceeded", retry_ms, e.msg);
        return;
    }
    struct job *j = calloc(1, sizeof *j);
    struct gw_served *s = j ? gw_engine_served(a->cfg.engine) : NULL;
    if (!s) {
        free(j);
        gw_tenant_leave(tenant, 0, clock_now_ns());
        refuse(a, x, route, 503, "engine_unavailable", 2000, "No engine has described its model yet. Try again shortly.");
        return;
    }
    *j = (struct job){.app = a, .route = route, .loop = gw_exchange_loop(x), .x = x, .tenant = tenant, .served = s};
    atomic_init(&j->refs, 2);
    j->body = gw_exchange_take_body(x, &j->body_n);
    arena_init(&j->mem, a->cfg.prompt_bytes_max);
    buf_init(&j->out, ANSWER_MAX);
    j->ids.max = a->cfg.prompt_bytes_max / 16;
    gw_exchange_watch(x, &(struct gw_watch){.ctx = j, .on_gone = on_gone});
    if (gw_work_put(a->cfg.work, work, j, true, &e)) {
        gw_tenant_leave(tenant, 0, clock_now_ns());
        refuse(a, x, route, e.code == ERR_AGAIN ? 429 : 503, e.code == ERR_AGAIN ? "queue_full" : "engine_unavailable", 1000, e.msg);
        unref(j);
        unref(j);
    }
}
