/* engine/warm.h - the experts that were in memory when an engine ended, in a file, to be read ahead when it starts again.
 *
 * A wish, not a need: a file that is absent, of another model or unreadable is told once and does nothing. Text: "sluice-experts 1
 * FINGERPRINT LAYERS PER_LAYER", then layer * PER_LAYER + expert, a line each, the most wanted first. Written beside and moved into place.
 * Threads: the one that opens and closes the engine. */
#ifndef SLUICE_ENGINE_WARM_H
#define SLUICE_ENGINE_WARM_H
#include "engine/model.h"
#include "offload/weights.h"

int eng_warm_load(off_weights *w, const struct eng_model *m, const char *path, uint32_t *n, struct err *e); /* ERR_NOTFOUND, ERR_FORMAT, ERR_IO, ERR_NOMEM */
int eng_warm_save(const off_weights *w, const struct eng_model *m, const char *path, struct err *e);       /* ERR_IO, ERR_NOMEM */
#endif
