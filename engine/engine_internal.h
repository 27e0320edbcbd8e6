/* engine/engine_internal.h - what open.c (its life), engine.c (front), sched.c (the loop), admit.c (slots), draft.c (guesses), draw.c (tokens), snapshot.c (recurrent states) and seq.c (one request's output) share. */
#ifndef SLUICE_ENGINE_ENGINE_INTERNAL_H
#define SLUICE_ENGINE_ENGINE_INTERNAL_H
#include <pthread.h>
#include <stdatomic.h>

#include "engine/device.h"
#include "engine/engine.h"
#include "engine/exec.h"
#include "engine/grammar_cache.h"
#include "engine/guide.h"
#include "engine/kv.h"
#include "engine/prefix.h"
#include "engine/sampler.h"
#include "engine/states.h"
#include "engine/stops.h"
#include "policies/draft.h"
#include "policies/schedule.h"

#define ENG_MARKS 4      /* of a sequence */
#define ENG_TENANTS 1024 /* fair-share counters; tenants whose names collide share one */

/* One request. Written by submit before it is published in live[], then by the scheduler thread alone, flags excepted. */
struct eng_seq {
    uint64_t id, arrival;
    bool running, finished;
    uint32_t slot;
    int32_t *tokens; uint32_t n_tokens, tokens_cap; /* prompt, then output */
    bool far;                        /* it may pass the plan's ctx_switch: set for life, whatever length it does reach */
    uint32_t n_prompt, n_past;       /* tokens of the prompt; tokens whose K and V are in pages */
    uint32_t n_out, max_tokens, min_tokens;
    bool ignore_eos, markers, started;
    struct eng_sampling sampling;
    struct eng_bias *bias; uint32_t n_bias;
    bool logprobs; uint32_t top_logprobs;
    struct eng_guide guide;          /* its grammar is leased; none: output is free */
    struct eng_stops stops;
    int32_t stop;                    /* the stop string that was met; -1: none */
    struct eng_detok detok;
    struct buf pending;              /* decoded text not yet sent */
    uint64_t text_skip;              /* bytes of it that an earlier life has sent */
    uint64_t deadline_ns, submit_ns, admit_ns, first_ns;
    int32_t priority;
    uint32_t tenant;                 /* index of its counter */
    struct eng_chain chain;          /* its pages in the prefix index */
    int32_t draft[POL_DRAFT_MAX]; uint32_t n_draft; /* guesses that are rows of this step */
    struct pol_draft_record record;
    uint32_t marks[ENG_MARKS], n_marks; /* where snapshots of its state are asked for, beyond n_past */
    uint32_t followed;               /* tokens before the snapshot that the next one takes the place of; 0: none */
    uint64_t leader; uint32_t leader_pages; /* waits until that request has indexed so many pages; 0: does not */
    struct eng_usage usage;
    atomic_bool cancel, paused;
};

/* The token that a step gives a sequence. */
struct eng_drawn {
    uint32_t pick;                   /* its first row of logits */
    bool wanted, made;               /* it has one; the draw has been made */
    const float *row;
    int rc; int32_t id;
    struct err err;
    struct eng_logprobs lp;          /* if asked for */
};

struct eng_engine {
    struct eng_config c;             /* in force */
    struct eng_model *model;
    pool *pool;                      /* reads weights at open; then the scheduler's: computes, draws */
    off_weights *weights;            /* NULL: on a device that holds them all */
    struct eng_device device;
    eng_exec *exec;
    eng_kv *kv;
    eng_prefix *prefix;              /* NULL: off, or there is no room for a snapshot of the model's recurrent states */
    eng_states *states;              /* of recurrent layers, a slot as in kv */
    uint32_t n_snapshots;            /* of them that there is room for; 0: no recurrent layers, or prefix off */
    eng_sampler **samplers;          /* [threads] */
    eng_vocab *vocab;
    eng_grammars *grammars;
    size_t grammar_keep;             /* bytes that one grammar's automaton may keep from step to step */
    uint64_t *allowed;               /* [words of vocab]: the scheduler's, what the sequence at hand may say */
    eng_event_fn event; void *ctx;
    uint64_t weight_bytes, activation_bytes;

    pthread_t thread; bool thread_on;
    pthread_mutex_t lock; pthread_cond_t wake; /* guards the block below */
    struct eng_seq **live; uint32_t n_live, live_max;
    uint32_t n_waiting; uint64_t waiting_tokens, arrivals;
    bool stop, draining, kicked;                /* kicked: something changed since the last turn */
    struct eng_stats stats;

    /* the scheduler thread's own */
    struct eng_seq **seqs; uint32_t n_seqs;     /* live[] as of this turn */
    struct pol_seq *view; uint32_t *take, *order;
    bool *slot_used;
    uint64_t served[ENG_TENANTS];
    struct pol_draft_cost draft_cost;
    uint32_t draft_rows;                        /* guesses of one step, over all sequences; 0: off */
    uint32_t snapshot_stride; bool snapshot_follows; /* 0: none; one more at the latest page of each sequence */
    struct krn_snapshot *snapshots; struct eng_taken { uint32_t number; bool follows; } *taken; /* of this step */
    uint64_t snapshots_taken, snapshots_restored;
    struct krn_step step;
    int32_t *row_token; uint32_t *row_pos, *row_pick;
    struct krn_seq *row_seq; struct eng_seq **row_owner; uint32_t *row_slot; /* [slots] */
    bool *row_bad; struct eng_drawn *drawn;     /* [slots] bad: a row that counts is no number */
    atomic_uint draw_next;                      /* of the step's sequences, while workers draw */
    uint64_t turn_ns, draw_ns;                  /* when this turn began; draws of this step */
    struct krn_pages *groups; uint32_t *tables;          /* [n_groups][slots][stride] */
};

/* open.c */
const char *eng_numerics(const eng_engine *g);

void eng_kick(eng_engine *g);                /* engine.c: wakes the scheduler; with the lock held */

int eng_step_open(eng_engine *g, struct err *e);
void eng_step_close(eng_engine *g);
void *eng_sched_main(void *engine);

/* admit.c: the scheduler thread's */
void eng_admit(eng_engine *g);
void eng_preempt(eng_engine *g, size_t i);   /* seqs[i] gives its slot back and waits again */
int eng_slot_reserve(eng_engine *g, uint32_t slot, uint32_t n_tokens);
void eng_seq_finish(eng_engine *g, struct eng_seq *s, enum eng_finish f, const struct err *why);

/* snapshot.c: the scheduler thread's; all do nothing for a model without recurrent layers. */
uint32_t eng_snapshots_wanted(const struct eng_config *c, const struct eng_plan *p); /* at most of use */
int eng_snapshots_open(eng_engine *g, struct err *e);                                /* ERR_NOMEM */
void eng_snapshots_close(eng_engine *g);
/* Asks for one after pos tokens, a whole number of pages. False: s has passed it, or enough was asked of it. */
bool eng_snapshot_mark(struct eng_seq *s, uint32_t pos);
/* Adds those of s to the step, whose k-th sequence it is with n_known tokens that are no guesses. */
void eng_snapshots_plan(eng_engine *g, struct eng_seq *s, uint32_t k, uint32_t n_known);
void eng_snapshots_keep(eng_engine *g, struct eng_seq *s, uint32_t k);               /* the step went well for s, its pages are indexed */
void eng_snapshots_end(eng_engine *g);                                               /* the others are forgotten */
void eng_snapshot_restore(eng_engine *g, struct eng_seq *s, uint32_t n_tokens);      /* the slot's state becomes that after the leased prefix */

/* draft.c: adds guesses to take[] of sequences that decode, when no prompt is in the step; counts what became of them. */
void eng_draft(eng_engine *g);
void eng_draft_seen(eng_engine *g, struct eng_seq *s, uint32_t accepted);

/* draw.c: the next tokens. all: of every sequence of the step that has a row of logits, as far as workers may. take: the nth of
 * sequence k goes into its output, which may finish it. */
int eng_draw_open(eng_engine *g, struct err *e);
void eng_draw_close(eng_engine *g);
void eng_draw_all(eng_engine *g);
void eng_draw_take(eng_engine *g, uint32_t k, uint32_t nth);

/* One token through the whole model before anybody is served. */
int eng_self_test(eng_engine *g, struct err *e);

int eng_seq_new(struct eng_seq **out, const eng_engine *g, const struct eng_request *r, struct err *e);
void eng_seq_free(const eng_engine *g, struct eng_seq *s);
/* Takes one sampled token into the output; sends TOKEN. Returns true when the sequence is over, with *f. lp: NULL unless asked for. */
bool eng_seq_token(eng_engine *g, struct eng_seq *s, int32_t id, const struct eng_logprobs *lp, enum eng_finish *f, struct err *e);
bool eng_seq_is_eos(const eng_engine *g, int32_t id);
void eng_seq_done(eng_engine *g, struct eng_seq *s, enum eng_finish f, const struct err *why); /* sends DONE with what text is left */
#endif
