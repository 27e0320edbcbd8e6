/* engine/grammar.h - which tokens may come next, so that the output is a text of a grammar.
 *
 * GBNF, as llama.cpp spells it: `name ::= alternatives`; `|`, groups, `* + ? {m} {m,} {m,n} {,n}`, "strings", [classes] with ranges, `^` and the
 * escapes \n \r \t \\ \" \[ \] \- \xHH \uHHHH \UHHHHHHHH (code points), `.` (any character), `# comments`; a rule ends with its line, except in a
 * group, after `::=` and after `|`. Generation starts at `root`. Tokens: `<text>` or `<[id]>` is that token of the model, `!<..>` any other one;
 * only so can a control token be meant. Everything else is matched by the bytes a token stands for, so a character may be split over tokens.
 * Rules that `root` does not reach are read and dropped.
 * Refused, with the rule's name: syntax errors, undefined or repeated rules, left recursion, rules that can never end, a text that is too large.
 *
 * Method: rules become a network of byte edges and calls; a configuration is a set of (edge, stack of returns). Configurations are numbered as they are met and
 * their byte transitions and token masks kept: a lazily determinised pushdown automaton. What is kept is bounded: when there is too much of it,
 * it is forgotten at the next eng_grammar_begin, and states of older generations must be made again from the tokens.
 * Sources: GBNF guide of llama.cpp; Thompson, "Regular expression search algorithm", 1968; Cox, "Regular expression matching in the wild", 2010 (the
 * bounded cache); Dong et al., "XGrammar", 2024 (masks kept by automaton state).
 * Threads: a vocabulary is read-only; compile and close from any; all else by one thread at a time for one grammar. */
#ifndef SLUICE_ENGINE_GRAMMAR_H
#define SLUICE_ENGINE_GRAMMAR_H
#include "engine/tokenizer.h"

/* The vocabulary as a trie over bytes. t is borrowed; ids >= n_ids do not exist. */
typedef struct eng_vocab eng_vocab;
int eng_vocab_open(eng_vocab **out, const eng_tok *t, uint32_t n_ids, struct err *e);
void eng_vocab_close(eng_vocab *v);
size_t eng_vocab_bytes(const eng_vocab *v);
size_t eng_vocab_words(const eng_vocab *v);                                   /* of a mask: 64 ids each */
const char *eng_vocab_text(const eng_vocab *v, int32_t id, size_t *n); /* what the token adds to the output; NULL: nothing (control, unused) */

typedef struct eng_grammar eng_grammar;
/* t: for `<text>` terminals. ERR_INVALID (line, or rule), ERR_LIMIT, ERR_NOMEM. */
int eng_grammar_compile(eng_grammar **out, const char *gbnf, size_t n, const eng_tok *t, struct err *e);
void eng_grammar_close(eng_grammar *g);
size_t eng_grammar_bytes(const eng_grammar *g);        /* of rules and of all that is kept now */

/* One place in a text of the grammar. Plain data: copy it to look ahead (tokens of a draft), drop the copy to come back. Valid until the
 * next eng_grammar_begin that starts a new generation. */
struct eng_grammar_state { uint32_t at, generation; };

/* Before a step's first use: forgets what is kept when it is more than keep_max bytes (0: in any case). v stays the same for a grammar's life. */
void eng_grammar_begin(eng_grammar *g, const eng_vocab *v, size_t keep_max);
bool eng_grammar_valid(const eng_grammar *g, struct eng_grammar_state s); /* is of the present generation */
int eng_grammar_start(eng_grammar *g, struct eng_grammar_state *s, struct err *e);
/* Takes one token. ERR_INVALID: it may not come here (*s stays); ERR_LIMIT: the grammar is too ambiguous; ERR_NOMEM. */
int eng_grammar_accept(eng_grammar *g, struct eng_grammar_state *s, int32_t id, struct err *e);
int eng_grammar_bytes_accept(eng_grammar *g, struct eng_grammar_state *s, const char *p, size_t n, struct err *e); /* likewise, text */
/* Writes eng_vocab_words(v) words: bits[id / 64] >> id % 64 & 1: id may come next. End-of-sequence is not among them unless the grammar names
 * it: may_end says that. *count: how many are set. */
int eng_grammar_mask(eng_grammar *g, struct eng_grammar_state s, uint64_t *bits, uint32_t *count, struct err *e);
bool eng_grammar_may_end(const eng_grammar *g, struct eng_grammar_state s); /* the text so far is whole */
bool eng_grammar_over(const eng_grammar *g, struct eng_grammar_state s);    /* .. and nothing can follow */
/* For messages: the rules that are open at s, "root > object > string". */
void eng_grammar_where(const eng_grammar *g, struct eng_grammar_state s, char *out, size_t n);
#endif
