/* gateway/http1.h - a strict incremental HTTP/1.1 request parser: bytes in, one event after the other out.
 *
 * Owns:      the bytes of the current request's head (bounded), its parsed fields, the framing state of its body.
 * Leaves:    all I/O, storing the body, time, and what a path means, to the caller.
 * Invariant: the events and the final status depend on the bytes alone, never on how they were cut into feeds.
 *            After GW_HTTP1_ERROR nothing more is read: the connection's framing is lost and it must close.
 * Refuses:   everything two parsers could read differently: bare LF, bare CR, NUL and controls, folded lines, space before a
 *            colon, a repeated Content-Length, Content-Length beside Transfer-Encoding, signs or blanks in lengths, transfer
 *            codings other than "chunked", none or two Host fields, malformed chunks.
 * Threads:   one owner.     Source: RFC 9112 (framing), RFC 9110 (fields), RFC 3986 (targets). */
#ifndef SLUICE_GATEWAY_HTTP1_H
#define SLUICE_GATEWAY_HTTP1_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

struct gw_http1_limits {
    size_t target_max;       /* bytes of the request target; more: 414 */
    size_t head_bytes_max;   /* bytes of the whole head, and of trailers; more: 431 */
    unsigned headers_max;    /* field lines; more: 431 */
    uint64_t body_max;       /* bytes of the decoded body; more: 413 */
    size_t chunk_extra_max;  /* bytes of chunk extensions in one request; more: 400 */
};
extern const struct gw_http1_limits gw_http1_limits_default; /* 8 KiB, 32 KiB, 100, 32 MiB, 4 KiB */

enum gw_http1_method { GW_GET, GW_HEAD, GW_POST, GW_PUT, GW_DELETE, GW_OPTIONS, GW_PATCH, GW_CONNECT, GW_TRACE, GW_METHOD_OTHER };
enum gw_http1_event {
    GW_HTTP1_MORE,  /* all input used; feed more */
    GW_HTTP1_HEAD,  /* the head is complete: fields below are valid. The caller may change limits.body_max, then feeds on */
    GW_HTTP1_BODY,  /* body[0 .. body_len) points into the fed bytes: take it before the next feed */
    GW_HTTP1_END,   /* the request is complete; what is left of the input belongs to the next one: gw_http1_reset first */
    GW_HTTP1_ERROR  /* status and reason say what to answer before closing */
};

struct gw_http1_field { uint32_t name, value, value_len; }; /* offsets into head.data; both NUL-terminated; name in lower case */

struct gw_http1 {
    struct gw_http1_limits limits;
    /* valid from GW_HTTP1_HEAD on, until reset */
    enum gw_http1_method method;
    const char *method_name;   /* as sent, at most 31 bytes */
    const char *path;          /* raw (still percent-encoded), starts with '/'; "*" for OPTIONS * ; authority for CONNECT */
    const char *query;         /* after '?', raw; NULL: there was none */
    const char *host;          /* from an absolute-form target, else the Host field; "" in HTTP/1.0 without one */
    unsigned minor;            /* 0 or 1 */
    bool keep_alive;           /* by version and Connection field */
    bool expect_continue;      /* 100-continue is awaited (HTTP/1.1, and there is a body) */
    bool chunked;
    bool has_body;             /* chunked, or a Content-Length above 0 */
    uint64_t content_length;   /* 0 when chunked */
    unsigned n_fields;
    /* GW_HTTP1_BODY */
    const char *body; size_t body_len;
    /* GW_HTTP1_ERROR */
    int status;                /* 400 413 414 417 431 501 503 (no memory) 505 */
    const char *reason;        /* a sentence, static */
    /* private */
    struct gw_http1_limits init_limits;
    struct gw_http1_field *fields; unsigned fields_cap;
    struct buf head, tail;     /* the head, kept; the trailer line being read */
    size_t line;               /* where the unfinished line starts in head */
    size_t path_off, query_off, host_off, tail_bytes, extra_bytes;
    unsigned n_tail;
    uint64_t body_total, left; /* announced so far; of this chunk or of Content-Length still to come */
    uint8_t state, digits, blank_lines;
    bool has_host, has_length, has_te, conn_close, conn_keep;
};

void gw_http1_init(struct gw_http1 *p, const struct gw_http1_limits *lim); /* NULL: the defaults */
void gw_http1_free(struct gw_http1 *p);   /* fine on a zeroed struct */
void gw_http1_reset(struct gw_http1 *p);  /* ready for the next request; its memory is given back, limits return to init's */

/* Reads from data[0..n) until one event is due and sets *used to what it took. Call again with the rest until GW_HTTP1_MORE.
 * n == 0 is fine: after GW_HTTP1_HEAD of a request without a body it yields GW_HTTP1_END. */
enum gw_http1_event gw_http1_feed(struct gw_http1 *p, const char *data, size_t n, size_t *used);
bool gw_http1_started(const struct gw_http1 *p); /* some byte of a request was read, and it has not ended */

const char *gw_http1_get(const struct gw_http1 *p, const char *lower_name); /* first field of that name, or NULL */
const char *gw_http1_at(const struct gw_http1 *p, unsigned i, const char **name);
bool gw_http1_list_has(const char *value, const char *token); /* token is an element of the comma list (case-insensitive); NULL: no */

/* %XX decoded into out; false: a bad escape or an encoded NUL ('+' is left alone: that is for queries of forms). */
bool gw_http1_unescape(const char *s, size_t n, struct buf *out);
#endif
