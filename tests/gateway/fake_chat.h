/* Stands in for the tokenizer and the chat template in tests of the gateway alone: a prompt is its bytes, "role:content\n" a message.
 * Included by one file of a test program, it takes the place of engine/chat.h's and engine/tokenizer.h's functions at link time. */
#ifndef SLUICE_TESTS_FAKE_CHAT_H
#define SLUICE_TESTS_FAKE_CHAT_H
#include <stdlib.h>
#include <string.h>

#include "engine/chat.h"

struct eng_tok { int unused; };
struct eng_chat { int unused; };

void eng_ids_free(struct eng_ids *ids)
{
    free(ids->v);
    ids->v = NULL;
    ids->n = ids->cap = 0;
}

int eng_ids_push(struct eng_ids *ids, int32_t id, struct err *e)
{
    if (ids->n == ids->max)
        return err_set(e, ERR_LIMIT, "more than %zu tokens", ids->max);
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? 2 * ids->cap : 64;
        int32_t *p = realloc(ids->v, cap * sizeof *p);
        if (!p)
            return err_set(e, ERR_NOMEM, "ids");
        ids->v = p;
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
    return 0;
}

int eng_tok_load(eng_tok **out, const void *p, size_t n, struct err *e)
{
    *out = NULL;
    if (n != 19 || memcmp(p, "fake tokenizer blob", 19))
        return err_set(e, ERR_FORMAT, "not the fake tokenizer");
    *out = calloc(1, sizeof **out);
    return *out ? 0 : err_set(e, ERR_NOMEM, "tokenizer");
}

void eng_tok_close(eng_tok *t) { free(t); }

uint32_t eng_tok_count(const eng_tok *t)
{
    (void)t;
    return 2000;
}

const char *eng_tok_piece(const eng_tok *t, int32_t id, size_t *n)
{
    static const char piece[] = "piece";
    (void)t;
    (void)id; /* as long as a control token's text */
    *n = sizeof piece - 1;
    return piece;
}

/* Its control tokens: <|a|>, <|b|>, <|c|>. */
int32_t eng_tok_find(const eng_tok *t, const char *piece, size_t n)
{
    (void)t;
    return n == 5 && !memcmp(piece, "<|", 2) && piece[2] >= 'a' && piece[2] <= 'c' && !memcmp(piece + 3, "|>", 2) ? 1990 + piece[2] - 'a' : -1;
}

bool eng_tok_is_control(const eng_tok *t, int32_t id)
{
    (void)t;
    return id >= 1990 && id < 1993;
}

bool eng_tok_is_special(const eng_tok *t, int32_t id)
{
    (void)t;
    return id >= 1990 && id < 1993;
}

const int32_t *eng_tok_eos(const eng_tok *t, size_t *n)
{
    static const int32_t none;
    (void)t;
    *n = 1;
    return &none;
}

/* A token of the fake engine stands for its number, one of a prompt for its byte. */
bool eng_tok_bytes(const eng_tok *t, int32_t id, struct buf *out)
{
    (void)t;
    return id < 256 ? buf_char(out, (char)id) : buf_printf(out, "<%d>", id);
}

void eng_detok_init(struct eng_detok *d) { memset(d, 0, sizeof *d); }

int eng_detok_push(const eng_tok *t, struct eng_detok *d, int32_t id, bool skip_special, struct buf *out)
{
    (void)t;
    (void)d;
    (void)skip_special;
    return buf_char(out, id < 256 ? (char)id : 'x') ? 0 : ERR_NOMEM;
}

int eng_detok_end(const eng_tok *t, struct eng_detok *d, struct buf *out)
{
    (void)t;
    (void)d;
    (void)out;
    return 0;
}

int eng_tok_encode(const eng_tok *t, const char *text, size_t n, unsigned flags, struct eng_ids *ids, struct err *e)
{
    int rc = 0;
    (void)t;
    (void)flags;
    for (size_t i = 0; i < n && !rc; i++)
        rc = eng_ids_push(ids, (unsigned char)text[i], e);
    return rc;
}

int eng_chat_open(eng_chat **out, const eng_tok *tok, const char *tmpl, size_t n, const struct json *special_tokens, struct err *e)
{
    (void)tok;
    (void)special_tokens;
    *out = NULL;
    if (n != 13 || memcmp(tmpl, "fake template", 13))
        return err_set(e, ERR_FORMAT, "not the fake template");
    *out = calloc(1, sizeof **out);
    return *out ? 0 : err_set(e, ERR_NOMEM, "chat");
}

void eng_chat_close(eng_chat *c) { free(c); }

const struct eng_chat_form *eng_chat_form_of(const eng_chat *c)
{
    static const struct eng_chat_form form = {.tools = true, .calls = true};
    (void)c;
    return &form;
}

bool eng_chat_reads(const eng_chat *c, const char *variable)
{
    (void)c;
    return !strcmp(variable, "enable_thinking");
}

static int push_text(struct eng_ids *ids, const char *s, size_t n, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++)
        rc = eng_ids_push(ids, (unsigned char)s[i], e);
    return rc;
}

int eng_chat_prompt(const eng_chat *c, const struct json *body, int64_t now, struct arena *a, struct eng_ids *ids, struct eng_prompt *text, struct err *e)
{
    const struct json *m = json_get(body, "messages");
    int rc = 0;
    (void)c;
    (void)now;
    (void)a;
    for (size_t i = 0; i < m->n && !rc; i++) {
        const struct json *role = json_get(m->items[i], "role"), *content = json_get(m->items[i], "content");
        if (json_is(content, JSON_STRING) && strstr(content->s, "!raise"))
            return err_set(e, ERR_INVALID, "messages[%zu].content: the fake template raises", i);
        rc = push_text(ids, role->s, role->n, e);
        if (!rc)
            rc = push_text(ids, ":", 1, e);
        if (!rc && json_is(content, JSON_STRING))
            rc = push_text(ids, content->s, content->n, e);
        for (size_t k = 0; !rc && json_is(content, JSON_ARRAY) && k < content->n; k++) {
            const struct json *t = json_get(content->items[k], "text");
            rc = push_text(ids, t->s, t->n, e);
        }
        if (!rc)
            rc = push_text(ids, "\n", 1, e);
    }
    if (text) { /* "!open" at the end: the prompt leaves reasoning open */
        static char open[] = "<think>\n", nothing[] = "";
        const struct json *last = json_get(m->items[m->n - 1], "content");
        bool opens = json_is(last, JSON_STRING) && strstr(last->s, "!open");
        *text = (struct eng_prompt){.text = opens ? open : nothing, .n = opens ? sizeof open - 1 : 0};
    }
    return rc;
}
#endif
