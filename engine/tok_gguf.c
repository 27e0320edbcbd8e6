/* engine/tok_gguf.c - GGUF metadata (tokenizer.ggml.*) to a definition.
 *
 * The file has a name (pre) where tokenizer.json has patterns; tok_known.c has their texts. A name that is not in the table is refused:
 * defaulting would split wrongly without a sign. Normalisers are not in the file either: Qwen is NFC also from here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/tok_internal.h"

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

static const struct pre { const char *name; enum tok_known pattern[3]; bool nfc, ignore_merges, bos; } pres[] = {
    {"llama-bpe", {TOK_RE_LLAMA3}, false, true, true},      {"llama3", {TOK_RE_LLAMA3}, false, true, true},
    {"llama-v3", {TOK_RE_LLAMA3}, false, true, true},       {"smollm", {TOK_RE_DIGIT, TOK_RE_GPT2}, false, false, false},
    {"tekken", {TOK_RE_TEKKEN}, false, true, true},         {"qwen2", {TOK_RE_QWEN2}, true, false, false},
    {"deepseek-r1-qwen", {TOK_RE_QWEN2}, true, false, true},{"qwen35", {TOK_RE_QWEN35}, true, false, false},
    {"deepseek-v3", {TOK_RE_DIGITS3, TOK_RE_CJK, TOK_RE_DEEPSEEK}, false, false, false},
    {"gpt-4o", {TOK_RE_O200K}, false, true, false},         {"llama4", {TOK_RE_O200K}, false, true, true},
    {"kimi-k2", {TOK_RE_KIMI}, false, true, false},         {"glm4", {TOK_RE_LLAMA3}, false, false, false},
    {"chatglm-bpe", {TOK_RE_LLAMA3}, false, false, false},  {"dbrx", {TOK_RE_LLAMA3}, false, false, false},
    {"olmo", {TOK_RE_GPT2}, false, false, false},             {"gpt-2", {TOK_RE_GPT2}, false, false, false},
};

static const char *text_of(const struct json *m, const char *key)
{
    return json_str(json_get(m, key));
}

static bool flag_of(const struct json *m, const char *key, bool otherwise)
{
    const struct json *v = json_get(m, key);
    return json_is(v, JSON_BOOL) ? v->b : otherwise;
}

static int32_t id_of(const struct json *m, const char *key)
{
    int64_t id;
    return json_int(json_get(m, key), &id) && id >= 0 && id < TOK_IDS_MAX ? (int32_t)id : -1;
}

static int pre_tokenizer(struct tok_def *d, const char *name, bool *bos, struct err *e)
{
    int rc = ERR_OK;
    for (size_t i = 0; i < sizeof pres / sizeof *pres; i++) {
        const struct pre *p = &pres[i];
        if (strcmp(p->name, name))
            continue;
        if (p->nfc)
            rc = tok_def_op(d, false, TOK_NORM_NFC, 0, false, NULL, 0, NULL, 0, e);
        for (int k = 0; !rc && k < 3 && p->pattern[k]; k++) {
            const char *re = tok_known_pattern(p->pattern[k]);
            rc = tok_def_op(d, true, TOK_SPLIT_RE, TOK_ISOLATED, false, re, strlen(re), NULL, 0, e);
        }
        d->flags |= p->ignore_merges ? TOK_IGNORE_MERGES : 0;
        *bos = p->bos;
        return rc;
    }
    return err_set(e, ERR_UNSUPPORTED, "GGUF: tokenizer.ggml.pre \"%s\" is not known", name);
}

/* SentencePiece keeps the mark for a space; some converters wrote spaces instead (Gemma 3's runs). */
static const char *with_marks(const char *s, size_t *n, char *room, size_t room_n)
{
    size_t k = 0;
    if (!memchr(s, ' ', *n) || *n * 3 > room_n)
        return s;
    for (size_t i = 0; i < *n; i++) {
        memcpy(room + k, s[i] == ' ' ? "\xE2\x96\x81" : s + i, s[i] == ' ' ? 3 : 1);
        k += s[i] == ' ' ? 3 : 1;
    }
    *n = k;
    return room;
}

/* Gemma's placeholders and Qwen's code markers are plain added tokens in their own tokenizers; their GGUFs call them control. */
static bool plain_after_all(const char *s, size_t n, bool sp)
{
    static const char *const qwen[] = {"<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"};
    if (sp)
        return (n == 6 && !memcmp(s, "<mask>", 6)) || (n > 8 && n < 16 && !memcmp(s, "<unused", 7) && s[7] >= '0' && s[7] <= '9' && s[n - 1] == '>');
    for (size_t i = 0; i < sizeof qwen / sizeof *qwen; i++)
        if (n == strlen(qwen[i]) && !memcmp(s, qwen[i], n))
            return true;
    return false;
}

static int pieces(struct tok_def *d, const off_catalog *c, bool sp, bool qwen, struct err *e)
{
    struct off_array tokens, types, scores;
    int64_t type = TYPE_NORMAL;
    double score = 0;
    int rc = ERR_OK;
    if (!off_gguf_array(c, "tokenizer.ggml.tokens", &tokens) || tokens.n == 0 || tokens.n > TOK_IDS_MAX)
        return err_set(e, ERR_FORMAT, "GGUF: tokenizer.ggml.tokens is missing, empty or too long");
    bool typed = off_gguf_array(c, "tokenizer.ggml.token_type", &types), scored = off_gguf_array(c, "tokenizer.ggml.scores", &scores);
    if ((typed && types.n != tokens.n) || (scored && scores.n != tokens.n))
        return err_set(e, ERR_FORMAT, "GGUF: %llu tokens, but %llu types or %llu scores", (unsigned long long)tokens.n,
                       (unsigned long long)(typed ? types.n : tokens.n), (unsigned long long)(scored ? scores.n : tokens.n));
    if (sp && !scored)
        return err_set(e, ERR_FORMAT, "GGUF: tokenizer.ggml.scores is missing");
    for (uint32_t i = 0; !rc && i < tokens.n; i++) {
        size_t n = 0;
        char room[512];
        const char *s = off_array_str(&tokens, i, &n);
        if (!s || (typed && !off_array_int(&types, i, &type)) || (scored && !off_array_num(&scores, i, &score)) || score != score)
            return err_set(e, ERR_FORMAT, "GGUF: entry %u of tokenizer.ggml.tokens, token_type or scores has a wrong type", i);
        if (type == TYPE_UNUSED || n == 0)   /* padding rows of the embedding */
            continue;
        bool special = type == TYPE_CONTROL || type == TYPE_UNKNOWN;
        if (sp && (type == TYPE_NORMAL || type == TYPE_USER))
            s = with_marks(s, &n, room, sizeof room);
        if (special || type == TYPE_USER)
            rc = tok_def_added(d, (int32_t)i, s, n, special && !((sp || qwen) && plain_after_all(s, n, sp)) ? TOK_SPECIAL : 0, e);
        if (!rc) /* SentencePiece takes user-defined pieces first, whatever score the file gives them */
            rc = tok_def_piece(d, i, s, n, sp && type == TYPE_USER ? 1e9 : score, e);
    }
    return rc;
}

static int merges(struct tok_def *d, const off_catalog *c, struct err *e)
{
    struct off_array a;
    int rc = ERR_OK;
    if (!off_gguf_array(c, "tokenizer.ggml.merges", &a))
        return err_set(e, ERR_FORMAT, "GGUF: tokenizer.ggml.merges is missing");
    for (uint64_t i = 0; !rc && i < a.n; i++) {
        size_t n;
        const char *s = off_array_str(&a, i, &n);
        rc = s ? tok_def_merge_line(d, s, n, e) : err_set(e, ERR_FORMAT, "GGUF: tokenizer.ggml.merges are no strings");
    }
    return rc;
}

static int sentencepiece(struct tok_def *d, const struct json *m, struct err *e)
{
    bool prefix = flag_of(m, "tokenizer.ggml.add_space_prefix", true);
    int rc = ERR_OK;
    d->flags |= TOK_BYTE_FALLBACK | TOK_FUSE_UNK | TOK_DEC_FALLBACK | TOK_DEC_SPACE | (prefix ? TOK_DEC_STRIP : 0u);
    d->merges_by_score = true;
    d->unk = id_of(m, "tokenizer.ggml.unknown_token_id");
    if (prefix)
        rc = tok_def_op(d, false, TOK_NORM_PREPEND, 0, false, "\xE2\x96\x81", 3, NULL, 0, e);
    return rc ? rc : tok_def_op(d, false, TOK_NORM_REPLACE, 0, false, " ", 1, "\xE2\x96\x81", 3, e);
}

int tok_read_gguf(struct tok_def *d, const off_catalog *c, struct err *e)
{
    const struct json *m = off_catalog_config(c);
    const char *model = text_of(m, "tokenizer.ggml.model"), *pre = text_of(m, "tokenizer.ggml.pre");
    bool bos = false;
    int rc;
    if (!model)
        return err_set(e, ERR_FORMAT, "GGUF: tokenizer.ggml.model is missing");
    bool sp = !strcmp(model, "llama");
    if (!sp && strcmp(model, "gpt2"))
        return err_set(e, ERR_UNSUPPORTED, "GGUF: tokenizer.ggml.model \"%s\" is not known", model);
    d->model = TOK_BPE;
    if (sp) {
        bos = true;
        if (pre && strcmp(pre, "default"))
            return err_set(e, ERR_UNSUPPORTED, "GGUF: tokenizer.ggml.pre \"%s\" is not known for model llama", pre);
        rc = sentencepiece(d, m, e);
    } else {
        d->flags |= TOK_BYTE_LEVEL | TOK_DEC_BYTES;
        if (!(rc = pre_tokenizer(d, pre ? pre : "gpt-2", &bos, e)))
            rc = merges(d, c, e);
    }
    if (rc || (rc = pieces(d, c, sp, pre && !strcmp(pre, "qwen2"), e)))
        return rc;
    d->bos = id_of(m, "tokenizer.ggml.bos_token_id");
    int32_t eos = id_of(m, "tokenizer.ggml.eos_token_id");
    tok_def_eos(d, eos);
    tok_def_eos(d, id_of(m, "tokenizer.ggml.eot_token_id"));
    tok_def_eos(d, id_of(m, "tokenizer.ggml.eom_token_id"));
    if (flag_of(m, "tokenizer.ggml.add_bos_token", bos) && d->bos >= 0)
        d->head[d->n_head++] = d->bos;
    if (flag_of(m, "tokenizer.ggml.add_eos_token", false) && eos >= 0)
        d->tail[d->n_tail++] = eos;
    return ERR_OK;
}
