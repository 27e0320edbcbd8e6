#include "gateway/page.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/embedded.h"
#include "base/hash.h"

static const struct { const char *path, *file; } files[] = {{"/", "conf/pages/chat.html"}, {"/dashboard", "conf/pages/dashboard.html"}};
#define N_PAGES (sizeof files / sizeof *files)
struct gw_pages { struct gw_page page[N_PAGES]; };

/* ---- digests ---------------------------------------------------------------------------------------------- */

static void put_base64(struct buf *b, const uint8_t *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? (uint32_t)p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        for (size_t k = 0; k < 4; k++)
            buf_char(b, i + k <= n ? digits[v >> (18 - 6 * k) & 63] : '=');
    }
}

/* 'sha256-...' of what stands between <name> and </name>, each time they occur. */
static int put_sources(struct buf *b, const char *directive, const char *name, const char *text)
{
    struct buf open = {0}, end = {0};
    uint8_t d[HASH_BYTES];
    int n = 0;
    buf_init(&open, 64);
    buf_init(&end, 64);
    buf_printf(&open, "<%s>", name);
    buf_printf(&end, "</%s>", name);
    buf_printf(b, "; %s", directive);
    for (const char *p = text; !open.failed && !end.failed && (p = strstr(p, open.data)); n++) {
        const char *from = p + open.len, *to = strstr(from, end.data);
        if (!to)
            break;
        hash_sha256(from, (size_t)(to - from), d);
        buf_str(b, " 'sha256-");
        put_base64(b, d, sizeof d);
        buf_char(b, '\'');
        p = to;
    }
    if (open.failed || end.failed)
        b->failed = true;
    buf_free(&open);
    buf_free(&end);
    return n;
}

static int prepare(struct gw_page *p, const struct embedded *f, struct err *e)
{
    uint8_t d[HASH_BYTES];
    struct buf b;
    p->data = f->data;
    p->n = (size_t)(f->end - f->data);
    hash_sha256(p->data, p->n, d);
    p->etag[0] = '"';
    hash_hex(d, 16, p->etag + 1);
    memcpy(p->etag + 33, "\"", 2);
    buf_init(&b, 4096);
    buf_str(&b, "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                "require-trusted-types-for 'script'; trusted-types 'none'");
    int n = put_sources(&b, "style-src", "style", f->data);
    n = n && put_sources(&b, "script-src", "script", f->data);
    if (!n || b.failed) {
        int rc = n ? err_set(e, ERR_NOMEM, "page %s", f->name) : err_set(e, ERR_FORMAT, "page %s: expected a <style> and a <script>, found neither or one", f->name);
        buf_free(&b);
        return rc;
    }
    p->csp = b.data;
    return ERR_OK;
}

/* ---- life ------------------------------------------------------------------------------------------------- */

int gw_pages_open(gw_pages **out, struct err *e)
{
    gw_pages *p = calloc(1, sizeof *p);
    int rc = ERR_OK;
    *out = NULL;
    if (!p)
        return err_set(e, ERR_NOMEM, "pages");
    for (size_t i = 0; i < N_PAGES && !rc; i++) {
        const struct embedded *f = sluice_embedded;
        while (f->name && strcmp(f->name, files[i].file))
            f++;
        p->page[i].path = files[i].path;
        rc = f->name ? prepare(&p->page[i], f, e) : err_set(e, ERR_FORMAT, "pages: expected %s in the program, found nothing", files[i].file);
    }
    if (rc)
        gw_pages_close(p);
    else
        *out = p;
    return rc;
}

void gw_pages_close(gw_pages *p)
{
    for (size_t i = 0; p && i < N_PAGES; i++)
        free(p->page[i].csp);
    free(p);
}

/* ---- answers ---------------------------------------------------------------------------------------------- */

bool gw_page_is(const char *path)
{
    for (size_t i = 0; i < N_PAGES; i++)
        if (!strcmp(path, files[i].path))
            return true;
    return false;
}

const struct gw_page *gw_page_find(const gw_pages *p, const char *path)
{
    for (size_t i = 0; i < N_PAGES; i++)
        if (!strcmp(path, p->page[i].path))
            return &p->page[i];
    return NULL;
}

bool gw_page_matches(const char *s, const char *etag)
{
    size_t n = strlen(etag);
    while (s && *s) {
        s += strspn(s, " \t,");
        if (*s == '*')
            return true;
        if (!strncmp(s, "W/", 2))
            s += 2;
        if (!strncmp(s, etag, n))
            return true;
        const char *close = *s == '"' ? strchr(s + 1, '"') : NULL; /* a comma may stand inside a tag */
        s = close ? close + 1 : s + strcspn(s, ",");
    }
    return false;
}

int gw_page_answer(const gw_pages *pages, gw_exchange *x, const struct gw_request *r)
{
    const struct gw_page *p = gw_page_find(pages, r->path);
    const struct gw_header h[] = {
        {"ETag", p->etag},
        {"Cache-Control", "no-cache"}, /* asks each time, and is then answered 304 */
        {"Content-Security-Policy", p->csp},
        {"X-Content-Type-Options", "nosniff"},
        {"X-Frame-Options", "DENY"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"},
    };
    size_t n = sizeof h / sizeof *h;
    int status = gw_page_matches(gw_request_header(r, "if-none-match"), p->etag) ? 304 : 200;
    gw_respond(x, status, status == 200 ? "text/html; charset=utf-8" : NULL, h, n, status == 200 ? p->data : "", status == 200 ? p->n : 0);
    return status;
}
