/* engine/guide.h - one sequence under a grammar: from which token on it rules, which ids may come next, when it is over.
 *
 * Without a trigger the grammar rules from the first token of the output; end-of-sequence may come exactly where the text is whole, and when
 * nothing else can follow the sequence stops by itself. With a trigger the output is free until the trigger's text has appeared in it; what
 * follows must be a text of the grammar; once that text is whole and nothing can follow in the grammar, the output is free again and the trigger may fire again.
 * A trigger is text; control tokens spelled in it are met by those tokens only. One that ends inside a token rules the rest of that token too.
 * Invariant: what may come depends on the grammar and the output's tokens alone: a resumed or preempted sequence has the same masks.
 * Threads: open and close from any; the rest by the scheduler thread. A struct eng_guide is plain data: a copy may look ahead with eng_guide_mask / eng_guide_token (tokens of a draft, each verified under the mask of its place) and is dropped to
 *          roll back; it is good until the step ends. Never close a copy. */
#ifndef SLUICE_ENGINE_GUIDE_H
#define SLUICE_ENGINE_GUIDE_H
#include "engine/engine.h"
#include "engine/grammar.h"

enum { ENG_GUIDE_UNITS_MAX = ENG_GRAMMAR_TRIGGER_MAX };
struct eng_trigger { uint32_t n; int32_t unit[ENG_GUIDE_UNITS_MAX]; uint16_t fail[ENG_GUIDE_UNITS_MAX]; }; /* a byte, or 256 + id of a control token */

struct eng_guide {
    eng_grammar *grammar;              /* borrowed; NULL: no guide */
    struct eng_trigger *trigger;       /* owned; NULL: rules from the first token */
    struct eng_grammar_state state;
    bool ruling;                       /* the grammar rules now */
    uint32_t met;                      /* units of the trigger that the output ends in */
    uint32_t n_fed;                    /* tokens of the output it has seen */
};
/* What may come next. */
struct eng_allowed {
    bool ruled;                        /* only the ids whose bits are set, and an end if may_end; false: anything */
    bool may_end;
    uint32_t count;                    /* bits set */
};

/* ERR_INVALID: a trigger of no byte or too many. On error there is nothing to close. */
int eng_guide_open(struct eng_guide *u, eng_grammar *grammar, const eng_vocab *v, const char *trigger, size_t n, struct err *e);
void eng_guide_close(struct eng_guide *u);
/* Brings u to the end of out[0, n_out): only what it has not seen, or all when the grammar's memory was dropped. keep_max: see eng_grammar_begin.
 * Before the first use in a step. ERR_INVALID: the output is none of the grammar's. */
int eng_guide_sync(struct eng_guide *u, const eng_vocab *v, const int32_t *out, uint32_t n_out, size_t keep_max, struct err *e);
/* Takes one token. ERR_INVALID: it may not come here, and u stays; in free output that is one that ends the trigger and goes on wrongly. */
int eng_guide_token(struct eng_guide *u, const eng_vocab *v, int32_t id, struct err *e);
int eng_guide_mask(struct eng_guide *u, uint64_t *bits /* eng_vocab_words(v); written if ruled */, struct eng_allowed *a, struct err *e);
int eng_guide_stuck(const struct eng_guide *u, struct err *e); /* nothing may come: ERR_INVALID says where the grammar stands */
bool eng_guide_over(const struct eng_guide *u);  /* no trigger, and nothing can follow */
#endif
