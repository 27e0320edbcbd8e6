/* /admin: the requests that run, and their end. Open to keys whose line in the keys file says admin=1, and, where the configuration says
 * so, to whoever sits at this machine (gw_exchange_local says what that means: behind a proxy everybody would). */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "gateway/chat_internal.h"

#define TAKE_MAX 64
static const char prefix[] = "/admin/requests";

bool gw_admin_is(const char *path)
{
    size_t n = sizeof prefix - 1;
    return !strncmp(path, prefix, n) && (!path[n] || (path[n] == '/' && path[n + 1]));
}

int gw_admin_check(struct gw_app *a, gw_exchange *x, const struct gw_request *r, struct gw_api_error *ae)
{
    bool one = r->path[sizeof prefix - 1] == '/';
    gw_tenant *t = gw_app_tenant(a, r);
    if (!(t && gw_tenant_limits_of(t).admin) && !(a->cfg.admin_local && gw_exchange_local(x)))
        return gw_api_error_set(ae, t ? 403 : 401, t ? "permission_denied" : "invalid_api_key", NULL, "This needs a key of an administrator.");
    if (one ? r->method == GW_DELETE : r->method == GW_GET || r->method == GW_HEAD)
        return 0;
    ae->allow = one ? "DELETE" : "GET, HEAD";
    const char *allow = ae->allow;
    gw_api_error_set(ae, 405, "method_not_allowed", NULL, "Not allowed to %s on %.200s.", r->method_name, r->path);
    ae->allow = allow;
    return 405;
}

static bool take(void *owner) /* unless its last reference is just going */
{
    struct gw_chat *c = owner;
    int n = atomic_load(&c->refs);
    while (n > 0)
        if (atomic_compare_exchange_weak(&c->refs, &n, n + 1))
            return true;
    return false;
}

static void cancel(void *arg)
{
    struct gw_chat *c = arg;
    struct gw_api_error ae;
    gw_api_error_set(&ae, 503, "request_cancelled", NULL, "The request was cancelled by an administrator.");
    ae.no_retry = true;
    if (c->x)
        gw_chat_break(c, &ae);
    gw_chat_unref(c);
}

static unsigned cancel_all(struct gw_app *a, const char *id)
{
    void *found[TAKE_MAX];
    unsigned n = gw_runs_find(&a->runs, id, take, found, TAKE_MAX);
    for (unsigned i = 0; i < n; i++) {
        struct gw_chat *c = found[i];
        log_info("cancelled by an administrator id=%s tenant=%s", c->head.id, gw_tenant_name(c->tenant));
        if (gw_loop_post(c->loop, cancel, c))
            gw_chat_unref(c); /* the loop has ended, and the request with it */
    }
    return n;
}

void gw_admin_answer(struct gw_app *a, gw_exchange *x, const struct gw_request *r)
{
    struct gw_api_error ae;
    struct buf b;
    buf_init(&b, 64u << 20);
    if (r->method != GW_DELETE) {
        gw_runs_write(&a->runs, clock_now_ns(), &b);
    } else {
        const char *raw = r->path + sizeof prefix;
        struct buf id;
        buf_init(&id, 512);
        unsigned n = gw_http1_unescape(raw, strlen(raw), &id) && id.len ? cancel_all(a, id.data) : 0;
        if (n)
            buf_printf(&b, "{\"cancelled\":%u}\n", n);
        buf_free(&id);
        if (!n) {
            gw_api_error_set(&ae, 404, "unknown_request", NULL, "No request '%.100s' is running.", raw);
            gw_app_error(a, x, GW_ROUTE_ADMIN, &ae);
            return;
        }
    }
    gw_metrics_answer(&a->metrics, GW_ROUTE_ADMIN, b.failed ? 503 : 200);
    gw_respond(x, b.failed ? 503 : 200, "application/json", NULL, 0, b.data, b.failed ? 0 : b.len);
    buf_free(&b);
}
