#include "gateway/logprobs.h"

#include <math.h>
#include <string.h>

#include "base/json.h"

struct waiting { uint64_t start, start_chars; struct gw_lp_token t; };

void gw_lp_init(struct gw_lp *l, size_t bytes_max)
{
    memset(l, 0, sizeof *l);
    buf_init(&l->wait, bytes_max);
    buf_init(&l->scratch, 1u << 16);
    eng_detok_init(&l->detok);
}

void gw_lp_free(struct gw_lp *l)
{
    buf_free(&l->wait);
    buf_free(&l->scratch);
}

static uint64_t characters(const char *s, size_t n)
{
    uint64_t c = 0;
    for (size_t i = 0; i < n; i++)
        c += ((unsigned char)s[i] & 0xC0) != 0x80;
    return c;
}

bool gw_lp_add(struct gw_lp *l, const eng_tok *tok, const struct gw_lp_token *t, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct waiting w;
        memset(&w, 0, sizeof w);
        w.start = l->made;
        w.start_chars = l->made_chars;
        w.t = t[i];
        buf_reset(&l->scratch);
        eng_detok_push(tok, &l->detok, t[i].id, true, &l->scratch);
        l->made += l->scratch.len;
        l->made_chars += characters(l->scratch.data, l->scratch.len);
        buf_add(&l->wait, &w, sizeof w);
    }
    return !l->wait.failed;
}

size_t gw_lp_ready(const struct gw_lp *l, uint64_t delivered, bool all)
{
    const struct waiting *w = (const void *)l->wait.data;
    size_t n = l->wait.len / sizeof *w, k = 0;
    while (k < n && (all || w[k].start < delivered))
        k++;
    return k;
}

void gw_lp_drop(struct gw_lp *l, size_t n) { buf_consume(&l->wait, n * sizeof(struct waiting)); }

/* ---- JSON ------------------------------------------------------------------------------------------------- */

static void put_number(struct buf *b, float lp)
{
    buf_printf(b, "%.7g", isfinite(lp) ? (double)lp : -9999.0); /* what OpenAI writes for "never" */
}

static void put_entry(struct buf *b, const eng_tok *tok, int32_t id, float lp, bool open)
{
    struct buf t;
    buf_init(&t, 1u << 16);
    eng_tok_bytes(tok, id, &t);
    buf_str(b, "{\"token\":");
    json_put_str(b, t.len ? t.data : "", t.len);
    buf_str(b, ",\"logprob\":");
    put_number(b, lp);
    buf_str(b, ",\"bytes\":[");
    for (size_t i = 0; i < t.len; i++)
        buf_printf(b, "%s%u", i ? "," : "", (unsigned char)t.data[i]);
    buf_str(b, open ? "]" : "]}");
    buf_free(&t);
}

void gw_lp_put_chat(struct buf *b, const struct gw_lp *l, const eng_tok *tok, size_t n)
{
    const struct waiting *w = (const void *)l->wait.data;
    buf_str(b, "{\"content\":[");
    for (size_t i = 0; i < n; i++) {
        const struct eng_logprobs *p = &w[i].t.lp;
        if (i)
            buf_char(b, ',');
        put_entry(b, tok, w[i].t.id, p->logprob, true);
        buf_str(b, ",\"top_logprobs\":[");
        for (uint32_t k = 0; k < p->n_top; k++) {
            if (k)
                buf_char(b, ',');
            put_entry(b, tok, p->top[k].id, p->top[k].logprob, false);
        }
        buf_str(b, "]}");
    }
    buf_str(b, "],\"refusal\":null}");
}

/* A token as a string that names it: bytes that are no characters are spelled out, since U+FFFD would make many tokens one. */
static void put_name(struct buf *b, const eng_tok *tok, int32_t id)
{
    struct buf t, name;
    buf_init(&t, 1u << 16);
    buf_init(&name, 1u << 18);
    eng_tok_bytes(tok, id, &t);
    json_put_str(&name, t.len ? t.data : "", t.len);
    if (t.len && memmem(name.data, name.len, "\xEF\xBF\xBD", 3) && !memmem(t.data, t.len, "\xEF\xBF\xBD", 3)) {
        buf_str(b, "\"bytes:");
        for (size_t i = 0; i < t.len; i++)
            buf_printf(b, "\\\\x%02x", (unsigned char)t.data[i]);
        buf_char(b, '"');
    } else {
        buf_add(b, name.data, name.len);
    }
    buf_free(&name);
    buf_free(&t);
}

/* A map cannot hold a name twice: the likelier one stays. */
static bool put_named(struct buf *map, const eng_tok *tok, int32_t id, float lp)
{
    struct buf key;
    buf_init(&key, 1u << 18);
    put_name(&key, tok, id);
    buf_char(&key, ':');
    bool fresh = !memmem(map->data ? map->data : "", map->len, key.data, key.len);
    if (fresh) {
        if (map->len)
            buf_char(map, ',');
        buf_add(map, key.data, key.len);
        put_number(map, lp);
    }
    buf_free(&key);
    return fresh;
}

void gw_lp_put_completion(struct buf *b, const struct gw_lp *l, const eng_tok *tok, size_t n)
{
    const struct waiting *w = (const void *)l->wait.data;
    bool tops = false;
    buf_str(b, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_char(b, ',');
        put_name(b, tok, w[i].t.id);
        tops |= w[i].t.lp.n_top > 0;
    }
    buf_str(b, "],\"token_logprobs\":[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            buf_char(b, ',');
        put_number(b, w[i].t.lp.logprob);
    }
    buf_str(b, tops ? "],\"top_logprobs\":[" : "],\"top_logprobs\":null");
    for (size_t i = 0; tops && i < n; i++) {
        struct buf map;
        buf_init(&map, 1u << 20);
        for (uint32_t k = 0; k < w[i].t.lp.n_top; k++)
            put_named(&map, tok, w[i].t.lp.top[k].id, w[i].t.lp.top[k].logprob);
        put_named(&map, tok, w[i].t.id, w[i].t.lp.logprob); /* the token itself is always in it */
        buf_str(b, i ? ",{" : "{");
        buf_add(b, map.data, map.len);
        buf_char(b, '}');
        buf_free(&map);
    }
    buf_str(b, tops ? "],\"text_offset\":[" : ",\"text_offset\":[");
    for (size_t i = 0; i < n; i++)
        buf_printf(b, "%s%llu", i ? "," : "", (unsigned long long)w[i].start_chars);
    buf_str(b, "]}");
}
