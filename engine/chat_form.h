/* engine/chat_form.h - what a template can show of tools, calls and reasoning, and messages in the form that it shows without loss.
 *
 * Owns:      the probe: a small history rendered in each form until one comes out whole; messages rewritten to that form.
 * Leaves:    the rest of the context to engine/chat.c.
 * Invariant: a form is a fact of the template alone; what a probe cannot find whole in any form is said to be unknown, not guessed.
 * Source:    templates disagree on the content of a message with calls ("", null, absent), on arguments (object, JSON string), on the form of
 *            ids, on several calls and on text beside a call: docs/templates.md, "Past calls".
 * Threads:   read-only after the probe. */
#ifndef SLUICE_ENGINE_CHAT_FORM_H
#define SLUICE_ENGINE_CHAT_FORM_H
#include "engine/template.h"

enum eng_empty { ENG_EMPTY_TEXT, ENG_EMPTY_NULL, ENG_EMPTY_ABSENT };
struct eng_chat_form {
    bool tools;                 /* the declarations of a request's tools come out */
    bool calls;                 /* so does a past call with its arguments; the fields below are how */
    enum eng_empty empty;       /* content of a message that has calls and no text */
    bool string_arguments;
    bool broken_arguments;      /* text that is no JSON comes out as it is: a model's broken call can be shown to it */
    bool short_ids;             /* ids must be nine letters and digits */
    bool one_call;              /* a message shows one call: several become messages, each before its result */
    bool split_text;            /* text and calls of one message become two */
    const char *reasoning;      /* the key under which reasoning beside a call comes out; NULL: none */
    bool reasoning_alone;       /* not beside a text */
};
/* context: what all renders have (special tokens), may be NULL. A template that fails in every form gives a form without calls. */
void eng_chat_probe(struct eng_chat_form *f, const eng_template *t, const struct json *context, const char *const *trusted);
/* Appends messages[i], and with one_call the results that belong to it, to list; *i is the last that was taken. role: as the template knows it;
 * content: joined text, or NULL: as it came. ERR_INVALID names the field. */
int eng_chat_form_message(const struct eng_chat_form *f, const struct json *messages, size_t *i, const char *role, const struct json *content, struct arena *a,
                          struct json *list, struct err *e);
#endif
