/* engine/model.h - one model opened for use: catalog, plan, tokenizer, template, and what the engine tells others about it. */
#ifndef SLUICE_ENGINE_MODEL_H
#define SLUICE_ENGINE_MODEL_H
#include "engine/chat.h"
#include "engine/plan.h"

struct eng_model {
    off_catalog *catalog;
    struct eng_plan *plan;
    eng_tok *tok;
    char *template_text; size_t template_len; /* NULL: the model has none */
    eng_chat *chat;                           /* NULL without a template */
    struct arena mem;
    const char *id;                           /* file or directory name without extension, or --alias */
    const struct json *special_tokens;        /* object: bos_token, eos_token, ... */
    float temperature, top_p; int top_k;      /* generation_config.json's defaults; 1, 1, 0 when it has none */
    uint8_t fingerprint[32];                  /* of names, dtypes, shapes, sizes and config: not of weight bytes */
};
int eng_model_open(struct eng_model **out, const char *path, const char *alias, struct err *e);
void eng_model_close(struct eng_model *m);
#endif
