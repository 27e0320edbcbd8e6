/* engine/chat.h - messages -> prompt ids: what both `run --chat` and the gateway do with a model's template and tokenizer. */
#ifndef SLUICE_ENGINE_CHAT_H
#define SLUICE_ENGINE_CHAT_H
#include "engine/chat_form.h"
#include "engine/tokenizer.h"

/* What renders a model's chats: borrowed by callers, owned by the opener. */
typedef struct eng_chat eng_chat;
int eng_chat_open(eng_chat **out, const eng_tok *tok, const char *tmpl, size_t n, const struct json *special_tokens /* name -> text */, struct err *e);
void eng_chat_close(eng_chat *c);
const struct eng_chat_form *eng_chat_form_of(const eng_chat *c);
bool eng_chat_reads(const eng_chat *c, const char *variable); /* the template mentions a variable of this name */
/* body: the OpenAI-shaped request object: messages (content string, null or text parts), tools, tool_choice and response_format (for
 * templates that read them), chat_template_kwargs, add_generation_prompt (true if unsaid). continue_final_message: the prompt ends where
 * the text of the last message, the assistant's, ends, so that the answer goes on from there (needs a template that shows the text as it
 * is). Past calls take the form that the template was found to show. Appends ids. ERR_INVALID names the field ("messages[2].content").
 * now: seconds since 1970 for strftime_now. text: NULL, or gets what was rendered, in a. */
int eng_chat_prompt(const eng_chat *c, const struct json *body, int64_t now, struct arena *a, struct eng_ids *ids, struct eng_prompt *text, struct err *e);
#endif
