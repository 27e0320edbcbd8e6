/* engine/grammar_internal.h - what the parser (gbnf.c), the network (grammar_build.c), the automaton (grammar.c) and the vocabulary (vocab.c) share. */
#ifndef SLUICE_ENGINE_GRAMMAR_INTERNAL_H
#define SLUICE_ENGINE_GRAMMAR_INTERNAL_H
#include "base/arena.h"
#include "engine/grammar.h"

enum { GBNF_DEPTH_MAX = 100, GBNF_RULES_MAX = 1 << 16, GBNF_NODES_MAX = 1 << 16, GBNF_NAME_MAX = 255 };
#define GBNF_MANY UINT32_MAX

/* ---- a parsed grammar -------------------------------------------------------------------------------------- */
enum gbnf_kind { GBNF_SEQ, GBNF_ALT, GBNF_TEXT, GBNF_CLASS, GBNF_REF, GBNF_REPEAT, GBNF_TOKEN };
struct gbnf_range { uint32_t lo, hi; };                        /* code points */
struct gbnf_item {
    enum gbnf_kind kind;
    bool negated;                                              /* TOKEN */
    uint32_t n;                                                /* SEQ, ALT: entries; TEXT: bytes; CLASS: ranges, sorted, apart */
    uint32_t min, max;                                         /* REPEAT; max GBNF_MANY: no bound */
    uint32_t rule;                                             /* REF */
    int32_t id;                                                /* TOKEN */
    const char *text;
    struct gbnf_range *ranges;
    struct gbnf_item *first, *last, *next;                     /* entries; REPEAT has one */
};
struct gbnf_rule { const char *name; uint32_t n_name, line; struct gbnf_item *body; }; /* body NULL: not defined; line: of its first mention */
struct gbnf { struct arena mem; struct gbnf_rule *rules; uint32_t n_rules, cap_rules; uint32_t *slot, mask; uint32_t root; };
int gbnf_parse(struct gbnf *g, const char *text, size_t n, const eng_tok *t, struct err *e); /* gbnf_free in any case */
void gbnf_free(struct gbnf *g);

/* ---- the network ------------------------------------------------------------------------------------------- */
enum node_kind { NODE_END, NODE_RANGE /* bytes lo..hi, then a */, NODE_TOKEN /* id b (lo: any other), then a */, NODE_SPLIT /* a or b */,
                 NODE_CALL /* rule a, then b */ };
struct node { uint8_t kind, lo, hi; uint32_t a, b; };          /* node 0 is END */
struct net {
    struct node *nodes; uint32_t *rule_of; uint32_t n, cap;
    uint32_t *entry; char **names; uint32_t n_rules, cap_rules; /* names NULL: of a character class */
    uint32_t root;                                             /* node */
    uint8_t class_of[256]; uint32_t n_classes;                 /* bytes that no edge tells apart */
};
int net_build(struct net *w, const struct gbnf *g, struct err *e); /* net_free in any case */
void net_free(struct net *w);
size_t net_bytes(const struct net *w);

/* ---- the vocabulary ---------------------------------------------------------------------------------------- */
enum { TEXT_CHARS_MAX = 24, TOKEN_BYTES_MAX = 1024 };
struct trie_node { uint32_t end /* first node behind the subtree */, tok /* in order */; uint16_t depth; uint8_t byte, has; };
struct trie { struct trie_node *nodes; uint32_t n; };
/* Two tries: tokens of whole printable characters other than '"' and '\' ("text"), which strings of most grammars take all, and the rest. */
struct eng_vocab {
    uint32_t n_ids;
    size_t n_words;
    char *pool; uint32_t *off;                                 /* [n_ids + 1]: each token's bytes; empty: adds nothing to the output */
    uint32_t *order; uint32_t n_order;                         /* ids by bytes, text's first; bit 31: the last with these bytes */
    struct trie text, rest;
    uint64_t *text_bits, *other_bits;                          /* tokens of `text`; all that exist and do not end a sequence */
    int32_t *control; uint32_t n_control;                      /* control tokens */
    const eng_tok *tok;
};
#endif
