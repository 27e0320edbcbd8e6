/* engine/tok_internal.h - what the files of the tokenizer share: a neutral definition, the built tables, one call's scratch.
 *
 * Readers (tok_json.c, tok_gguf.c, tok_tiktoken.c, tok_blob.c) fill a tok_def and know nothing of tables; tok_build.c turns a
 * complete def into an eng_tok; the rest only reads it. So every source of a tokenizer, the saved blob included, takes one path. */
#ifndef SLUICE_ENGINE_TOK_INTERNAL_H
#define SLUICE_ENGINE_TOK_INTERNAL_H
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/arena.h"
#include "engine/tokenizer.h"

enum { TOK_OPS_MAX = 12, TOK_WRAP_MAX = 8, TOK_EOS_MAX = 16, TOK_ADDED_BYTES_MAX = 1024, TOK_PIECE_BYTES_MAX = 1024, TOK_IDS_MAX = 1 << 23 };

enum tok_model { TOK_BPE = 1, TOK_UNIGRAM = 2 };
enum tok_flag {                    /* tok_def.flags */
    TOK_BYTE_LEVEL = 1,            /* pieces are spelled in GPT-2's byte alphabet; symbols are bytes, else characters */
    TOK_BYTE_FALLBACK = 2,         /* what has no piece becomes <0x..> pieces */
    TOK_FUSE_UNK = 4,
    TOK_IGNORE_MERGES = 8,         /* a stretch that is a piece is taken whole */
    TOK_DEC_BYTES = 16,            /* decoder: the byte alphabet back to bytes */
    TOK_DEC_FALLBACK = 32,         /* decoder: <0x..> are bytes */
    TOK_DEC_SPACE = 64,            /* decoder: U+2581 is a space */
    TOK_DEC_STRIP = 128,           /* decoder: one leading space of the whole text goes */
    TOK_DEC_FIRST = 256,           /* decoder: every U+2581 of the first token goes (Metaspace) */
    TOK_FLAGS_ALL = 511
};
enum tok_op_kind {
    /* normalisers */
    TOK_NORM_NFC = 1, TOK_NORM_NFD, TOK_NORM_NFKC, TOK_NORM_NFKD,
    TOK_NORM_PREPEND,              /* a */
    TOK_NORM_REPLACE,              /* string a by string b */
    TOK_NORM_REPLACE_RE,           /* pattern a by string b */
    TOK_NORM_STRIP_LEFT, TOK_NORM_STRIP_RIGHT, TOK_NORM_LOWER,
    TOK_NORM_PRECOMPILED,          /* a: the map of SentencePiece */
    /* splits, in sequence */
    TOK_SPLIT_RE = 32,             /* pattern a; behaviour */
    TOK_SPLIT_STRING,              /* string a; behaviour */
    TOK_SPLIT_SPACE_PREFIX,        /* a space in front of a stretch that does not start with one */
    TOK_SPLIT_CUT,                 /* Kimi's limits: every 400,000 characters, and runs of (non-)space at 25,000 */
    TOK_SPLIT_META                 /* Metaspace: spaces to a, b[0] the scheme (a always, f first, n never), b[1] y/n split */
};
enum tok_behaviour { TOK_ISOLATED, TOK_REMOVED, TOK_MERGED_PREVIOUS, TOK_MERGED_NEXT, TOK_CONTIGUOUS };
struct tok_op { uint8_t kind, behaviour; bool invert; const char *a, *b; uint32_t an, bn; };

enum { TOK_SPECIAL = 1, TOK_NORMALIZED = 2, TOK_LSTRIP = 4, TOK_RSTRIP = 8, TOK_WORD = 16, TOK_IN_TEMPLATE = 32 };
struct tok_added { int32_t id; uint32_t n; const char *s; uint8_t flags; };

struct tok_piece { uint32_t off, n; double score; bool used, hidden; }; /* hidden: encoding never makes it from text */
struct tok_merge { int32_t left, right, out; uint32_t rank; };
struct tok_merge_text { uint32_t off, n_left, n_right; };

struct tok_def {
    struct arena mem;              /* ops' and added tokens' texts */
    enum tok_model model;
    unsigned flags;
    int32_t unk, bos;
    struct buf pool;               /* pieces' bytes, as stored in the file */
    struct tok_piece *pieces; uint32_t n_ids, cap_ids, n_used;
    struct buf merge_pool;         /* merges as text, until tok_build resolves them */
    struct tok_merge_text *merge_texts; uint32_t n_merge_texts, cap_merge_texts;
    struct tok_merge *merges; uint32_t n_merges, cap_merges;
    bool merges_by_score;          /* no merges in the file: derived from pieces and scores */
    bool merges_by_id;             /* likewise, rank = id of the result (tiktoken) */
    struct tok_added *added; uint32_t n_added, cap_added;
    struct tok_op norm[TOK_OPS_MAX], split[TOK_OPS_MAX];
    unsigned n_norm, n_split;
    int32_t head[TOK_WRAP_MAX], tail[TOK_WRAP_MAX]; /* what TemplateProcessing puts around a text */
    unsigned n_head, n_tail;
    int32_t eos[TOK_EOS_MAX]; unsigned n_eos;
};

int tok_def_init(struct tok_def *d, struct err *e);
void tok_def_free(struct tok_def *d);
int tok_def_piece(struct tok_def *d, uint32_t id, const char *s, size_t n, double score, struct err *e);
int tok_def_merge_text(struct tok_def *d, const char *l, size_t ln, const char *r, size_t rn, struct err *e);
int tok_def_merge_line(struct tok_def *d, const char *s, size_t n, struct err *e); /* "left right" */
int tok_def_merge(struct tok_def *d, const struct tok_merge *m, struct err *e);
int tok_def_added(struct tok_def *d, int32_t id, const char *s, size_t n, unsigned flags, struct err *e);
int tok_def_op(struct tok_def *d, bool split, uint8_t kind, uint8_t behaviour, bool invert,
               const char *a, size_t an, const char *b, size_t bn, struct err *e);
void tok_def_eos(struct tok_def *d, int64_t id);   /* ignores ids that are out of range or known already */
/* tok_known.c. Up to TOK_RE_DEEPSEEK: patterns that take words (tok_known_words); 0 is none. */
enum tok_known { TOK_RE_GPT2 = 1, TOK_RE_LLAMA3, TOK_RE_QWEN2, TOK_RE_QWEN35, TOK_RE_O200K, TOK_RE_TEKKEN, TOK_RE_KIMI, TOK_RE_DEEPSEEK,
                 TOK_RE_DIGITS3, TOK_RE_DIGIT, TOK_RE_CJK };
const char *tok_known_pattern(enum tok_known k);
bool tok_known_words(const char *pattern, size_t n);
void tok_def_named_eos(struct tok_def *d);         /* special tokens whose names end a turn or a text in every family */

/* Fill *d from tokenizer.json (+ tokenizer_config.json), from GGUF metadata, from a tiktoken file. */
int tok_read_json(struct tok_def *d, const char *json, size_t n, const char *config, size_t config_n, struct err *e);
int tok_read_gguf(struct tok_def *d, const off_catalog *c, struct err *e);
int tok_read_tiktoken(struct tok_def *d, const char *text, size_t n, const char *config, size_t config_n,
                      struct err *e);

/* ---- built ------------------------------------------------------------------------------------------------- */
struct tok_map { struct tok_slot { uint32_t tag, id1; } *slot; uint32_t mask; }; /* open addressing: upper half of the hash, id + 1 (0: free) */
struct tok_pair { uint32_t left, right, out, rank; };           /* out UINT32_MAX: free */
struct tok_node { uint32_t key, to; };                          /* key: node << 8 | byte, to 0: free */
struct tok_trie {
    struct tok_node *edge; uint32_t mask;
    int32_t *value;                                             /* [nodes]: index given at insert, -1 none */
    uint32_t n_nodes, cap_nodes, n_edges;
    uint32_t first[256];                                        /* children of the root, 0: none */
};
struct tok_run;
struct tok_re { pcre2_code *code; bool jit, words; };    /* words: plain words need no pattern (tok_known_words) */

struct eng_tok {
    struct tok_def d;
    uint64_t seed;
    struct buf raw_pool;           /* bytes a piece stands for; byte-level pieces only, others share d.pool */
    struct tok_bytes { uint32_t off, n; } *raw;                 /* [n_ids]; in raw_pool if TOK_BYTE_LEVEL, else in d.pool */
    struct tok_map by_piece, by_raw;                            /* by_raw: what encoding may make, keyed by raw bytes */
    struct tok_pair *pairs; uint32_t pair_mask;
    int32_t byte_id[256];          /* byte-level: the piece of one byte; fallback: <0x..>; -1 none */
    int16_t *byte_of;              /* [n_ids]: the byte a fallback piece stands for, -1 none */
    int32_t *added_of;             /* [n_ids]: index in d.added, -1 none */
    struct tok_trie raw_trie, norm_trie, uni_trie;
    struct tok_re re[TOK_OPS_MAX], norm_re[TOK_OPS_MAX];
    bool cut_at_space;             /* characters, with U+2581 as a piece: stretches may be cut in front of it .. */
    bool no_cut[256];              /* .. except behind a byte that ends the left part of a merge whose right part begins with it */
    bool has_norm_added;
    double uni_min;                /* Unigram: the lowest score */
};

int tok_build(eng_tok **out, struct tok_def *d, struct err *e); /* takes *d, on error too */
uint64_t tok_hash(uint64_t seed, const char *p, size_t n);
int32_t tok_map_find(const eng_tok *t, const struct tok_map *m, bool raw, const char *p, size_t n);
int tok_byte_of_char(uint32_t cp);                              /* GPT-2's byte alphabet; -1: not in it */
const char *tok_raw(const eng_tok *t, int32_t id, size_t *n);

const char *tok_find(const char *s, size_t n, const char *what, size_t m); /* memmem */

int tok_trie_add(struct tok_trie *tr, const char *s, size_t n, int32_t value, struct err *e);
uint32_t tok_trie_step(const struct tok_trie *tr, uint32_t node, uint8_t byte); /* 0: no way on; node 0 is the root */
void tok_trie_free(struct tok_trie *tr);

bool tok_unicode_ranges(const char *category, struct buf *out);
int tok_re_open(struct tok_run *r);
bool tok_re_next(struct tok_run *r, const struct tok_re *re, pcre2_match_data *md, const char *s, size_t n, size_t pos,
                 size_t *b, size_t *end, int *rc);
int tok_re_translate(const char *pattern, size_t n, struct buf *out, struct err *e); /* to PCRE2's dialect; out is the caller's to free */
int tok_re_compile(struct tok_re *re, const char *pattern, size_t n, struct err *e);
void tok_re_free(struct tok_re *re);

/* ---- one call ---------------------------------------------------------------------------------------------- */
enum tok_mode { TOK_MODE_NONE, TOK_MODE_PLAIN, TOK_MODE_ALL, TOK_MODE_SPANS };
enum { TOK_CACHE_KEY = 24, TOK_CACHE_IDS = 8, TOK_SMALL = 48 };
struct tok_cached { _Alignas(64) uint8_t n_key; uint8_t n_ids; /* one line of the cache */ char key[TOK_CACHE_KEY]; int32_t ids[TOK_CACHE_IDS]; };
struct tok_sym { int32_t id, prev, next; };                     /* id -2: merged away */
struct tok_cand { uint64_t key; uint32_t left, right; };        /* key: rank << 32 | position; a min-heap */

struct tok_run {
    const eng_tok *t;
    struct eng_ids *ids;
    struct err *e;
    enum tok_mode mode;
    const struct eng_text_span *spans; size_t n_spans;
    pcre2_match_data *md[TOK_OPS_MAX], *norm_md;
    pcre2_match_context *mc;
    pcre2_jit_stack *stack;
    struct buf norm[2], level[TOK_OPS_MAX];
    struct tok_sym *sym; size_t cap_sym;
    struct tok_cand *heap; size_t n_heap, cap_heap;
    void *uni; size_t cap_uni;
    struct tok_cached *cache;                                   /* NULL: a text too short to pay for it */
    uint32_t cache_mask;
    uint64_t work;                                              /* trie steps, pair look-ups, heap moves: what a linearity test counts */
    bool at_start;                                              /* the stretch at hand starts the text */
    bool continues;                                             /* it goes on where another ended: nothing is put in front of it */
};
int tok_run_open(struct tok_run *r, const eng_tok *t, size_t text_bytes, struct eng_ids *ids, struct err *e);
void tok_run_close(struct tok_run *r);
int tok_run_text(struct tok_run *r, const char *text, size_t n);
int tok_normalise(struct tok_run *r, const char **s, size_t *n); /* in: a stretch; out: borrowed from r->norm or the input */
int tok_precompiled(struct tok_run *r, const struct tok_op *op, const char *s, size_t n, struct buf *out);
int tok_split(struct tok_run *r, const char *s, size_t n);       /* calls tok_piece_ids on each piece */
int tok_piece_ids(struct tok_run *r, const char *s, size_t n);
int tok_bpe(struct tok_run *r, const char *s, size_t n);
int tok_unigram(struct tok_run *r, const char *s, size_t n);
size_t tok_utf8_len(uint8_t lead);                               /* of valid text */
bool tok_utf8_valid(const char *s, size_t n, size_t *bad);
uint32_t tok_utf8_at(const char *s);                             /* of valid text */
bool tok_is_space(uint32_t cp);                                  /* White_Space */
bool tok_is_word(uint32_t cp);                                   /* letter, mark, digit, connector */
#endif
