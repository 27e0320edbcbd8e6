/* The request parser on any bytes: no crash, limits hold, and what it says does not depend on how the input was cut. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/http1.h"

static void put_head(const struct gw_http1 *p, struct buf *out)
{
    const char *name;
    buf_printf(out, "%s %s ?%s @%s %u%u%u %llu\n", p->method_name, p->path, p->query ? p->query : "-", p->host, p->keep_alive, p->expect_continue,
               p->chunked, (unsigned long long)p->content_length);
    for (unsigned i = 0; i < p->n_fields; i++) {
        const char *v = gw_http1_at(p, i, &name);
        assert(!strpbrk(v, "\r\n") && !strpbrk(name, "\r\n :"));
        buf_printf(out, "%s=%s\n", name, v);
    }
    assert(p->path[0] == '/' || p->path[0] == '*' || p->method == GW_CONNECT);
}

static void parse(const uint8_t *data, size_t n, unsigned cut, struct buf *out)
{
    static const struct gw_http1_limits lim = {.target_max = 60, .head_bytes_max = 300, .headers_max = 8, .body_max = 100, .chunk_extra_max = 20};
    struct gw_http1 p;
    gw_http1_init(&p, &lim);
    size_t at = 0, body = 0;
    enum gw_http1_event ev = GW_HTTP1_MORE;
    while (at < n && ev != GW_HTTP1_ERROR) {
        size_t k = cut ? 1 + (at * 7 + cut) % cut : n, used;
        if (k > n - at)
            k = n - at;
        char *copy = malloc(k);
        memcpy(copy, data + at, k);
        for (size_t o = 0;; o += used) {
            ev = gw_http1_feed(&p, copy + o, k - o, &used);
            assert(used <= k - o && p.head.len <= lim.head_bytes_max && p.n_fields <= lim.headers_max);
            if (ev == GW_HTTP1_HEAD)
                put_head(&p, out);
            else if (ev == GW_HTTP1_BODY) {
                body += p.body_len;
                assert(body <= lim.body_max && p.body >= copy && p.body + p.body_len <= copy + k);
                buf_add(out, p.body, p.body_len);
            } else if (ev == GW_HTTP1_END) {
                gw_http1_reset(&p);
                body = 0;
                buf_str(out, ";\n");
                if (o + used == k)
                    break;
            } else
                break;
        }
        free(copy);
        at += k;
    }
    if (ev == GW_HTTP1_ERROR)
        buf_printf(out, "!%d %s", p.status, p.reason);
    gw_http1_free(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct buf whole, cut;
    if (!n)
        return 0;
    buf_init(&whole, 1 << 22);
    buf_init(&cut, 1 << 22);
    parse(data + 1, n - 1, 0, &whole);
    parse(data + 1, n - 1, 1 + data[0] % 16, &cut);
    assert(whole.len == cut.len && (!whole.len || !memcmp(whole.data, cut.data, whole.len)));
    buf_free(&whole);
    buf_free(&cut);
    return 0;
}
