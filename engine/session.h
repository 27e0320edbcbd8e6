/* engine/session.h - a model driven by hand: steps over chosen sequences, logits and registers to look at. For verify and bench.
 *
 * Owns:      model, weights, executor, pages. No scheduler, no sampling, no thread of its own.
 * Threads:   one caller. */
#ifndef SLUICE_ENGINE_SESSION_H
#define SLUICE_ENGINE_SESSION_H
#include "engine/engine.h"

typedef struct eng_session eng_session;
/* Of cfg: model_path, ctx, seqs (slots), chunk (rows a step), threads, page_tokens, kv_type, isa, precision, ram_max, device. Zeros as in
 * eng_open; picks_max: rows of logits a step may ask for. */
int eng_session_open(eng_session **out, const struct eng_config *cfg, uint32_t picks_max, struct err *e);
void eng_session_close(eng_session *s);
struct eng_model *eng_session_model(eng_session *s);
const struct eng_config *eng_session_config(const eng_session *s); /* in force */
const char *eng_session_isa(const eng_session *s);

enum eng_picks { ENG_PICK_NONE, ENG_PICK_LAST, ENG_PICK_ALL };
/* far: as in krn_seq. snapshot: where to, of the recurrent states after snapshot_pos tokens (krn_snapshot); NULL: none. */
struct eng_part { uint32_t slot, pos0, n; const int32_t *tokens; enum eng_picks picks; bool far; uint8_t *snapshot; uint32_t snapshot_pos; };
/* One step: parts in order, pages are reserved as needed. tap as in eng_exec_run. */
int eng_session_step(eng_session *s, const struct eng_part *parts, uint32_t n_parts, void (*tap)(void *ctx, uint32_t segment), void *ctx, struct err *e);
/* The k-th picked row of the last step, [vocab]. */
const float *eng_session_logits(eng_session *s, uint32_t k);
const float *eng_session_row(eng_session *s, const struct krn_view *v, uint32_t row);
struct eng_states *eng_session_states(eng_session *s); /* recurrent states, slots as in steps; borrowed */
void eng_session_weights(eng_session *s, struct off_weights_stats *out);
uint64_t eng_session_others(const eng_session *s); /* of ram_max, what is not for weights */
/* Time by kind of work since the last call; the first call starts the clocks (krn_backend_api.times). */
size_t eng_session_times(eng_session *s, struct krn_time *out, size_t max);
bool eng_session_counters(const eng_session *s, struct krn_counters *out); /* false: the backend counts nothing */
void eng_session_drop(eng_session *s, uint32_t slot); /* forgets a sequence */
#endif
