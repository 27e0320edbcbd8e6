/* gateway/fields.h - reading fields of a request's body: single values, and the groups that several APIs share.
 *
 * Invariant: each returns 0, or the status of an error in OpenAI's terms that names the field; null means absent; what is not given
 *            stays as it was.
 * Threads:   any; pure. */
#ifndef SLUICE_GATEWAY_FIELDS_H
#define SLUICE_GATEWAY_FIELDS_H
#include "gateway/openai.h"

extern const char *const gw_json_type_names[]; /* "a string", by enum json_type */

int gw_wrong_type(struct gw_api_error *ae, const char *param, const char *expected, const struct json *v);
const struct json *gw_field(const struct json *obj, const char *key); /* NULL: absent or null */
int gw_get_bool(const struct json *obj, const char *key, const char *param, bool *out, struct gw_api_error *ae);
int gw_get_int(const struct json *obj, const char *key, int64_t min, int64_t max, int64_t *out, bool *given, struct gw_api_error *ae);
int gw_get_float(const struct json *obj, const char *key, double min, double max, float *out, struct gw_api_error *ae);

int gw_parse_body(const char *body, size_t n, struct arena *a, struct json **tree, struct gw_api_error *ae); /* an object, or an error */
int gw_get_model(const struct json *body, const char **model, struct gw_api_error *ae);
int gw_get_stops(struct gw_chat_req *r, const struct json *body, const char *key, struct arena *a, struct gw_api_error *ae);
int gw_get_lengths(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae);
int gw_get_sampling(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae); /* penalties too */
int gw_get_bias(struct gw_chat_req *r, const struct json *body, struct arena *a, struct gw_api_error *ae);
int gw_get_n(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae);
int gw_get_stream(struct gw_chat_req *r, const struct json *body, struct gw_api_error *ae);

/* openai.c: the fields that are only type-checked, and those that are refused unless they say "off". chat: of the chat API. */
int gw_check_tables(const struct json *body, bool chat, struct gw_api_error *ae);
int gw_check_messages(const struct json *body, struct gw_api_error *ae);
#endif
