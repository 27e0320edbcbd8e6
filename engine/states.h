/* engine/states.h - recurrent states at run time: a slot for every sequence that can run at once, and copies of it to go on from.
 *
 * Owns:      the slots and the room for snapshots (anonymous memory, sized at open, touched only as it is used).
 * Leaves:    the bytes inside a slot and a snapshot to kernels/state.h, which snapshots are kept and for whom to engine/prefix.h, taking
 *            them within a step to the backend.
 * Invariant: a slot holds the state of the sequence whose KV pages carry the same slot number; position 0 starts from nothing.
 * A snapshot is the state between two 16-token tiles, at a position that is a multiple of KRN_TILE. A
 * sequence that goes on from one computes the same bits as the sequence it was taken from.
 * Threads:   the scheduler's. */
#ifndef SLUICE_ENGINE_STATES_H
#define SLUICE_ENGINE_STATES_H
#include "engine/plan.h"
#include "kernels/state.h"

typedef struct eng_states eng_states;
/* A slot's and a snapshot's layout of one recurrent group. False: no possible one. */
bool eng_states_layout(const struct eng_recurrent *r, enum krn_type kv, struct krn_state_layout *l);
/* Bytes of `slots` sequences: fields, and the rows of the open tile; kv: the type of KV pages, f32 keeps convolution rows in f32
 * too. 0: no recurrent layers, UINT64_MAX: overflow. */
uint64_t eng_states_bytes(const struct eng_plan *p, enum krn_type kv, uint32_t slots);
/* Bytes of one snapshot; 0: no recurrent layers, or no possible layout. */
uint64_t eng_states_snapshot_bytes(const struct eng_plan *p, enum krn_type kv);
int eng_states_open(eng_states **out, const struct eng_plan *p, enum krn_type kv, uint32_t slots, uint32_t snapshots, struct err *e); /* ERR_UNSUPPORTED, ERR_NOMEM */
void eng_states_close(eng_states *s);
/* What a step carries: one entry a recurrent group of the plan. Borrowed until close. */
const struct krn_states *eng_states_step(const eng_states *s, uint32_t *n);

/* How many tokens after the one at position pos may be computed as guesses and forgotten again by going on from an earlier one: none
 * of them may end a tile, nor push rows out that a convolution still needs. UINT32_MAX: no recurrent layers. */
uint32_t eng_states_guesses_max(const eng_states *s, uint32_t pos);

uint8_t *eng_states_snapshot(const eng_states *s, uint32_t i); /* room i of those opened */
/* The slot's sequence goes on from a snapshot that was taken (krn_step) after pos tokens. */
void eng_states_load(eng_states *s, uint32_t slot, uint32_t pos, const uint8_t *snapshot);
#endif
