/* engine/chat.h - messages -> prompt ids: what both `run --chat` and the gateway do with a model's template and tokenizer. */
#ifndef SLUICE_ENGINE_CHAT_H
#define SLUICE_ENGINE_CHAT_H
#include "engine/template.h"
#include "engine/tokenizer.h"

/* What renders a model's chats: borrowed by callers, owned by the opener. */
typedef struct eng_chat eng_chat;
int eng_chat_open(eng_chat **out, const eng_tok *tok, const char *tmpl, size_t n, const struct json *special_tokens /* name -> text */, struct err *e);
void eng_chat_close(eng_chat *c);
/* body: the OpenAI-shaped request object: messages (content string, null or text parts), tools, and
 * chat_template_kwargs. add_generation_prompt is true. Appends ids. ERR_INVALID names the field ("messages[2].content").
 * now: seconds since 1970 for strftime_now. */
int eng_chat_prompt(const eng_chat *c, const struct json *body, int64_t now, struct arena *a, struct eng_ids *ids, struct err *e);
#endif
