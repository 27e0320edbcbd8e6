/* The pages as a browser gets them: headers whose digests are those of the content, HEAD, 304, off, and that they fetch nothing. */
#include <arpa/inet.h>
#include <openssl/evp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/log.h"
#include "gateway/gateway.h"
#include "gateway/page.h"
#include "tests/gateway/fake_chat.h"
#include "tests/support/suite.h"

static struct arena mem;
static gw_gateway *gw;
static const char *const paths[] = {"/", "/dashboard"};

static void open_gateway(bool pages)
{
    static const char *listen[] = {"127.0.0.1:0"};
    struct gw_config c;
    struct err e;
    arena_init(&mem, 64u << 20);
    log_setup(&(struct log_config){.level = LOG_ERROR, .fd = 2, .part = "test"});
    gw_config_default(&c);
    ck_assert(c.pages); /* on unless said otherwise */
    c.listen = (struct conf_list){listen, 1};
    c.tls = false;
    c.threads = 1;
    c.api_key = "test-key-123";
    c.engine = "unix:/tmp/check_page.no-such-engine"; /* pages are served without one */
    c.pages = pages;
    OK(gw_gateway_open(&gw, &c, &e));
}

static void close_gateway(void)
{
    gw_gateway_close(gw);
    arena_free(&mem);
}

struct reply { int status; const char *head, *body; size_t n; };

static struct reply ask(const char *method, const char *path, const char *headers)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(gw_gateway_port(gw, 0)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct buf b;
    char in[16384];
    ssize_t n;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (void *)&a, sizeof a), 0);
    buf_init(&b, 8u << 20);
    buf_printf(&b, "%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n", method, path, headers);
    ck_assert_int_eq(send(fd, b.data, b.len, MSG_NOSIGNAL), (ssize_t)b.len);
    buf_reset(&b);
    while ((n = recv(fd, in, sizeof in, 0)) > 0)
        buf_add(&b, in, (size_t)n);
    close(fd);
    char *text = arena_strdup(&mem, b.data ? b.data : "", b.len), *end = strstr(text, "\r\n\r\n");
    ck_assert_msg(end != NULL, "no answer to %s %s: %.200s", method, path, text);
    end[2] = 0;
    struct reply r = {atoi(text + 9), text, end + 4, b.len - (size_t)(end + 4 - text)};
    buf_free(&b);
    return r;
}

static const char *field(const struct reply *r, const char *name)
{
    const char *p = strstr(r->head, arena_printf(&mem, "\r\n%s: ", name));
    if (!p)
        return "";
    p += strlen(name) + 4;
    return arena_strdup(&mem, p, strcspn(p, "\r"));
}

/* 'sha256-...' of the n-th <name> element, by another implementation than the page's own. */
static const char *source_of(const struct reply *r, const char *name, int *count)
{
    const char *open = arena_printf(&mem, "<%s>", name), *shut = arena_printf(&mem, "</%s>", name), *from, *to, *last = "";
    for (const char *p = r->body; (p = strstr(p, open)); p = to, ++*count) {
        unsigned char d[32], text[64];
        from = p + strlen(open);
        to = strstr(from, shut);
        ck_assert_ptr_nonnull(to);
        ck_assert_int_eq(EVP_Digest(from, (size_t)(to - from), d, NULL, EVP_sha256(), NULL), 1);
        EVP_EncodeBlock(text, d, 32);
        last = arena_printf(&mem, "'sha256-%s'", (char *)text);
    }
    return last;
}

START_TEST(core)
{
    open_gateway(true);
    for (int i = 0; i < 2; i++) {
        struct reply r = ask("GET", paths[i], "");
        ck_assert_int_eq(r.status, 200);
        ck_assert_str_eq(field(&r, "Content-Type"), "text/html; charset=utf-8");
        ck_assert_int_eq(atoi(field(&r, "Content-Length")), (int)r.n);
        ck_assert(r.n > 5000 && !strncmp(r.body, "<!doctype html>", 15));
        ck_assert_str_eq(field(&r, "X-Content-Type-Options"), "nosniff");
        ck_assert_str_eq(field(&r, "Referrer-Policy"), "no-referrer");
        ck_assert_str_eq(field(&r, "Cache-Control"), "no-cache");
        ck_assert_str_eq(field(&r, "X-Frame-Options"), "DENY");
        const char *etag = field(&r, "ETag");
        ck_assert_uint_eq(strlen(etag), 34);
        struct reply h = ask("HEAD", paths[i], "");
        ck_assert_int_eq(h.status, 200);
        ck_assert_uint_eq(h.n, 0);
        ck_assert_str_eq(field(&h, "ETag"), etag);
        ck_assert_str_eq(field(&h, "Content-Length"), field(&r, "Content-Length"));
        h = ask("GET", paths[i], arena_printf(&mem, "If-None-Match: \"old\", W/%s\r\n", etag));
        ck_assert_int_eq(h.status, 304);
        ck_assert_uint_eq(h.n, 0);
        ck_assert_str_eq(field(&h, "ETag"), etag);
        ck_assert_str_eq(field(&h, "Content-Security-Policy"), field(&r, "Content-Security-Policy"));
        ck_assert_int_eq(ask("GET", paths[i], "If-None-Match: \"old\"\r\n").status, 200);
        h = ask("POST", paths[i], "Content-Length: 0\r\n");
        ck_assert_int_eq(h.status, 405);
        ck_assert_str_eq(field(&h, "Allow"), "GET, HEAD");
    }
    ck_assert_int_eq(ask("GET", "/?q=1", "").status, 200);
    ck_assert_int_eq(ask("GET", "/v1/models", "").status, 401); /* what the page asks for still needs a key */
    struct reply m = ask("GET", "/metrics", "");
    ck_assert_ptr_nonnull(strstr(m.body, "sluice_requests_total{route=\"pages\",status=\"304\"} 2\n"));
    close_gateway();
}
END_TEST

START_TEST(policy) /* the script and the style that stand in a page run, and nothing else does */
{
    open_gateway(true);
    for (int i = 0; i < 2; i++) {
        struct reply r = ask("GET", paths[i], "");
        const char *csp = field(&r, "Content-Security-Policy");
        int styles = 0, scripts = 0;
        const char *style = source_of(&r, "style", &styles), *script = source_of(&r, "script", &scripts);
        ck_assert_int_eq(styles, 1);
        ck_assert_int_eq(scripts, 1);
        ck_assert_msg(strstr(csp, arena_printf(&mem, "; style-src %s;", style)) != NULL, "%s lacks %s", csp, style);
        ck_assert_msg(strstr(csp, arena_printf(&mem, "; script-src %s", script)) != NULL, "%s lacks %s", csp, script);
        ck_assert_int_eq(strncmp(csp, "default-src 'none'; connect-src 'self'; ", 40), 0);
        ck_assert_ptr_nonnull(strstr(csp, "frame-ancestors 'none'"));
        ck_assert_ptr_nonnull(strstr(csp, "base-uri 'none'"));
        ck_assert_ptr_nonnull(strstr(csp, "form-action 'none'"));
        ck_assert_ptr_nonnull(strstr(csp, "require-trusted-types-for 'script'"));
        ck_assert_ptr_null(strstr(csp, "unsafe"));
        ck_assert_ptr_null(strstr(csp, "http"));
        /* no way around text nodes, no handler or style in an attribute, nothing from elsewhere */
        static const char *const never[] = {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser", "localStorage",
                                            "<script ", "<style ", " onclick=", " onload=", " onerror=", " style=\"", " src=", "<iframe", "@import", "url("};
        for (size_t k = 0; k < sizeof never / sizeof *never; k++)
            ck_assert_msg(!strstr(r.body, never[k]), "%s has %s", paths[i], never[k]);
    }
    close_gateway();
}
END_TEST

START_TEST(off)
{
    open_gateway(false);
    for (int i = 0; i < 2; i++) {
        struct reply r = ask("GET", paths[i], "");
        ck_assert_int_eq(r.status, 404);
        ck_assert_ptr_nonnull(strstr(r.body, "unknown_url"));
        ck_assert_int_eq(ask("POST", paths[i], "Content-Length: 0\r\n").status, 404);
    }
    close_gateway();
}
END_TEST

START_TEST(tags)
{
    static const struct { const char *field; bool same; } t[] = {
        {NULL, false}, {"", false}, {"\"a\"", true}, {"W/\"a\"", true}, {"*", true}, {" , \"b\" ,\t\"a\"", true}, {"\"b\"", false}, {"a", false}, {"\"a", false},
        {"\"b,\"a\"", false}, {"\"b, \"", false}, {"\"x\" \"a\"", true}, {"b, \"a\"", true}, {"W/", false}, {"\"", false}, {",,,", false}, {"W/W/\"a\"", false},
    };
    for (size_t i = 0; i < sizeof t / sizeof *t; i++)
        ck_assert_msg(gw_page_matches(t[i].field, "\"a\"") == t[i].same, "%s", t[i].field ? t[i].field : "no field");
}
END_TEST

START_TEST(found)
{
    gw_pages *p;
    struct err e;
    OK(gw_pages_open(&p, &e));
    ck_assert(gw_page_is("/") && gw_page_is("/dashboard"));
    ck_assert(!gw_page_is("") && !gw_page_is("/dashboard/") && !gw_page_is("//") && !gw_page_is("/index.html"));
    for (int i = 0; i < 2; i++) {
        const struct gw_page *page = gw_page_find(p, paths[i]);
        ck_assert_ptr_nonnull(page);
        ck_assert_uint_eq(strlen(page->data), page->n); /* no NUL inside */
    }
    ck_assert_ptr_null(gw_page_find(p, "/x"));
    ck_assert_str_ne(gw_page_find(p, "/")->etag, gw_page_find(p, "/dashboard")->etag);
    gw_pages_close(p);
    gw_pages_close(NULL);
}
END_TEST

SUITE("gateway", "page", core, policy, off, tags, found)
