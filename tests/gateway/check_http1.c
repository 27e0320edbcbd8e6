/* The parser against a table of requests. Each case is fed whole, byte by byte and in random cuts, and must give the same
 * transcript: "METHOD path?query host body;" per complete request, "!status" at an error, "..." when more is awaited. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/http1.h"

struct http_case { const char *name, *in; size_t n; const char *want; };
#define C(name, in, want) {name, in, sizeof(in) - 1, want}
#define H "Host: h\r\n"
#define P "POST /p HTTP/1.1\r\n" H
#define CH P "Transfer-Encoding: chunked\r\n\r\n"

static const struct http_case table[] = {
    /* requests that are fine */
    C("simple get", "GET / HTTP/1.1\r\n" H "\r\n", "GET / h ;"),
    C("query", "GET /a/b?x=1&y HTTP/1.1\r\n" H "\r\n", "GET /a/b?x=1&y h ;"),
    C("empty query", "GET /a? HTTP/1.1\r\n" H "\r\n", "GET /a? h ;"),
    C("second question mark", "GET /a?b?c HTTP/1.1\r\n" H "\r\n", "GET /a?b?c h ;"),
    C("escape kept raw", "GET /a%2Fb HTTP/1.1\r\n" H "\r\n", "GET /a%2Fb h ;"),
    C("host with port", "GET / HTTP/1.1\r\nHost: example.org:8443\r\n\r\n", "GET / example.org:8443 ;"),
    C("host ipv6", "GET / HTTP/1.1\r\nHost: [::1]:8443\r\n\r\n", "GET / [::1]:8443 ;"),
    C("empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET /  ;"),
    C("length body", P "Content-Length: 5\r\n\r\nhello", "POST /p h hello;"),
    C("length zero", P "Content-Length: 0\r\n\r\n", "POST /p h ;"),
    C("leading zeros of a length", P "Content-Length: 005\r\n\r\nhello", "POST /p h hello;"),
    C("blanks around a length", P "Content-Length: \t 5 \t\r\n\r\nhello", "POST /p h hello;"),
    C("no blank after the colon", P "Content-Length:5\r\n\r\nhello", "POST /p h hello;"),
    C("post without body", P "\r\n", "POST /p h ;"),
    C("get with body", "GET / HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nhi", "GET / h hi;"),
    C("chunked", CH "5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", "POST /p h hello world;"),
    C("chunked, other case", P "tRANSFER-eNCODING: CHUNKED\r\n\r\n2\r\nhi\r\n0\r\n\r\n", "POST /p h hi;"),
    C("chunk size in both cases", CH "A\r\n0123456789\r\na\r\n0123456789\r\n0\r\n\r\n", "POST /p h 01234567890123456789;"),
    C("chunk size with zeros", CH "0002\r\nhi\r\n000\r\n\r\n", "POST /p h hi;"),
    C("chunk extension", CH "2;a=b;c=\"d\"\r\nhi\r\n0;z\r\n\r\n", "POST /p h hi;"),
    C("trailers are dropped", CH "2\r\nhi\r\n0\r\nX-A: 1\r\nX-B: 2\r\n\r\n", "POST /p h hi;"),
    C("pipelined", "GET /1 HTTP/1.1\r\n" H "\r\nGET /2 HTTP/1.1\r\n" H "\r\n", "GET /1 h ;GET /2 h ;"),
    C("pipelined after a body", P "Content-Length: 2\r\n\r\nhiGET /2 HTTP/1.1\r\n" H "\r\n", "POST /p h hi;GET /2 h ;"),
    C("pipelined after chunks", CH "2\r\nhi\r\n0\r\n\r\nGET /2 HTTP/1.1\r\n" H "\r\n", "POST /p h hi;GET /2 h ;"),
    C("one empty line before", "\r\nGET / HTTP/1.1\r\n" H "\r\n", "GET / h ;"),
    C("empty line after a body", P "Content-Length: 2\r\n\r\nhi\r\nGET /2 HTTP/1.1\r\n" H "\r\n", "POST /p h hi;GET /2 h ;"),
    C("absolute form", "GET http://other:80/x?y HTTP/1.1\r\n" H "\r\n", "GET /x?y other:80 ;"),
    C("absolute form beats Host", "GET HTTPS://other/ HTTP/1.1\r\nHost: mine\r\n\r\n", "GET / other ;"),
    C("absolute form, no path", "GET http://other HTTP/1.1\r\n" H "\r\n", "GET / other ;"),
    C("absolute form, query only", "GET http://other?q HTTP/1.1\r\n" H "\r\n", "GET /?q other ;"),
    C("asterisk", "OPTIONS * HTTP/1.1\r\n" H "\r\n", "OPTIONS * h ;"),
    C("connect", "CONNECT h:443 HTTP/1.1\r\n" H "\r\n", "CONNECT h:443 h ;"),
    C("unknown method", "BREW /pot HTTP/1.1\r\n" H "\r\n", "BREW /pot h ;"),
    C("lower-case get is another method", "get / HTTP/1.1\r\n" H "\r\n", "get / h ;"),
    C("http/1.0", "GET / HTTP/1.0\r\n\r\n", "GET /  ~close;"),
    C("http/1.0 keep-alive", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "GET /  ;"),
    C("http/1.9 is read as 1.1", "GET / HTTP/1.9\r\n" H "\r\n", "GET / h ;"),
    C("connection close", "GET / HTTP/1.1\r\n" H "Connection: foo, Close\r\n\r\n", "GET / h ~close;"),
    C("close beats keep-alive", "GET / HTTP/1.1\r\n" H "Connection: keep-alive\r\nConnection: close\r\n\r\n", "GET / h ~close;"),
    C("upgrade is ignored", "GET / HTTP/1.1\r\n" H "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n", "GET / h ;"),
    C("expect", P "Expect: 100-Continue\r\nContent-Length: 2\r\n\r\nhi", "POST /p h ~100 hi;"),
    C("expect without a body", P "Expect: 100-continue\r\n\r\n", "POST /p h ;"),
    C("expect in 1.0 is ignored", "POST /p HTTP/1.0\r\nExpect: what\r\nContent-Length: 2\r\n\r\nhi", "POST /p  ~close hi;"),
    C("high bytes in a value", "GET / HTTP/1.1\r\n" H "X: caf\xc3\xa9\r\n\r\n", "GET / h ;"),
    C("empty value", "GET / HTTP/1.1\r\n" H "X:\r\nY: \r\n\r\n", "GET / h ;"),
    C("NUL in a body", P "Content-Length: 3\r\n\r\na\0b", "POST /p h a.b;"),
    /* more is awaited */
    C("half a line", "GET / HT", "..."),
    C("half a head", "GET / HTTP/1.1\r\nHost: h\r\n", "..."),
    C("half a body", P "Content-Length: 5\r\n\r\nhel", "..."),
    C("half a chunk", CH "5\r\nhel", "..."),
    C("chunks without end", CH "5\r\nhello\r\n0\r\n", "..."),
    /* line ends and control characters */
    C("bare LF after the request line", "GET / HTTP/1.1\n" H "\r\n", "!400"),
    C("bare LF after a header", "GET / HTTP/1.1\r\nHost: h\n\r\n", "!400"),
    C("bare LF ends the head", "GET / HTTP/1.1\r\nHost: h\r\n\n", "!400"),
    C("bare CR in a value", "GET / HTTP/1.1\r\n" H "X: a\rb\r\n\r\n", "!400"),
    C("bare CR in the target", "GET /\rx HTTP/1.1\r\n" H "\r\n", "!400"),
    C("CR CR LF", "GET / HTTP/1.1\r\r\n" H "\r\n", "!400"),
    C("bare CR in front", "\rGET / HTTP/1.1\r\n" H "\r\n", "!400"),
    C("LF in front", "\nGET / HTTP/1.1\r\n" H "\r\n", "!400"),
    C("two empty lines before", "\r\n\r\nGET / HTTP/1.1\r\n" H "\r\n", "!400"),
    C("NUL in a value", "GET / HTTP/1.1\r\n" H "X: a\0b\r\n\r\n", "!400"),
    C("NUL in a name", "GET / HTTP/1.1\r\n" H "X\0: a\r\n\r\n", "!400"),
    C("NUL in the target", "GET /\0 HTTP/1.1\r\n" H "\r\n", "!400"),
    C("vertical tab in a value", "GET / HTTP/1.1\r\n" H "X: a\vb\r\n\r\n", "!400"),
    C("DEL in a value", "GET / HTTP/1.1\r\n" H "X: a\x7f\r\n\r\n", "!400"),
    C("TLS hello", "\x16\x03\x01\x02\x00", "!400"),
    C("random bytes", "\xff\xfe\x01", "!400"),
    /* header lines */
    C("folded line", "GET / HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n", "!400"),
    C("folded with a tab", "GET / HTTP/1.1\r\n" H "X: a\r\n\tb\r\n\r\n", "!400"),
    C("first header starts with a blank", "GET / HTTP/1.1\r\n Host: h\r\n\r\n", "!400"),
    C("blank before the colon", P "Content-Length : 5\r\n\r\nhello", "!400"),
    C("tab before the colon", P "Transfer-Encoding\t: chunked\r\n\r\n", "!400"),
    C("no colon", "GET / HTTP/1.1\r\n" H "nonsense\r\n\r\n", "!400"),
    C("no name", "GET / HTTP/1.1\r\n" H ": x\r\n\r\n", "!400"),
    C("blank inside a name", "GET / HTTP/1.1\r\n" H "X Y: z\r\n\r\n", "!400"),
    C("brackets in a name", "GET / HTTP/1.1\r\n" H "X[0]: z\r\n\r\n", "!400"),
    C("high byte in a name", "GET / HTTP/1.1\r\n" H "X\xc3: z\r\n\r\n", "!400"),
    /* Host */
    C("no Host", "GET / HTTP/1.1\r\n\r\n", "!400"),
    C("two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "!400"),
    C("two equal Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "!400"),
    C("two Hosts in 1.0", "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "!400"),
    C("Host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "!400"),
    C("Host list", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", "!400"),
    C("Host with userinfo", "GET / HTTP/1.1\r\nHost: u@h\r\n\r\n", "!400"),
    /* Content-Length */
    C("differing lengths", P "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "!400"),
    C("equal lengths", P "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", "!400"),
    C("length list", P "Content-Length: 5, 5\r\n\r\nhello", "!400"),
    C("plus sign", P "Content-Length: +5\r\n\r\nhello", "!400"),
    C("minus sign", P "Content-Length: -5\r\n\r\nhello", "!400"),
    C("hex length", P "Content-Length: 0x5\r\n\r\nhello", "!400"),
    C("fraction", P "Content-Length: 5.0\r\n\r\nhello", "!400"),
    C("blank inside", P "Content-Length: 1 0\r\n\r\nhello", "!400"),
    C("empty length", P "Content-Length:\r\n\r\nhello", "!400"),
    C("letters", P "Content-Length: five\r\n\r\nhello", "!400"),
    C("length of 20 digits", P "Content-Length: 18446744073709551616\r\n\r\n", "!400"),
    C("huge length", P "Content-Length: 9999999999999999999\r\n\r\n", "!413"),
    /* Transfer-Encoding */
    C("length and chunked", P "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "!400"),
    C("chunked and length", P "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", "!400"),
    C("two Transfer-Encodings", P "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "!400"),
    C("chunked twice", P "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", "!400"),
    C("gzip then chunked", P "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "!501"),
    C("chunked not last", P "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", "!400"),
    C("identity", P "Transfer-Encoding: identity\r\n\r\n", "!400"),
    C("xchunked", P "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "!400"),
    C("quoted chunked", P "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", "!400"),
    C("chunked with a parameter", P "Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", "!400"),
    C("empty coding", P "Transfer-Encoding:\r\n\r\n", "!400"),
    C("chunked in 1.0", "POST /p HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "!400"),
    /* chunks */
    C("no chunk size", CH "\r\nhello", "!400"),
    C("negative chunk size", CH "-5\r\nhello", "!400"),
    C("chunk size with 0x", CH "0x5\r\nhello\r\n0\r\n\r\n", "!400"),
    C("blank before a chunk size", CH " 5\r\nhello\r\n0\r\n\r\n", "!400"),
    C("blank after a chunk size", CH "5 \r\nhello\r\n0\r\n\r\n", "!400"),
    C("bare LF after a chunk size", CH "5\nhello\r\n0\r\n\r\n", "!400"),
    C("CR without LF after a chunk size", CH "5\rXhello\r\n0\r\n\r\n", "!400"),
    C("chunk size of 17 digits", CH "00000000000000005\r\nhello\r\n0\r\n\r\n", "!400"),
    C("chunk size that wraps", CH "ffffffffffffffff\r\n", "!413"),
    C("sizes that sum past 64 bits", CH "5\r\nhello\r\nfffffffffffffffe\r\n", "!413"),
    C("chunk longer than its size", CH "3\r\nhello\r\n0\r\n\r\n", "!400"),
    C("chunk shorter than its size", CH "6\r\nhello\r\n0\r\n\r\n", "!400"),
    C("bare LF after chunk data", CH "5\r\nhello\n0\r\n\r\n", "!400"),
    C("bare LF in an extension", CH "5;a\nhello\r\n0\r\n\r\n", "!400"),
    C("control character in an extension", CH "5;\x01\r\nhello\r\n0\r\n\r\n", "!400"),
    C("CR in an extension", CH "5;a\rb\r\nhello\r\n0\r\n\r\n", "!400"),
    C("bad trailer", CH "0\r\nX Y: 1\r\n\r\n", "!400"),
    C("folded trailer", CH "0\r\nX: 1\r\n 2\r\n\r\n", "!400"),
    C("bare LF in trailers", CH "0\r\nX: 1\n\r\n", "!400"),
    C("length among trailers", CH "0\r\nContent-Length: 5\r\n\r\n", "!400"),
    /* request lines */
    C("HTTP/0.9", "GET /\r\n", "!400"),
    C("HTTP/2.0", "GET / HTTP/2.0\r\n" H "\r\n", "!505"),
    C("HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "!505"),
    C("HTTP/0.9 by name", "GET / HTTP/0.9\r\n\r\n", "!505"),
    C("lower-case version", "GET / http/1.1\r\n" H "\r\n", "!400"),
    C("version of two digits", "GET / HTTP/1.10\r\n" H "\r\n", "!400"),
    C("version without a minor", "GET / HTTP/1\r\n" H "\r\n", "!400"),
    C("other protocol", "GET / SIP/2.0\r\n" H "\r\n", "!400"),
    C("two blanks", "GET  / HTTP/1.1\r\n" H "\r\n", "!400"),
    C("tab for a blank", "GET\t/ HTTP/1.1\r\n" H "\r\n", "!400"),
    C("blank after the version", "GET / HTTP/1.1 \r\n" H "\r\n", "!400"),
    C("blank in the target", "GET /a b HTTP/1.1\r\n" H "\r\n", "!400"),
    C("blank in front", " GET / HTTP/1.1\r\n" H "\r\n", "!400"),
    C("no target", "GET HTTP/1.1\r\n" H "\r\n", "!400"),
    C("relative target", "GET a HTTP/1.1\r\n" H "\r\n", "!400"),
    C("fragment", "GET /a#b HTTP/1.1\r\n" H "\r\n", "!400"),
    C("high byte in the target", "GET /\xc3\xa9 HTTP/1.1\r\n" H "\r\n", "!400"),
    C("bad escape", "GET /%zz HTTP/1.1\r\n" H "\r\n", "!400"),
    C("cut escape", "GET /% HTTP/1.1\r\n" H "\r\n", "!400"),
    C("encoded NUL", "GET /a%00 HTTP/1.1\r\n" H "\r\n", "!400"),
    C("asterisk for get", "GET * HTTP/1.1\r\n" H "\r\n", "!400"),
    C("asterisk and more", "OPTIONS *x HTTP/1.1\r\n" H "\r\n", "!400"),
    C("other scheme", "GET ftp://h/ HTTP/1.1\r\n" H "\r\n", "!400"),
    C("absolute without authority", "GET http:/// HTTP/1.1\r\n" H "\r\n", "!400"),
    C("absolute with userinfo", "GET http://u@h/ HTTP/1.1\r\n" H "\r\n", "!400"),
    C("connect without port", "CONNECT h HTTP/1.1\r\n" H "\r\n", "!400"),
    C("brackets in the method", "GE(T / HTTP/1.1\r\n" H "\r\n", "!400"),
    C("method of 32 bytes", "ABCDEFGHIJKLMNOPQRSTUVWXYZABCDEF / HTTP/1.1\r\n" H "\r\n", "!501"),
    C("other expectation", P "Expect: 200-ok\r\nContent-Length: 2\r\n\r\nhi", "!417"),
    C("second request is bad", "GET /1 HTTP/1.1\r\n" H "\r\nGET /2 HTTP/1.1\n", "GET /1 h ;!400"),
};
static const struct gw_http1_limits small = {.target_max = 20, .head_bytes_max = 120, .headers_max = 3, .body_max = 8, .chunk_extra_max = 6};
static const struct http_case limits[] = {
    C("target at the limit", "GET /2345678901234567890 HTTP/1.1\r\n" H "\r\n", "GET /2345678901234567890 h ;"),
    C("target above", "GET /23456789012345678901 HTTP/1.1\r\n" H "\r\n", "!414"),
    C("target far above", "GET /23456789012345678901234567890123456789012345678901234567890123456789012345678901234567890", "!414"),
    C("three headers", "GET / HTTP/1.1\r\n" H "A: 1\r\nB: 2\r\n\r\n", "GET / h ;"),
    C("four headers", "GET / HTTP/1.1\r\n" H "A: 1\r\nB: 2\r\nC: 3\r\n\r\n", "!431"),
    C("head too large", "GET / HTTP/1.1\r\n" H "A: 0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\r\n\r\n", "!431"),
    C("body at the limit", P "Content-Length: 8\r\n\r\n12345678", "POST /p h 12345678;"),
    C("body above", P "Content-Length: 9\r\n\r\n123456789", "!413"),
    C("chunks at the limit", CH "4\r\n1234\r\n4\r\n5678\r\n0\r\n\r\n", "POST /p h 12345678;"),
    C("chunks above", CH "4\r\n1234\r\n5\r\n56789\r\n0\r\n\r\n", "!413"),
    C("extensions at the limit", CH "2;abc\r\nhi\r\n0;def\r\n\r\n", "POST /p h hi;"),
    C("extensions above", CH "2;abc\r\nhi\r\n0;defg\r\n\r\n", "!400"),
    C("trailers too many", CH "0\r\nA: 1\r\nB: 1\r\nC: 1\r\nD: 1\r\n\r\n", "!431"),
    C("trailers too large", CH "0\r\nA: 0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123\r\n", "!431"),
};
#define N(a) (sizeof(a) / sizeof *(a))

enum cut { WHOLE, BYTES, RANDOM };
static size_t piece(enum cut cut, size_t left)
{
    size_t k = cut == WHOLE ? left : cut == BYTES ? 1 : 1 + (size_t)rand() % 9;
    return k < left ? k : left;
}

static void on_head(const struct gw_http1 *p, struct buf *out)
{
    buf_printf(out, "%s %s", p->method_name, p->path);
    if (p->query)
        buf_printf(out, "?%s", p->query);
    buf_printf(out, " %s %s%s", p->host, p->keep_alive ? "" : "~close", p->expect_continue ? "~100 " : p->has_body && !p->keep_alive ? " " : "");
}

/* One piece, copied to a block of its own size, so that reading past it is seen by ASan. false: stop. */
static bool feed(struct gw_http1 *p, const char *in, size_t n, struct buf *out, struct buf *done)
{
    char *copy = malloc(n);
    memcpy(copy, in, n);
    bool go = true;
    for (size_t at = 0, used; go; at += used) {
        enum gw_http1_event ev = gw_http1_feed(p, copy + at, n - at, &used);
        ck_assert_uint_le(used, n - at);
        if (ev == GW_HTTP1_HEAD)
            on_head(p, out);
        else if (ev == GW_HTTP1_BODY)
            for (size_t i = 0; i < p->body_len; i++)
                buf_char(out, p->body[i] ? p->body[i] : '.');
        else if (ev == GW_HTTP1_END) {
            buf_char(out, ';');
            buf_add(done, out->data, out->len);
            buf_reset(out);
            gw_http1_reset(p);
            if (at + used == n)
                break;
        } else {
            if (ev == GW_HTTP1_ERROR) {
                ck_assert_ptr_nonnull(p->reason);
                buf_reset(out);
                buf_printf(done, "!%d", p->status);
                go = false;
            } else
                ck_assert_uint_eq(at + used, n);
            break;
        }
    }
    free(copy);
    return go;
}

static void run(const struct http_case *c, const struct gw_http1_limits *lim, enum cut cut)
{
    struct gw_http1 p;
    struct buf out, done;
    gw_http1_init(&p, lim);
    buf_init(&out, 1 << 20);
    buf_init(&done, 1 << 20);
    buf_str(&done, "");
    bool go = true;
    for (size_t at = 0, k; go && at < c->n; at += k)
        go = feed(&p, c->in + at, k = piece(cut, c->n - at), &out, &done);
    if (go && gw_http1_started(&p))
        buf_str(&done, "...");
    ck_assert_msg(!strcmp(done.data, c->want), "%s (cut %d): got \"%s\", want \"%s\" (%s)", c->name, cut, done.data, c->want, p.reason ? p.reason : "no error");
    gw_http1_free(&p);
    buf_free(&out);
    buf_free(&done);
}

static void run_all(const struct http_case *c, const struct gw_http1_limits *lim)
{
    run(c, lim, WHOLE);
    run(c, lim, BYTES);
    for (int i = 0; i < 40; i++)
        run(c, lim, RANDOM);
}

START_TEST(core) { run_all(&table[_i], NULL); }
END_TEST
START_TEST(bounds) { run_all(&limits[_i], &small); }
END_TEST

START_TEST(fields)
{
    static const char in[] = "GET /x HTTP/1.1\r\nHost: h\r\nX-Key:  a b \t\r\nx-key: second\r\nEmpty:\r\n\r\n";
    struct gw_http1 p;
    size_t used;
    const char *name;
    gw_http1_init(&p, NULL);
    ck_assert(!gw_http1_started(&p));
    ck_assert_int_eq(gw_http1_feed(&p, in, sizeof in - 1, &used), GW_HTTP1_HEAD);
    ck_assert_uint_eq(used, sizeof in - 1);
    ck_assert_str_eq(gw_http1_get(&p, "x-key"), "a b");
    ck_assert_str_eq(gw_http1_get(&p, "empty"), "");
    ck_assert_ptr_null(gw_http1_get(&p, "absent"));
    ck_assert_uint_eq(p.n_fields, 4);
    ck_assert_str_eq(gw_http1_at(&p, 2, &name), "second");
    ck_assert_str_eq(name, "x-key");
    ck_assert_ptr_null(gw_http1_at(&p, 4, &name));
    ck_assert_int_eq(gw_http1_feed(&p, NULL, 0, &used), GW_HTTP1_END);
    gw_http1_free(&p);
}
END_TEST

/* The caller may set another body limit between the head and the body; reset returns to the first. */
START_TEST(body_limit)
{
    static const char in[] = "POST /p HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
    for (int i = 0; i < 2; i++) {
        struct gw_http1 p;
        size_t used, at;
        gw_http1_init(&p, NULL);
        ck_assert_int_eq(gw_http1_feed(&p, in, sizeof in - 1, &at), GW_HTTP1_HEAD);
        ck_assert_uint_eq(p.content_length, 5);
        p.limits.body_max = i ? 5 : 4;
        enum gw_http1_event ev = gw_http1_feed(&p, in + at, sizeof in - 1 - at, &used);
        ck_assert_int_eq(ev, i ? GW_HTTP1_BODY : GW_HTTP1_ERROR);
        if (!i)
            ck_assert_int_eq(p.status, 413);
        gw_http1_reset(&p);
        ck_assert_uint_eq(p.limits.body_max, gw_http1_limits_default.body_max);
        gw_http1_free(&p);
    }
}
END_TEST

START_TEST(helpers)
{
    ck_assert(gw_http1_list_has("a, Close ,b", "close"));
    ck_assert(gw_http1_list_has("close", "close"));
    ck_assert(!gw_http1_list_has("closed, xclose", "close"));
    ck_assert(!gw_http1_list_has("", "close"));
    ck_assert(!gw_http1_list_has(NULL, "close"));
    struct buf b;
    buf_init(&b, 100);
    ck_assert(gw_http1_unescape("a%2Fb%20c+", 10, &b));
    ck_assert_str_eq(b.data, "a/b c+");
    ck_assert(!gw_http1_unescape("%0", 2, &b));
    ck_assert(!gw_http1_unescape("%00", 3, &b));
    ck_assert(!gw_http1_unescape("%g0", 3, &b));
    buf_free(&b);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("http1");
    TCase *core_case = tcase_create("core"), *limit_case = tcase_create("limits");
    tcase_add_loop_test(core_case, core, 0, N(table));
    tcase_add_test(core_case, fields);
    tcase_add_test(core_case, helpers);
    tcase_add_loop_test(limit_case, bounds, 0, N(limits));
    tcase_add_test(limit_case, body_limit);
    suite_add_tcase(s, core_case);
    suite_add_tcase(s, limit_case);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
