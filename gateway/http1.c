/* The head is read line by line into one buffer, where names are lowered and ends of words become NUL in place; each
 * byte is looked at once when it arrives, so that an error shows at the same byte however the input was cut. The body
 * is passed through by pointer. States:
 *
 *   REQUEST -> FIELDS -> (HEAD event) FRAMING -> LENGTH ------------------------------------------> END
 *                                             -> SIZE -> EXT -> SIZE_LF -> DATA -> DATA_CR -> DATA_LF -> SIZE
 *                                                                       -> TRAILERS (size 0) -------> END        */
#include "gateway/http1.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { ST_REQUEST, ST_FIELDS, ST_FRAMING, ST_LENGTH, ST_SIZE, ST_EXT, ST_SIZE_LF, ST_DATA, ST_DATA_CR, ST_DATA_LF, ST_TRAILERS, ST_END, ST_ERROR };
#define METHOD_MAX 31
#define NONE SIZE_MAX

const struct gw_http1_limits gw_http1_limits_default = {
    .target_max = 8192, .head_bytes_max = 32768, .headers_max = 100, .body_max = 32u << 20, .chunk_extra_max = 4096};

/* ---- character classes ----------------------------------------------------------------------------------- */
enum { C_CTL = 1, C_TOKEN = 2, C_HEX = 4, C_HOST = 8 };
static uint8_t class_of(unsigned char c)
{
    bool alpha = (c | 0x20) >= 'a' && (c | 0x20) <= 'z', digit = c >= '0' && c <= '9';
    uint8_t k = 0;
    if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7F)
        k |= C_CTL;
    if (alpha || digit || (c && strchr("!#$%&'*+-.^_`|~", c)))
        k |= C_TOKEN;
    if (digit || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'))
        k |= C_HEX;
    if (alpha || digit || (c && strchr("-._~!$&'()*+;=:[]%", c)))
        k |= C_HOST;
    return k;
}

static uint8_t class_table[256];
__attribute__((constructor)) static void class_fill(void) /* before main: no thread can see it half filled */
{
    for (unsigned c = 0; c < 256; c++)
        class_table[c] = class_of((unsigned char)c);
}
static inline bool is(char c, uint8_t k) { return class_table[(unsigned char)c] & k; }
static inline bool blank(char c) { return c == ' ' || c == '\t'; }
static inline unsigned hex(char c) { return c <= '9' ? (unsigned)(c - '0') : (unsigned)((c | 0x20) - 'a' + 10); }

/* ---- life ------------------------------------------------------------------------------------------------ */
void gw_http1_init(struct gw_http1 *p, const struct gw_http1_limits *lim)
{
    memset(p, 0, sizeof *p);
    p->init_limits = lim ? *lim : gw_http1_limits_default;
    gw_http1_reset(p);
}

void gw_http1_free(struct gw_http1 *p)
{
    buf_free(&p->head);
    buf_free(&p->tail);
    free(p->fields);
    p->fields = NULL;
}

void gw_http1_reset(struct gw_http1 *p)
{
    struct gw_http1_limits lim = p->init_limits;
    gw_http1_free(p);
    memset(p, 0, sizeof *p);
    p->init_limits = p->limits = lim;
    buf_init(&p->head, lim.head_bytes_max + 2);
    buf_init(&p->tail, lim.head_bytes_max + 2);
    p->path_off = p->query_off = p->host_off = NONE;
}

bool gw_http1_started(const struct gw_http1 *p)
{
    return p->state != ST_REQUEST || p->head.len || p->blank_lines;
}

static int fail(struct gw_http1 *p, int status, const char *reason)
{
    p->state = ST_ERROR;
    p->status = status;
    p->reason = reason;
    return -1;
}

/* ---- lines ----------------------------------------------------------------------------------------------- */
/* Moves bytes up to and with the next LF into b. 1: a line is complete and ends in CR LF with no other CR; 0: more is needed. */
static int take_line(struct gw_http1 *p, struct buf *b, size_t line, const char *d, size_t n, size_t *used, size_t room, int full, const char *full_reason)
{
    const char *nl = memchr(d, '\n', n);
    size_t k = nl ? (size_t)(nl - d) + 1 : n, scan = k < room ? k : room;
    for (size_t i = 0; i < scan; i++)
        if (is(d[i], C_CTL))
            return fail(p, 400, "control character in the head of the request");
    if (k > room)
        return fail(p, full, full_reason);
    if (!b->data && !buf_reserve(b, room < 1000 ? room : 1000))
        return fail(p, 503, "out of memory");
    if (!buf_add(b, d, k))
        return fail(p, 503, "out of memory");
    *used += k;
    if (!nl)
        return 0;
    size_t len = b->len - line;
    if (len < 2 || b->data[b->len - 2] != '\r')
        return fail(p, 400, "line ends in a bare LF");
    if (memchr(b->data + line, '\r', len - 2))
        return fail(p, 400, "bare CR inside a line");
    b->data[b->len - 2] = 0;
    return 1;
}

/* ---- request line ---------------------------------------------------------------------------------------- */
static enum gw_http1_method method_of(const char *s)
{
    static const char *const names[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT", "TRACE"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(s, names[i]))
            return (enum gw_http1_method)i;
    return GW_METHOD_OTHER;
}

static bool host_ok(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is(s[i], C_HOST))
            return false;
    return true;
}

static bool escapes_ok(const char *s)
{
    for (; *s && *s != '?'; s++)
        if (*s == '%' && (!is(s[1], C_HEX) || !is(s[2], C_HEX) || (s[1] == '0' && s[2] == '0')))
            return false;
    return true;
}

/* t: the target, NUL-terminated inside head. */
static int read_absolute(struct gw_http1 *p, char *t)
{
    size_t skip = !strncasecmp(t, "http://", 7) ? 7 : !strncasecmp(t, "https://", 8) ? 8 : 0;
    if (!skip)
        return fail(p, 400, "malformed request target");
    size_t n = strcspn(t + skip, "/?");
    if (!n || !host_ok(t + skip, n))
        return fail(p, 400, "malformed authority in the request target");
    char *rest = t + skip + n;
    if (*rest == '/')
        p->path_off = (size_t)(rest - p->head.data); /* an empty path stays NONE and reads as "/" */
    else if (*rest == '?') {
        p->query_off = (size_t)(rest + 1 - p->head.data);
        *rest = 0;
    }
    memmove(t + skip - 1, t + skip, n); /* over the second '/', to make room for the NUL */
    t[skip - 1 + n] = 0;
    p->host_off = (size_t)(t + skip - 1 - p->head.data);
    return 0;
}

static int read_target(struct gw_http1 *p, char *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)t[i] <= ' ' || (unsigned char)t[i] > 0x7E || t[i] == '#')
            return fail(p, 400, "character not allowed in the request target");
    if (n > p->limits.target_max)
        return fail(p, 414, "request target too long");
    if (p->method == GW_CONNECT) {
        if (!host_ok(t, n) || !strchr(t, ':'))
            return fail(p, 400, "CONNECT needs host:port");
        p->path_off = (size_t)(t - p->head.data);
        return 0;
    }
    if (*t == '*') {
        if (n != 1 || p->method != GW_OPTIONS)
            return fail(p, 400, "malformed request target");
        p->path_off = (size_t)(t - p->head.data);
        return 0;
    }
    if (*t == '/')
        p->path_off = (size_t)(t - p->head.data);
    else if (read_absolute(p, t))
        return -1;
    if (p->path_off == NONE)
        return 0;
    char *path = p->head.data + p->path_off, *q = strchr(path, '?');
    if (!escapes_ok(path))
        return fail(p, 400, "malformed percent escape in the path");
    if (q) {
        *q = 0;
        p->query_off = (size_t)(q + 1 - p->head.data);
    }
    return 0;
}

static int read_version(struct gw_http1 *p, const char *v)
{
    if (strlen(v) != 8 || strncmp(v, "HTTP/", 5) || v[5] < '0' || v[5] > '9' || v[6] != '.' || v[7] < '0' || v[7] > '9')
        return fail(p, 400, "malformed HTTP version");
    if (v[5] != '1')
        return fail(p, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
    p->minor = v[7] == '0' ? 0 : 1;
    return 0;
}

static int read_request_line(struct gw_http1 *p)
{
    char *s = p->head.data + p->line;
    size_t m = 0;
    if (!*s) { /* RFC 9112 2.2: one empty line before a request is forgiven */
        if (p->blank_lines++)
            return fail(p, 400, "empty lines before the request");
        buf_reset(&p->head);
        return 0;
    }
    while (is(s[m], C_TOKEN))
        m++;
    if (!m || s[m] != ' ')
        return fail(p, 400, "malformed request line");
    if (m > METHOD_MAX)
        return fail(p, 501, "method not implemented");
    s[m] = 0;
    p->method = method_of(s);
    char *t = s + m + 1, *end = strchr(t, ' ');
    if (!end || end == t || strchr(end + 1, ' '))
        return fail(p, 400, "malformed request line");
    *end = 0;
    if (read_version(p, end + 1) || read_target(p, t, (size_t)(end - t)))
        return -1;
    p->state = ST_FIELDS;
    p->line = p->head.len;
    return 0;
}

/* ---- fields ---------------------------------------------------------------------------------------------- */
/* The next element of a comma list, trimmed; false at the end. */
static bool next_element(const char **s, const char **e, size_t *n)
{
    const char *q = *s;
    while (blank(*q) || *q == ',')
        q++;
    if (!*q)
        return false;
    const char *end = q + strcspn(q, ",");
    *s = end;
    while (end > q && blank(end[-1]))
        end--;
    *e = q;
    *n = (size_t)(end - q);
    return true;
}

bool gw_http1_list_has(const char *value, const char *token)
{
    const char *e;
    size_t n, k = strlen(token);
    while (value && next_element(&value, &e, &n))
        if (n == k && !strncasecmp(e, token, k))
            return true;
    return false;
}

static int read_length(struct gw_http1 *p, const char *v)
{
    if (p->has_length)
        return fail(p, 400, "more than one Content-Length");
    if (p->has_te)
        return fail(p, 400, "Content-Length beside Transfer-Encoding");
    p->has_length = true;
    size_t n = strlen(v);
    if (!n || n > 19 || strspn(v, "0123456789") != n)
        return fail(p, 400, "malformed Content-Length");
    for (; *v; v++) /* 19 digits cannot overflow 64 bits */
        p->content_length = p->content_length * 10 + (uint64_t)(*v - '0');
    return 0;
}

static int read_coding(struct gw_http1 *p, const char *v)
{
    if (p->has_te)
        return fail(p, 400, "more than one Transfer-Encoding");
    if (p->has_length)
        return fail(p, 400, "Content-Length beside Transfer-Encoding");
    if (p->minor == 0)
        return fail(p, 400, "Transfer-Encoding in HTTP/1.0");
    p->has_te = true;
    if (!strcasecmp(v, "chunked")) {
        p->chunked = true;
        return 0;
    }
    const char *e = v;
    size_t n = 0, chunked = 0;
    bool last = false;
    while (next_element(&v, &e, &n)) {
        last = n == 7 && !strncasecmp(e, "chunked", 7);
        chunked += last;
    }
    if (last && chunked == 1)
        return fail(p, 501, "no transfer coding but chunked is implemented");
    return fail(p, 400, "the last transfer coding of a request must be chunked, once");
}

static int read_special(struct gw_http1 *p, const char *name, const char *v)
{
    if (!strchr("ceht", *name)) /* most headers end here */
        return 0;
    if (!strcmp(name, "content-length"))
        return read_length(p, v);
    if (!strcmp(name, "transfer-encoding"))
        return read_coding(p, v);
    if (!strcmp(name, "host")) {
        if (p->has_host)
            return fail(p, 400, "more than one Host");
        p->has_host = true;
        if (!host_ok(v, strlen(v)))
            return fail(p, 400, "malformed Host");
        if (p->host_off == NONE)
            p->host_off = (size_t)(v - p->head.data);
    } else if (!strcmp(name, "connection")) {
        p->conn_close |= gw_http1_list_has(v, "close");
        p->conn_keep |= gw_http1_list_has(v, "keep-alive");
    } else if (!strcmp(name, "expect") && p->minor) {
        if (strcasecmp(v, "100-continue"))
            return fail(p, 417, "only Expect: 100-continue is known");
        p->expect_continue = true;
    }
    return 0;
}

/* Splits "name: value" in place (NUL behind both, name in lower case). */
static int split_field(struct gw_http1 *p, char *s, char **value, size_t *value_len)
{
    size_t n = 0;
    if (blank(*s))
        return fail(p, 400, "a header line starts with a blank (folding is obsolete)");
    for (; is(s[n], C_TOKEN); n++)
        if (s[n] >= 'A' && s[n] <= 'Z')
            s[n] = (char)(s[n] | 0x20);
    if (!n || s[n] != ':')
        return fail(p, 400, blank(s[n]) ? "blank before the colon of a header" : "malformed header name");
    s[n] = 0;
    char *v = s + n + 1;
    while (blank(*v))
        v++;
    size_t len = strlen(v);
    while (len && blank(v[len - 1]))
        len--;
    v[len] = 0;
    *value = v;
    *value_len = len;
    return 0;
}

static int add_field(struct gw_http1 *p, const char *name, const char *v, size_t len)
{
    if (p->n_fields == p->fields_cap) {
        unsigned cap = p->fields_cap ? p->fields_cap * 2 : 16;
        struct gw_http1_field *f = realloc(p->fields, cap * sizeof *f);
        if (!f)
            return fail(p, 503, "out of memory");
        p->fields = f;
        p->fields_cap = cap;
    }
    p->fields[p->n_fields++] = (struct gw_http1_field){
        .name = (uint32_t)(name - p->head.data), .value = (uint32_t)(v - p->head.data), .value_len = (uint32_t)len};
    return 0;
}

/* 1: that was the empty line. */
static int read_field(struct gw_http1 *p)
{
    char *s = p->head.data + p->line, *v;
    size_t len;
    p->line = p->head.len;
    if (!*s)
        return 1;
    if (split_field(p, s, &v, &len))
        return -1;
    if (p->n_fields >= p->limits.headers_max)
        return fail(p, 431, "too many headers");
    if (add_field(p, s, v, len))
        return -1;
    return read_special(p, s, v);
}

/* Trailers are checked like headers and then dropped: nothing here needs them, and merging them is a known trap. */
static int read_trailer(struct gw_http1 *p)
{
    char *v;
    size_t len;
    if (!*p->tail.data)
        return 1;
    if (split_field(p, p->tail.data, &v, &len))
        return -1;
    if (++p->n_tail > p->limits.headers_max)
        return fail(p, 431, "too many trailers");
    const char *name = p->tail.data;
    if (!strcmp(name, "content-length") || !strcmp(name, "transfer-encoding") || !strcmp(name, "host"))
        return fail(p, 400, "a framing header among the trailers");
    p->tail_bytes += p->tail.len;
    buf_reset(&p->tail);
    return 0;
}

static int end_head(struct gw_http1 *p)
{
    if (p->minor && !p->has_host)
        return fail(p, 400, "no Host");
    char *d = p->head.data;
    p->method_name = d;
    p->path = p->path_off == NONE ? "/" : d + p->path_off;
    p->query = p->query_off == NONE ? NULL : d + p->query_off;
    p->host = p->host_off == NONE ? "" : d + p->host_off;
    p->keep_alive = !p->conn_close && (p->minor || p->conn_keep);
    p->has_body = p->chunked || p->content_length > 0;
    p->expect_continue &= p->has_body;
    p->state = ST_FRAMING;
    return 0;
}

static int feed_head(struct gw_http1 *p, const char *d, size_t n, size_t *used)
{
    if (p->state == ST_REQUEST && !p->head.len && !is(d[0], C_TOKEN) && d[0] != '\r')
        return fail(p, 400, "this is not an HTTP request"); /* a TLS hello on a plain port ends here, at its first byte */
    size_t room = p->limits.head_bytes_max - p->head.len;
    int full = 431;
    const char *why = "request head too large";
    if (p->state == ST_REQUEST) {
        size_t line_max = METHOD_MAX + 1 + p->limits.target_max + 11;
        full = 414;
        why = "request line too long";
        if (line_max - p->head.len < room)
            room = line_max - p->head.len;
    }
    int rc = take_line(p, &p->head, p->line, d, n, used, room, full, why);
    if (rc <= 0)
        return rc;
    if (p->state == ST_REQUEST)
        return read_request_line(p);
    rc = read_field(p);
    if (rc == 1)
        return end_head(p) ? -1 : 1;
    return rc;
}

/* ---- body ------------------------------------------------------------------------------------------------ */
static int start_body(struct gw_http1 *p)
{
    if (p->content_length > p->limits.body_max)
        return fail(p, 413, "request body too large");
    p->left = p->content_length;
    p->state = p->chunked ? ST_SIZE : p->left ? ST_LENGTH : ST_END;
    return 0;
}

static int end_size(struct gw_http1 *p)
{
    if (p->left > p->limits.body_max - p->body_total)
        return fail(p, 413, "request body too large");
    p->body_total += p->left;
    p->state = p->left ? ST_DATA : ST_TRAILERS;
    p->digits = 0;
    return 0;
}

/* One byte of chunk framing. */
static int feed_frame(struct gw_http1 *p, char c)
{
    switch (p->state) {
    case ST_SIZE:
        if (is(c, C_HEX)) {
            if (p->digits++ == 16)
                return fail(p, 400, "chunk size too long");
            p->left = p->left << 4 | hex(c);
            return 0;
        }
        if (!p->digits || (c != '\r' && c != ';'))
            return fail(p, 400, "malformed chunk size");
        p->state = c == ';' ? ST_EXT : ST_SIZE_LF;
        return 0;
    case ST_EXT:
        if (c == '\r') {
            p->state = ST_SIZE_LF;
            return 0;
        }
        if (c == '\n' || is(c, C_CTL))
            return fail(p, 400, "malformed chunk extension");
        if (++p->extra_bytes > p->limits.chunk_extra_max)
            return fail(p, 400, "chunk extensions too long");
        return 0;
    case ST_SIZE_LF:
        return c == '\n' ? end_size(p) : fail(p, 400, "malformed chunk size");
    case ST_DATA_CR:
        p->state = ST_DATA_LF;
        return c == '\r' ? 0 : fail(p, 400, "chunk data longer than its size");
    default: /* ST_DATA_LF */
        p->state = ST_SIZE;
        return c == '\n' ? 0 : fail(p, 400, "chunk data longer than its size");
    }
}

static void feed_data(struct gw_http1 *p, const char *d, size_t n, size_t *used)
{
    size_t k = n < p->left ? n : (size_t)p->left;
    p->body = d;
    p->body_len = k;
    p->left -= k;
    *used += k;
    if (!p->left)
        p->state = p->state == ST_LENGTH ? ST_END : ST_DATA_CR;
}

static int feed_trailer(struct gw_http1 *p, const char *d, size_t n, size_t *used)
{
    size_t room = p->limits.head_bytes_max - p->tail_bytes - p->tail.len;
    int rc = take_line(p, &p->tail, 0, d, n, used, room, 431, "trailers too large");
    if (rc > 0 && (rc = read_trailer(p)) == 1) {
        p->state = ST_END;
        return 0;
    }
    return rc;
}

enum gw_http1_event gw_http1_feed(struct gw_http1 *p, const char *data, size_t n, size_t *used)
{
    int rc = 0;
    *used = 0;
    if (p->state == ST_FRAMING)
        rc = start_body(p);
    while (!rc && p->state != ST_END && p->state != ST_ERROR && *used < n) {
        const char *d = data + *used;
        size_t left = n - *used;
        switch (p->state) {
        case ST_REQUEST:
        case ST_FIELDS:
            if ((rc = feed_head(p, d, left, used)) == 1)
                return GW_HTTP1_HEAD;
            break;
        case ST_LENGTH:
        case ST_DATA:
            feed_data(p, d, left, used);
            return GW_HTTP1_BODY;
        case ST_TRAILERS:
            rc = feed_trailer(p, d, left, used);
            break;
        default:
            rc = feed_frame(p, *d);
            ++*used;
        }
    }
    return p->state == ST_ERROR ? GW_HTTP1_ERROR : p->state == ST_END ? GW_HTTP1_END : GW_HTTP1_MORE;
}

/* ---- look-ups -------------------------------------------------------------------------------------------- */
const char *gw_http1_at(const struct gw_http1 *p, unsigned i, const char **name)
{
    if (i >= p->n_fields)
        return NULL;
    if (name)
        *name = p->head.data + p->fields[i].name;
    return p->head.data + p->fields[i].value;
}

const char *gw_http1_get(const struct gw_http1 *p, const char *lower_name)
{
    for (unsigned i = 0; i < p->n_fields; i++)
        if (!strcmp(p->head.data + p->fields[i].name, lower_name))
            return p->head.data + p->fields[i].value;
    return NULL;
}

bool gw_http1_unescape(const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] != '%') {
            buf_char(out, s[i]);
            continue;
        }
        if (n - i < 3 || !is(s[i + 1], C_HEX) || !is(s[i + 2], C_HEX))
            return false;
        unsigned v = hex(s[i + 1]) << 4 | hex(s[i + 2]);
        if (!v)
            return false;
        buf_char(out, (char)v);
        i += 2;
    }
    return !out->failed;
}
