/* engine/tok_tiktoken.c - tiktoken.model (Kimi) to a definition: lines of base64 and rank; rank and id are one.
 *
 * The file has neither special tokens nor a pattern: specials come from tokenizer_config.json, the pattern is Kimi's. Pieces are
 * bytes; they are kept in GPT-2's byte alphabet like everyone else's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/tok_internal.h"

enum { PIECE_MAX = 1024, RESERVED = 256, CONFIG_MAX = 64 << 20 };

struct alphabet { uint16_t of[256]; };

static size_t byte_char(const struct alphabet *al, uint8_t b, char *out)
{
    uint16_t c = al->of[b];
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3F));
    return 2;
}

static int digit(char c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' : c >= 'a' && c <= 'z' ? c - 'a' + 26 : c >= '0' && c <= '9' ? c - '0' + 52 : c == '+' ? 62 : c == '/' ? 63 : -1;
}

static int line(struct tok_def *d, const struct alphabet *al, const char *s, size_t n, uint32_t number, struct err *e)
{
    char piece[2 * PIECE_MAX];
    size_t k = 0, i = 0;
    uint32_t acc = 0, id = 0;
    unsigned bits = 0;
    for (; i < n && s[i] != ' ' && s[i] != '='; i++) {
        int v = digit(s[i]);
        if (v < 0 || k + 2 > sizeof piece)
            return err_set(e, ERR_FORMAT, "tiktoken.model: line %u: expected base64 of at most %d bytes", number, PIECE_MAX);
        acc = (acc << 6 | (uint32_t)v) & 0xFFFF;
        if ((bits += 6) >= 8) {
            bits -= 8;
            k += byte_char(al, (uint8_t)(acc >> bits), piece + k);
        }
    }
    while (i < n && s[i] == '=')
        i++;
    size_t from = ++i;
    for (; i < n && s[i] >= '0' && s[i] <= '9' && i - from < 9; i++)
        id = id * 10 + (uint32_t)(s[i] - '0');
    if (k == 0 || i != n || i == from)
        return err_set(e, ERR_FORMAT, "tiktoken.model: line %u: expected base64, a space and a rank", number);
    return tok_def_piece(d, id, piece, k, 0, e);
}

static int special(struct tok_def *d, const struct json *decoder, uint32_t id, struct err *e)
{
    char key[16], name[40];
    snprintf(key, sizeof key, "%u", id);
    const struct json *v = json_get(decoder, key), *text = json_get(v, "content"), *flag = json_get(v, "special");
    if (json_is(text, JSON_STRING))
        return tok_def_added(d, (int32_t)id, text->s, text->n, json_is(flag, JSON_BOOL) && !flag->b ? 0 : TOK_SPECIAL, e);
    snprintf(name, sizeof name, "<|reserved_token_%u|>", id);   /* as the model's own class names the rest */
    return tok_def_added(d, (int32_t)id, name, strlen(name), TOK_SPECIAL, e);
}

static int32_t named(const struct tok_def *d, const struct json *v)
{
    const struct json *s = json_is(v, JSON_OBJECT) ? json_get(v, "content") : v;
    for (uint32_t i = 0; json_is(s, JSON_STRING) && i < d->n_added; i++)
        if (d->added[i].n == s->n && !memcmp(d->added[i].s, s->s, s->n))
            return d->added[i].id;
    return -1;
}

static int specials(struct tok_def *d, const char *config, size_t n, struct err *e)
{
    struct json_limits lim = {.bytes_max = CONFIG_MAX, .allow_duplicates = true};
    struct json *v = NULL;
    struct arena a;
    uint32_t base = d->n_ids;
    arena_init(&a, CONFIG_MAX);
    int rc = config && n ? json_parse(&v, config, n, &lim, &a, e)
                         : err_set(e, ERR_NOTFOUND, "tiktoken.model: tokenizer_config.json, which has its special tokens, is missing");
    for (uint32_t i = 0; !rc && i < RESERVED; i++)
        rc = special(d, json_get(v, "added_tokens_decoder"), base + i, e);
    if (!rc) {
        d->bos = named(d, json_get(v, "bos_token"));
        tok_def_eos(d, named(d, json_get(v, "eos_token")));
    }
    arena_free(&a);
    return rc;
}

int tok_read_tiktoken(struct tok_def *d, const char *text, size_t n, const char *config, size_t config_n, struct err *e)
{
    const char *end = text + n, *pattern = tok_known_pattern(TOK_RE_KIMI);
    uint32_t number = 1;
    struct alphabet al;
    int rc = ERR_OK;
    for (uint32_t cp = 0; cp < 324; cp++)
        if (tok_byte_of_char(cp) >= 0)
            al.of[tok_byte_of_char(cp)] = (uint16_t)cp;
    d->model = TOK_BPE;
    d->flags = TOK_BYTE_LEVEL | TOK_DEC_BYTES | TOK_IGNORE_MERGES;
    d->merges_by_id = true;
    for (const char *s = text; !rc && s < end; number++) {
        const char *nl = memchr(s, '\n', (size_t)(end - s));
        size_t len = (size_t)((nl ? nl : end) - s);
        if (len && s[len - 1] == '\r')
            len--;
        if (len)
            rc = line(d, &al, s, len, number, e);
        s = nl ? nl + 1 : end;
    }
    if (!rc)
        rc = tok_def_op(d, true, TOK_SPLIT_CUT, 0, false, NULL, 0, NULL, 0, e);
    if (!rc)
        rc = tok_def_op(d, true, TOK_SPLIT_RE, TOK_ISOLATED, false, pattern, strlen(pattern), NULL, 0, e);
    return rc ? rc : specials(d, config, config_n, e);
}
