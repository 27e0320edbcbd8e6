/* engine/model.h - one model opened for use: catalog, plan, tokenizer, template, and what the engine tells others about it. */
#ifndef SLUICE_ENGINE_MODEL_H
#define SLUICE_ENGINE_MODEL_H
#include "engine/chat.h"
#include "engine/format.h"
#include "engine/plan.h"

struct eng_model {
    off_catalog *catalog;
    struct eng_plan *plan;
    eng_tok *tok;
    char *template_text; size_t template_len; /* NULL: the model has none */
    eng_chat *chat;                           /* NULL without a template */
    struct arena mem;
    const char *id;                           /* file or directory name without extension, or the first of --alias */
    const char *aliases;                      /* the others, separated by commas; "": none */
    const struct json *format_text;           /* the sheet's entries that the template chooses: {"tools", "reasoning"} */
    struct eng_format format;                 /* the same, compiled */
    const struct json *special_tokens;        /* object: bos_token, eos_token, ... */
    float temperature, top_p; int top_k;      /* defaults of the files (generation_config.json, general.sampling.*), else the sheet's */
    bool sampling_from_files;
    uint8_t fingerprint[32];                  /* of names, dtypes, shapes, sizes, config and rope tables: not of weight bytes */
};
/* ctx: of a sequence, 0: as the sheet says. */
int eng_model_open(struct eng_model **out, const char *path, const char *disks, const char *alias, uint32_t ctx, struct err *e); /* disks: off_catalog_open_on */
/* "id":"...","aliases":[...] of a description; list: names separated by commas, empty ones do not count. */
void eng_put_names(struct buf *b, const char *id, const char *list);
void eng_model_close(struct eng_model *m);
/* The part of opening that `check` shares: *m zero but for catalog and plan, which stay the caller's. ERR_FORMAT and
 * ERR_UNSUPPORTED say what is wrong with tokenizer or template; what was opened up to there is still there to look at.
 * eng_model_detach() frees what attach made, also after an error. */
int eng_model_attach(struct eng_model *m, struct err *e);
void eng_model_detach(struct eng_model *m);
#endif
