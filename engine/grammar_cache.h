/* engine/grammar_cache.h - compiled grammars of an engine, by the SHA-256 of their text.
 *
 * Owns:      every compiled grammar; those that no request leases stay until room is needed, the longest unused first.
 * Invariant: at most entries_max grammars; their networks take at most GRAMMARS_BYTES_MAX, what their automata keep is bounded by eng_grammar_begin.
 * Threads:   any. A compile runs on the caller's thread without the lock, bounded by the limits of a grammar. */
#ifndef SLUICE_ENGINE_GRAMMAR_CACHE_H
#define SLUICE_ENGINE_GRAMMAR_CACHE_H
#include "engine/grammar.h"

enum { ENG_GRAMMARS_IDLE = 8, ENG_GRAMMARS_BYTES_MAX = 8 << 20 };
typedef struct eng_grammars eng_grammars;
int eng_grammars_open(eng_grammars **out, const eng_tok *t, uint32_t entries_max, struct err *e);
void eng_grammars_close(eng_grammars *c);
/* ERR_INVALID, ERR_LIMIT: of the grammar; ERR_AGAIN: leased ones fill the cache. Each lease is given back once. */
int eng_grammars_lease(eng_grammars *c, const char *gbnf, size_t n, eng_grammar **out, struct err *e);
void eng_grammars_release(eng_grammars *c, eng_grammar *g); /* NULL is fine */
#endif
