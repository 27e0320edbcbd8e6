/* engine/config.h - one view of a model's configuration: config.json or GGUF metadata, and which keys were read.
 *
 * Owns:      the list of keys that a sheet reads.
 * Leaves:    aliases and defaults to the sheet (engine/env.h).
 * Invariant: HF keys are dotted and searched in each root in turn; a key that is null counts as absent, except for
 *            eng_cfg_present. GGUF keys get "ARCH." in front, a leading "/" means as written, a trailing "#len" the
 *            length of an array.
 * Source:    docs/sheets.md, "Parameters". */
#ifndef SLUICE_ENGINE_CONFIG_H
#define SLUICE_ENGINE_CONFIG_H
#include "engine/expr.h"
#include "offload/catalog.h"

#define ENG_ROOTS_MAX 4
#define ENG_KEYS_MAX 1024
struct eng_cfg {
    const off_catalog *catalog;
    bool gguf;
    const char *arch;                               /* GGUF: general.architecture */
    const struct json *root[ENG_ROOTS_MAX]; unsigned n_roots;
    const struct json *read[ENG_KEYS_MAX]; unsigned n_read;
    struct arena *mem;
};
/* roots: the sheet's config_root, a list of dotted paths, "." for the top; NULL: the top alone. ERR_FORMAT: no config. */
int eng_cfg_open(struct eng_cfg *c, const off_catalog *cat, const struct json *roots, struct arena *a, struct err *e);
/* *found false: absent or null. */
int eng_cfg_get(const struct eng_cfg *c, const char *key, struct eng_value *out, bool *found, struct err *e);
bool eng_cfg_present(const struct eng_cfg *c, const char *key); /* null counts */
void eng_cfg_read(struct eng_cfg *c, const char *key);          /* the sheet reads it: wherever it stands */
void eng_cfg_read_node(struct eng_cfg *c, const struct json *node); /* the node alone, not what is in it */
void eng_cfg_read_all(struct eng_cfg *c, const struct json *node);  /* and everything in it */

/* Calls f for every key nobody read, with its dotted path. Null values, empty lists and objects are left out, and so are keys that
 * match a pattern of inert (an object: reason -> list of patterns with *). fatal: it bears on what the model computes. */
typedef void (*eng_cfg_unread_fn)(void *ctx, const char *key, const char *value, bool fatal);
void eng_cfg_unread(const struct eng_cfg *c, const struct json *inert, eng_cfg_unread_fn f, void *ctx);
bool eng_glob(const char *pattern, const char *s); /* * is any run of characters */
#endif
