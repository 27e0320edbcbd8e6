/* tests/support/app_rig.h - the whole gateway over a real socket, before an engine that makes up its text, and a client that shows everything.
 *
 * One at a time: app is the one. app_prepare, changes to app.cfg and app.fc, app_open, requests, app_close. What replies point to lives in
 * app.mem until app_close. */
#ifndef SLUICE_TESTS_APP_RIG_H
#define SLUICE_TESTS_APP_RIG_H
#include "base/arena.h"
#include "base/buf.h"
#include "base/json.h"
#include "gateway/gateway.h"
#include "tests/support/fake_engine.h"

#define KEY "test-key-123"
#define CHAT "/v1/chat/completions"
#define AUTH "Authorization: Bearer " KEY "\r\nContent-Type: application/json\r\n"

struct app { struct arena mem; struct gw_config cfg; struct fake_config fc; fake_engine *fake; gw_gateway *gw; };
extern struct app app;

struct reply { int status; const char *head; const char *body; size_t n; };
struct streamed { const char *text, *finish; const struct json *usage, *error; size_t chunks, comments; };

void app_prepare(void);
void app_open(void);
void app_close(void);
int app_dial(int rcvbuf);
void app_send_request(int fd, const char *method, const char *path, const char *headers, const char *body);
void app_read_all(int fd, struct buf *b);
const char *app_raw(int fd);                           /* the whole answer as it came; closes */
struct reply app_split(const struct buf *raw);
struct reply app_ask(const char *method, const char *path, const char *headers, const char *body);
struct reply app_get(const char *path);
const char *app_chat_body(const char *prompt, const char *more);
struct reply app_chat(const char *prompt, const char *more);
const struct json *app_parse(const char *s, size_t n);
const char *app_str_at(const struct json *v, const char *path);
void app_expect_error(struct reply r, int status, const char *code, const char *param);
struct streamed app_take_apart(const char *s, size_t n); /* a whole stream of chat chunks, each checked */
struct streamed app_stream(const char *prompt, const char *more);
void app_expect_text(const char *got, uint64_t seed, uint32_t n); /* what the engine makes up for this seed, n tokens */
void app_wait_live(uint64_t n);                       /* requests that the engine has */
double app_metric(const char *line);                  /* the value behind "NAME " or "NAME{labels} " of /metrics */
void app_wait_metric(const char *line, double v);
#endif
