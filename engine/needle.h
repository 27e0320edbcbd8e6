/* engine/needle.h - a needle in a haystack: a made-up number hidden in a long text, and whether a model that was asked finds it again.
 *
 * Building the question is here apart from asking it (engine/verify.h, eng_verify_needle), so that it can be tested without a model. */
#ifndef SLUICE_ENGINE_NEEDLE_H
#define SLUICE_ENGINE_NEEDLE_H
#include "base/buf.h"

/* What a text is made of where none is given. */
extern const char eng_needle_filler[];
/* What a user says: what to do, the first `hay` bytes of text (again from its beginning where it is short; whole words), and the question. After depth
 * percent of it, at the end of a sentence or word, stands the number. False: no memory. */
bool eng_needle_message(struct buf *b, const char *text, size_t n, size_t hay, uint32_t depth, uint32_t number);
/* A number of five digits for a cell of the table: always the same, and none whose digits are in the text. */
uint32_t eng_needle_number(const char *text, size_t n, uint32_t length, uint32_t depth);
/* Is it in the answer, by itself: not as a part of a longer number; "12,345" counts. */
bool eng_needle_found(const char *answer, size_t n, uint32_t number);
#endif
