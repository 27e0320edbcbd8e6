#include "engine/guide.h"

#include <stdlib.h>
#include <string.h>

#include "engine/grammar_internal.h"

/* ---- the trigger -------------------------------------------------------------------------------------------- */

/* The longest control token whose text begins at p; -1: none. */
static int32_t control_at(const eng_vocab *v, const char *p, size_t n, size_t *len)
{
    int32_t best = -1;
    *len = 0;
    for (uint32_t i = 0; i < v->n_control; i++) {
        size_t k;
        const char *s = eng_tok_piece(v->tok, v->control[i], &k);
        if (s && k > *len && k <= n && !memcmp(s, p, k)) {
            best = v->control[i];
            *len = k;
        }
    }
    return best;
}

static void read_trigger(struct eng_trigger *t, const eng_vocab *v, const char *p, size_t n)
{
    for (size_t i = 0, len; i < n && t->n < ENG_GUIDE_UNITS_MAX; i += len) {
        int32_t id = control_at(v, p + i, n - i, &len);
        t->unit[t->n++] = id < 0 ? (uint8_t)p[i] : 256 + id;
        len = id < 0 ? 1 : len;
    }
    for (uint32_t i = 1, k = 0; i < t->n; i++) { /* Knuth, Morris, Pratt: the longest beginning that ends here */
        while (k && t->unit[i] != t->unit[k])
            k = t->fail[k - 1];
        k += t->unit[i] == t->unit[k];
        t->fail[i] = (uint16_t)k;
    }
}

/* One unit of output. True: the trigger is whole. */
static bool meet(struct eng_guide *u, int32_t unit)
{
    const struct eng_trigger *t = u->trigger;
    while (u->met && t->unit[u->met] != unit)
        u->met = t->fail[u->met - 1];
    u->met += t->unit[u->met] == unit;
    if (u->met < t->n)
        return false;
    u->met = 0;
    return true;
}

/* ---- life --------------------------------------------------------------------------------------------------- */

int eng_guide_open(struct eng_guide *u, eng_grammar *grammar, const eng_vocab *v, const char *trigger, size_t n, struct err *e)
{
    *u = (struct eng_guide){.grammar = grammar};
    if (!trigger)
        return ERR_OK;
    if (!n || n > ENG_GRAMMAR_TRIGGER_MAX)
        return err_set(e, ERR_INVALID, "grammar trigger: expected 1 to %d bytes, found %zu", ENG_GRAMMAR_TRIGGER_MAX, n);
    if (!(u->trigger = calloc(1, sizeof *u->trigger)))
        return err_set(e, ERR_NOMEM, "grammar trigger");
    read_trigger(u->trigger, v, trigger, n);
    return ERR_OK;
}

void eng_guide_close(struct eng_guide *u)
{
    free(u->trigger);
    *u = (struct eng_guide){0};
}

/* ---- tokens ------------------------------------------------------------------------------------------------- */

static int begin_rule(struct eng_guide *u, struct err *e)
{
    int rc = eng_grammar_start(u->grammar, &u->state, e);
    u->ruling = rc ? u->ruling : !u->trigger || !eng_grammar_over(u->grammar, u->state);
    return rc;
}

static void end_rule(struct eng_guide *u)
{
    if (u->trigger && eng_grammar_over(u->grammar, u->state))
        u->ruling = false;
}

/* A token of free output: bytes may complete the trigger, and the grammar then rules the rest of them. */
static int free_token(struct eng_guide *u, const eng_vocab *v, int32_t id, struct err *e)
{
    size_t n;
    int rc = ERR_OK;
    for (uint32_t i = 0; i < v->n_control; i++)
        if (v->control[i] == id)
            return meet(u, 256 + id) ? begin_rule(u, e) : ERR_OK;
    const char *p = eng_vocab_text(v, id, &n);
    for (size_t i = 0; i < n && !rc; i++) {
        if (!u->ruling) {
            if (meet(u, (uint8_t)p[i]))
                rc = begin_rule(u, e);
        } else if (!(rc = eng_grammar_bytes_accept(u->grammar, &u->state, p + i, 1, e))) {
            end_rule(u);
        }
    }
    return rc;
}

int eng_guide_token(struct eng_guide *u, const eng_vocab *v, int32_t id, struct err *e)
{
    struct eng_guide next = *u;
    int rc = u->ruling ? eng_grammar_accept(u->grammar, &next.state, id, e) : free_token(&next, v, id, e);
    if (rc)
        return rc;
    if (u->ruling)
        end_rule(&next);
    *u = next;
    u->n_fed++;
    return ERR_OK;
}

int eng_guide_sync(struct eng_guide *u, const eng_vocab *v, const int32_t *out, uint32_t n_out, size_t keep_max, struct err *e)
{
    int rc = ERR_OK;
    eng_grammar_begin(u->grammar, v, keep_max);
    bool fresh = !u->n_fed && !u->state.generation;
    if (fresh || (u->ruling && !eng_grammar_valid(u->grammar, u->state))) {
        u->ruling = false;
        u->n_fed = u->met = 0;
        if (!u->trigger)
            rc = begin_rule(u, e);
    }
    while (!rc && u->n_fed < n_out)
        if ((rc = eng_guide_token(u, v, out[u->n_fed], e)))
            err_prefix(e, rc, "token %u of the output", u->n_fed);
    return rc;
}

int eng_guide_mask(struct eng_guide *u, uint64_t *bits, struct eng_allowed *a, struct err *e)
{
    *a = (struct eng_allowed){.may_end = true};
    if (!u->ruling)
        return ERR_OK;
    a->ruled = true;
    a->may_end = eng_grammar_may_end(u->grammar, u->state);
    return eng_grammar_mask(u->grammar, u->state, bits, &a->count, e);
}

int eng_guide_stuck(const struct eng_guide *u, struct err *e)
{
    char where[200];
    eng_grammar_where(u->grammar, u->state, where, sizeof where);
    return err_set(e, ERR_INVALID, "the grammar goes nowhere after %u tokens: no token of this model continues it at '%s'", u->n_fed, where);
}

bool eng_guide_over(const struct eng_guide *u) { return !u->trigger && u->ruling && eng_grammar_over(u->grammar, u->state); }
