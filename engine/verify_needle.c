/* A needle in a haystack: prompts of chosen lengths with a number at chosen depths, asked for with the chat template, greedily. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/needle.h"
#include "engine/verify_internal.h"

enum { ANSWER = 48, FIRST = 1024, TEXT_MAX = 16 << 20, BYTES_A_TOKEN = 64 };

struct needle {
    struct eng_verify *v;
    eng_session *s;
    const char *text;
    size_t n;
    struct eng_ids ids;
    struct buf answer;
};

/* The prompt with `hay` bytes of text into n->ids. Models without a template get the beginning of the answer, too. */
static int prompt(struct needle *n, size_t hay, uint32_t depth, uint32_t number, struct err *e)
{
    const struct eng_model *m = eng_session_model(n->s);
    struct arena a;
    struct buf b;
    arena_init(&a, 1u << 30);
    buf_init(&b, 256u << 20);
    n->ids.n = 0;
    int rc = eng_needle_message(&b, n->text, n->n, hay, depth, number) ? ERR_OK : err_set(e, ERR_NOMEM, "needle: a prompt of %zu bytes", hay);
    if (!rc && m->chat) {
        struct json *body = json_new(&a, JSON_OBJECT), *list = json_new(&a, JSON_ARRAY), *msg = json_new(&a, JSON_OBJECT), *more = json_new(&a, JSON_OBJECT);
        json_set(&a, msg, "role", json_new_str(&a, "user", 4));
        json_set(&a, msg, "content", json_new_str(&a, b.data, b.len));
        json_push(&a, list, msg);
        json_set(&a, body, "messages", list);
        json_set(&a, more, "enable_thinking", json_new_bool(&a, false));
        json_set(&a, body, "chat_template_kwargs", more);
        rc = eng_chat_prompt(m->chat, body, clock_wall_s(), &a, &n->ids, NULL, e);
    } else if (!rc) {
        buf_str(&b, "\n\nThe magic number is");
        rc = b.failed ? err_set(e, ERR_NOMEM, "needle") : eng_tok_encode(m->tok, b.data, b.len, ENG_TOK_WRAP, &n->ids, e);
    }
    buf_free(&b);
    arena_free(&a);
    return rc;
}

/* As much text as leaves room for the answer in `length` tokens. */
static int fit(struct needle *n, uint32_t length, uint32_t depth, uint32_t number, struct err *e)
{
    uint32_t room = length > ANSWER ? length - ANSWER : 0;
    size_t least = 0, most = (size_t)room * 2; /* bytes: these fit, those may not */
    int rc = prompt(n, 0, depth, number, e);
    if (!rc && n->ids.n > room)
        return err_set(e, ERR_INVALID, "needle: %u tokens are too few, the question takes %zu and its answer %d", length, n->ids.n, ANSWER);
    while (!rc && most < (size_t)room * BYTES_A_TOKEN && !(rc = prompt(n, most, depth, number, e)) && n->ids.n <= room) {
        least = most;
        most *= 2;
    }
    while (!rc && most - least > 8) {
        size_t mid = least + (most - least) / 2;
        rc = prompt(n, mid, depth, number, e);
        *(n->ids.n <= room ? &least : &most) = mid;
    }
    return rc ? rc : prompt(n, least, depth, number, e);
}

static bool ends(const eng_tok *t, int32_t id)
{
    size_t n;
    const int32_t *eos = eng_tok_eos(t, &n);
    for (size_t i = 0; i < n; i++)
        if (eos[i] == id)
            return true;
    return false;
}

/* The greedy answer to n->ids into n->answer. */
static int answer(struct needle *n, struct err *e)
{
    const struct eng_model *m = eng_session_model(n->s);
    uint32_t chunk = eng_session_config(n->s)->chunk, all = (uint32_t)n->ids.n, n_ids = eng_tok_count(m->tok) < m->plan->vocab ? eng_tok_count(m->tok) : m->plan->vocab;
    bool far = m->plan->ctx_switch && all + ANSWER > m->plan->ctx_switch;
    struct eng_detok d;
    int rc = ERR_OK;
    eng_detok_init(&d);
    buf_reset(&n->answer);
    eng_session_drop(n->s, 0);
    for (uint32_t at = 0, k; at < all && !rc; at += k) {
        k = all - at < chunk ? all - at : chunk;
        struct eng_part p = {.pos0 = at, .n = k, .tokens = n->ids.v + at, .picks = at + k == all ? ENG_PICK_LAST : ENG_PICK_NONE, .far = far};
        rc = eng_session_step(n->s, &p, 1, NULL, NULL, e);
    }
    for (uint32_t i = 0; i < ANSWER && !rc; i++) {
        int32_t id = (int32_t)eng_verify_argmax(eng_session_logits(n->s, 0), n_ids);
        if (ends(m->tok, id))
            break;
        rc = eng_detok_push(m->tok, &d, id, true, &n->answer);
        struct eng_part p = {.pos0 = all + i, .n = 1, .tokens = &id, .picks = ENG_PICK_LAST, .far = far};
        if (!rc && i + 1 < ANSWER)
            rc = eng_session_step(n->s, &p, 1, NULL, NULL, e);
    }
    return rc ? rc : eng_detok_end(m->tok, &d, &n->answer);
}

static void put_cell(struct needle *n, uint32_t length, uint32_t depth, uint32_t number, bool found)
{
    struct eng_verify *v = n->v;
    if (v->json) {
        struct buf b;
        buf_init(&b, 1u << 20);
        json_put_str(&b, n->answer.data ? n->answer.data : "", n->answer.len);
        fprintf(v->out, "%s\n{\"check\":\"needle\",\"length\":%u,\"depth\":%u,\"prompt_tokens\":%zu,\"number\":%u,\"answer\":%s,\"ok\":%s}", v->passed + v->failed ? "," : "", length, depth,
                n->ids.n, number, b.data ? b.data : "\"\"", found ? "true" : "false");
        buf_free(&b);
    } else {
        fprintf(v->out, " %8s", found ? "found" : "missed");
    }
    fflush(v->out);
    v->passed += found;
    v->failed += !found;
}

/* A length at all depths: a row of the table, below it what was said instead. */
static int row(struct needle *n, uint32_t length, const uint32_t *depths, uint32_t n_depths, struct err *e)
{
    struct buf missed;
    int rc = ERR_OK;
    buf_init(&missed, 1u << 20);
    if (!n->v->json)
        fprintf(n->v->out, "%8u", length);
    for (uint32_t i = 0; i < n_depths && !rc; i++) {
        uint32_t number = eng_needle_number(n->text, n->n, length, depths[i]);
        if ((rc = fit(n, length, depths[i], number, e)) || (rc = answer(n, e)))
            break;
        bool found = eng_needle_found(n->answer.data ? n->answer.data : "", n->answer.len, number);
        put_cell(n, length, depths[i], number, found);
        if (!found) {
            buf_printf(&missed, "         at %u %%: expected %u, found ", depths[i], number);
            json_put_str(&missed, n->answer.data ? n->answer.data : "", n->answer.len);
            buf_char(&missed, '\n');
        }
    }
    if (!n->v->json)
        fprintf(n->v->out, "\n%s", missed.len && !missed.failed ? missed.data : "");
    buf_free(&missed);
    return rc;
}

/* Where nothing is said: 1024, doubled as long as the context in force has room; that context, where it has less. */
static uint32_t own_lengths(uint32_t ctx, uint32_t *lengths)
{
    uint32_t n = 0;
    for (uint64_t k = FIRST; k <= ctx && n < ENG_NEEDLE_MAX; k *= 2)
        lengths[n++] = (uint32_t)k;
    if (!n)
        lengths[n++] = ctx;
    return n;
}

static int open_session(struct needle *n, const uint32_t *lengths, uint32_t n_lengths, struct err *e)
{
    struct eng_config c = n->v->c;
    c.seqs = 1;
    for (uint32_t i = 0; i < n_lengths; i++)
        c.ctx = c.ctx > lengths[i] ? c.ctx : lengths[i];
    int rc = eng_session_open(&n->s, &c, 1, e);
    for (uint32_t i = 0; i < n_lengths && !rc; i++)
        if (lengths[i] > eng_session_model(n->s)->plan->ctx)
            rc = err_set(e, ERR_INVALID, "needle: %u tokens, the model was made for %u", lengths[i], eng_session_model(n->s)->plan->ctx);
    return rc;
}

int eng_verify_needle(struct eng_verify *v, const char *path, const uint32_t *lengths, uint32_t n_lengths, const uint32_t *depths, uint32_t n_depths, struct err *e)
{
    static const uint32_t three[] = {10, 50, 90};
    struct needle n = {.v = v, .text = eng_needle_filler, .n = strlen(eng_needle_filler), .ids = {.max = 1u << 26}};
    uint32_t own[ENG_NEEDLE_MAX];
    struct buf b;
    buf_init(&b, TEXT_MAX);
    buf_init(&n.answer, 1u << 16);
    int rc = path ? eng_verify_read_text(path, &b, e) : ERR_OK;
    if (!rc && path) {
        n.text = b.data;
        n.n = b.len;
    }
    if (!rc && !(rc = open_session(&n, lengths, n_lengths, e))) {
        if (!n_depths) {
            depths = three;
            n_depths = sizeof three / sizeof *three;
        }
        if (!n_lengths) {
            n_lengths = own_lengths(eng_session_config(n.s)->ctx, own);
            lengths = own;
        }
        if (!v->json) {
            fprintf(v->out, "%8s", "tokens");
            for (uint32_t i = 0; i < n_depths; i++)
                fprintf(v->out, " %6u %%", depths[i]);
            fputc('\n', v->out);
        }
        for (uint32_t i = 0; i < n_lengths && !rc; i++)
            rc = row(&n, lengths[i], depths, n_depths, e);
    }
    eng_session_close(n.s);
    eng_ids_free(&n.ids);
    buf_free(&n.answer);
    buf_free(&b);
    return rc;
}
