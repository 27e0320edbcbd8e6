/* engine/frame.h - the protocol between gateway and engine: framed, binary, little-endian. Codec only: no sockets.
 *
 * Header, 24 bytes: u32 magic "SLU1", u16 type, u16 flags, u64 request id (0: the connection), u32 body bytes (<= 1 MiB),
 * u32 zero. A longer body is cut into frames of the same type and request, all but the last flagged MORE. Unknown types are
 * skipped, unknown flags refused. Versions: HELLO bodies carry "proto": ENG_PROTO;
 * another number closes the connection.
 * Layout of each body: docs/formats.md. */
#ifndef SLUICE_ENGINE_FRAME_H
#define SLUICE_ENGINE_FRAME_H
#include "base/buf.h"
#include "engine/engine.h"

#define ENG_PROTO 4
#define ENG_FRAME_HEADER 24
#define ENG_FRAME_BODY_MAX (1u << 20)
enum eng_frame_type {
    ENG_FR_HELLO = 1,     /* both: JSON object; from the engine: eng_describe plus "proto", "pid"                     */
    ENG_FR_BLOB_GET,      /* g->e: 32-byte digest                                                                     */
    ENG_FR_BLOB,          /* e->g: 32-byte digest, then the bytes; digest alone: no such blob                          */
    ENG_FR_SUBMIT,        /* g->e: struct eng_request                                                                 */
    ENG_FR_CANCEL,        /* g->e: empty                                                                              */
    ENG_FR_PAUSE,         /* g->e: u8 1 pause, 0 go on                                                                */
    ENG_FR_STARTED,       /* e->g: empty: left the queue                                                              */
    ENG_FR_TOKENS,        /* e->g: u32 n, then n times { i32 id }, blob text, logprobs: tokens and what text may go out after them */
    ENG_FR_DONE,          /* e->g: finish, usage, blob text, error code and blob message                              */
    ENG_FR_REFUSED,       /* e->g: u32 err code, blob message: SUBMIT was not accepted                                */
    ENG_FR_STATS,         /* e->g: JSON object of struct eng_stats, about once a second and on change of load         */
    ENG_FR_DRAIN,         /* g->e: empty                                                                              */
    ENG_FR_PING, ENG_FR_PONG
};
enum { ENG_FRAME_MORE = 1 };

struct eng_frame { uint16_t type; uint64_t request; const uint8_t *body; size_t n; }; /* whole: parts already joined */

/* Appends header(s) and body; cuts at ENG_FRAME_BODY_MAX. */
bool eng_frame_put(struct buf *out, uint16_t type, uint64_t request, const void *body, size_t n);

/* Incremental reader. Joined bodies are bounded by body_max. */
struct eng_frame_reader { struct buf in, joined; uint64_t join_request; uint16_t join_type; size_t body_max; size_t done; };
void eng_frame_reader_init(struct eng_frame_reader *r, size_t body_max);
void eng_frame_reader_free(struct eng_frame_reader *r);
int eng_frame_feed(struct eng_frame_reader *r, const void *p, size_t n, struct err *e);       /* ERR_NOMEM, ERR_LIMIT */
/* 1: *f is the next frame, valid until the next call; 0: needs more bytes; -1: *e (ERR_FORMAT), the connection is done for. */
int eng_frame_next(struct eng_frame_reader *r, struct eng_frame *f, struct err *e);

/* Bodies. Encoders append to b; decoders check every field and borrow from the body (ids are copied into the arena). */
bool eng_frame_put_submit(struct buf *b, const struct eng_request *r, uint64_t now_ns);       /* deadline travels as time left */
int eng_frame_get_submit(const struct eng_frame *f, uint64_t now_ns, struct arena *a, struct eng_request *r, struct err *e);
struct eng_frame_tokens { const int32_t *ids; uint32_t n; const char *text; size_t text_n; const struct eng_logprobs *logprobs; /* [n], or NULL */ };
bool eng_frame_put_tokens(struct buf *b, const struct eng_frame_tokens *t);
bool eng_frame_put_logprobs(struct buf *b, const struct eng_logprobs *l); /* one record, for who builds a TOKENS body piece by piece */
int eng_frame_get_tokens(const struct eng_frame *f, struct arena *a, struct eng_frame_tokens *t, struct err *e);
bool eng_frame_put_done(struct buf *b, const struct eng_event *ev);
int eng_frame_get_done(const struct eng_frame *f, struct eng_event *ev, struct eng_usage *u, struct err *done_err, struct err *e);
bool eng_frame_put_refused(struct buf *b, const struct err *why);
int eng_frame_get_refused(const struct eng_frame *f, struct err *why, struct err *e);
#endif
