/* The table is scanned whole on every look-up with a constant-time compare: a few thousand 32-byte rows cost microseconds,
 * and neither position nor common prefix of a wrong guess shows in the time. Rates are token buckets that hold one minute's
 * worth and refill continuously; levels are doubles since refills are fractions. */
#include "gateway/tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"

#define TENANT_NAME_MAX 64
#define KEYS_MAX 65536
#define LINE_MAX_BYTES 4096

struct bucket { double level; uint64_t at_ns; bool started; };
struct gw_tenant {
    char name[TENANT_NAME_MAX + 1];
    struct gw_tenant_limits lim;
    bool lim_given;
    pthread_mutex_t lock;
    uint32_t running, connections, waiting;
    struct bucket requests, tokens;
};
struct row { uint8_t digest[HASH_BYTES]; size_t tenant; };
struct gw_tenants {
    pthread_rwlock_t lock; /* of the arrays; a tenant itself never moves */
    struct row *rows;
    size_t n_rows, cap_rows, n_named;
    gw_tenant **tenants;
    size_t n_tenants, cap_tenants;
};

/* ---- building the table ----------------------------------------------------------------------------------- */

static int tenant_index(gw_tenants *t, const char *name, size_t *out, struct err *e)
{
    for (size_t i = 0; i < t->n_tenants; i++)
        if (!strcmp(t->tenants[i]->name, name)) {
            *out = i;
            return ERR_OK;
        }
    if (t->n_tenants == t->cap_tenants) {
        size_t cap = t->cap_tenants ? 2 * t->cap_tenants : 8;
        gw_tenant **p = realloc(t->tenants, cap * sizeof *p);
        if (!p)
            return err_set(e, ERR_NOMEM, "table of %zu tenants", cap);
        t->tenants = p;
        t->cap_tenants = cap;
    }
    gw_tenant *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(e, ERR_NOMEM, "tenant '%s'", name);
    snprintf(n->name, sizeof n->name, "%s", name);
    pthread_mutex_init(&n->lock, NULL);
    *out = t->n_tenants;
    t->tenants[t->n_tenants++] = n;
    return ERR_OK;
}

static int add_row(gw_tenants *t, const uint8_t digest[HASH_BYTES], size_t tenant, struct err *e)
{
    for (size_t i = 0; i < t->n_rows; i++)
        if (!memcmp(t->rows[i].digest, digest, HASH_BYTES))
            return err_set(e, ERR_FORMAT, "this key was given before");
    if (t->n_rows == KEYS_MAX)
        return err_set(e, ERR_LIMIT, "more than %d keys", KEYS_MAX);
    if (t->n_rows == t->cap_rows) {
        size_t cap = t->cap_rows ? 2 * t->cap_rows : 16;
        struct row *p = realloc(t->rows, cap * sizeof *p);
        if (!p)
            return err_set(e, ERR_NOMEM, "table of %zu keys", cap);
        t->rows = p;
        t->cap_rows = cap;
    }
    memcpy(t->rows[t->n_rows].digest, digest, HASH_BYTES);
    t->rows[t->n_rows++].tenant = tenant;
    return ERR_OK;
}

static bool name_ok(const char *s)
{
    size_t n = strlen(s);
    return n >= 1 && n <= TENANT_NAME_MAX &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == n;
}

static int parse_number(const char *what, const char *s, long long min, long long max, long long *out, struct err *e)
{
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (errno || end == s || *end || v < min || v > max)
        return err_set(e, ERR_FORMAT, "%s: expected an integer from %lld to %lld, found '%s'", what, min, max, s);
    *out = v;
    return ERR_OK;
}

static int parse_limit(struct gw_tenant_limits *lim, char *word, struct err *e)
{
    char *value = strchr(word, '=');
    long long v = 0;
    int rc;
    if (!value)
        return err_set(e, ERR_FORMAT, "expected name=value, found '%s'", word);
    *value++ = 0;
    if (!strcmp(word, "concurrent")) {
        if (!(rc = parse_number(word, value, 1, 1000000, &v, e)))
            lim->concurrent = (uint32_t)v;
    } else if (!strcmp(word, "max_tokens")) {
        if (!(rc = parse_number(word, value, 1, INT32_MAX, &v, e)))
            lim->max_tokens = (uint32_t)v;
    } else if (!strcmp(word, "requests_per_min")) {
        if (!(rc = parse_number(word, value, 1, 100000000, &v, e)))
            lim->requests_per_min = (uint32_t)v;
    } else if (!strcmp(word, "tokens_per_min")) {
        if (!(rc = parse_number(word, value, 1, 1000000000000ll, &v, e)))
            lim->tokens_per_min = (uint64_t)v;
    } else if (!strcmp(word, "priority")) {
        if (!(rc = parse_number(word, value, -1000, 1000, &v, e)))
            lim->priority = (int32_t)v;
    } else if (!strcmp(word, "connections")) {
        if (!(rc = parse_number(word, value, 1, 1000000, &v, e)))
            lim->connections = (uint32_t)v;
    } else if (!strcmp(word, "queue")) {
        if (!(rc = parse_number(word, value, 1, 1000000, &v, e)))
            lim->queue = (uint32_t)v;
    } else if (!strcmp(word, "admin")) {
        if (!(rc = parse_number(word, value, 0, 1, &v, e)))
            lim->admin = v != 0;
    } else {
        return err_set(e, ERR_FORMAT, "unknown limit '%s' (concurrent, max_tokens, requests_per_min, tokens_per_min, priority, connections, queue, admin)", word);
    }
    return rc;
}

static int parse_line(gw_tenants *t, char *line, struct err *e)
{
    static const char blank[] = " \t\r\n";
    char *save = NULL, *hex, *name, *word;
    uint8_t digest[HASH_BYTES];
    struct gw_tenant_limits lim = {0};
    size_t at = 0;
    int rc;

    line[strcspn(line, "#")] = 0;
    if (!(hex = strtok_r(line, blank, &save)))
        return ERR_OK;
    if (strlen(hex) != 2 * HASH_BYTES || !hash_unhex(hex, HASH_BYTES, digest))
        return err_set(e, ERR_FORMAT, "expected the SHA-256 of a key as 64 hex digits, found %zu characters", strlen(hex));
    if (!(name = strtok_r(NULL, blank, &save)) || !name_ok(name))
        return err_set(e, ERR_FORMAT, "expected a tenant name (1 to %d of A-Z a-z 0-9 . _ -), found '%s'", TENANT_NAME_MAX, name ? name : "nothing");
    if ((rc = tenant_index(t, name, &at, e)) || (rc = add_row(t, digest, at, e)))
        return rc;
    bool any = false;
    while ((word = strtok_r(NULL, blank, &save))) {
        any = true;
        if ((rc = parse_limit(&lim, word, e)))
            return rc;
    }
    if (any && t->tenants[at]->lim_given)
        return err_set(e, ERR_FORMAT, "limits of tenant '%s' were given before", name);
    if (any) {
        t->tenants[at]->lim = lim;
        t->tenants[at]->lim_given = true;
    }
    return ERR_OK;
}

static int read_keys(gw_tenants *t, const char *path, struct err *e)
{
    int rc = ERR_OK;
    char line[LINE_MAX_BYTES];
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(e, ERR_IO, "keys file %s: %s", path, strerror(errno));
    for (size_t no = 1; !rc && fgets(line, sizeof line, f); no++) {
        size_t n = strlen(line);
        if (n + 1 == sizeof line && line[n - 1] != '\n')
            rc = err_set(e, ERR_FORMAT, "line longer than %zu bytes", sizeof line - 2);
        else
            rc = parse_line(t, line, e);
        if (rc)
            err_prefix(e, rc, "%s:%zu", path, no);
    }
    if (!rc && ferror(f))
        rc = err_set(e, ERR_IO, "keys file %s: cannot be read", path);
    fclose(f);
    return rc;
}

int gw_tenants_open(gw_tenants **out, const char *keys_path, const char *api_key, struct err *e)
{
    int rc = ERR_OK;
    gw_tenants *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return err_set(e, ERR_NOMEM, "tenants");
    pthread_rwlock_init(&t->lock, NULL);
    if (keys_path && (rc = read_keys(t, keys_path, e)))
        goto out;
    if (api_key) {
        uint8_t digest[HASH_BYTES];
        size_t n = strlen(api_key), at = 0;
        if (n < 8 || n > GW_KEY_MAX) {
            rc = err_set(e, ERR_INVALID, "api key: expected 8 to %d characters, found %zu", GW_KEY_MAX, n);
            goto out;
        }
        hash_sha256(api_key, n, digest);
        if ((rc = tenant_index(t, "default", &at, e)) || (rc = add_row(t, digest, at, e))) {
            err_prefix(e, rc, "api key");
            goto out;
        }
    }
    if (!t->n_rows) {
        rc = err_set(e, ERR_INVALID, "%s: no key in it, so nobody could ask for anything", keys_path ? keys_path : "no keys file and no api key");
        goto out;
    }
    t->n_named = t->n_tenants;
    *out = t;
    t = NULL;
out:
    gw_tenants_close(t);
    return rc;
}

/* Moves the keys of `from` to t; its tenants are found again by name. With t->lock held for writing. */
static int adopt(gw_tenants *t, gw_tenants *from, struct err *e)
{
    int rc = ERR_OK;
    size_t *to = calloc(from->n_tenants, sizeof *to);
    if (!to)
        return err_set(e, ERR_NOMEM, "table of %zu tenants", from->n_tenants);
    for (size_t i = 0; i < from->n_tenants && !rc; i++)
        rc = tenant_index(t, from->tenants[i]->name, &to[i], e);
    for (size_t i = 0; i < from->n_tenants && !rc; i++) {
        gw_tenant *n = t->tenants[to[i]];
        pthread_mutex_lock(&n->lock);
        n->lim = from->tenants[i]->lim;
        pthread_mutex_unlock(&n->lock);
    }
    if (!rc) {
        struct row *old = t->rows;
        for (size_t i = 0; i < from->n_rows; i++)
            from->rows[i].tenant = to[from->rows[i].tenant];
        t->rows = from->rows;
        t->n_rows = from->n_rows;
        t->cap_rows = from->cap_rows;
        t->n_named = from->n_tenants;
        from->rows = old;
    }
    free(to);
    return rc;
}

int gw_tenants_reload(gw_tenants *t, const char *keys_path, const char *api_key, struct err *e)
{
    gw_tenants *fresh;
    int rc = gw_tenants_open(&fresh, keys_path, api_key, e);
    if (rc)
        return rc;
    pthread_rwlock_wrlock(&t->lock);
    rc = adopt(t, fresh, e);
    pthread_rwlock_unlock(&t->lock);
    gw_tenants_close(fresh);
    return rc;
}

void gw_tenants_close(gw_tenants *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n_tenants; i++) {
        pthread_mutex_destroy(&t->tenants[i]->lock);
        free(t->tenants[i]);
    }
    pthread_rwlock_destroy(&t->lock);
    free(t->tenants);
    free(t->rows);
    free(t);
}

static size_t read_size(gw_tenants *t, const size_t *of)
{
    pthread_rwlock_rdlock(&t->lock);
    size_t n = *of;
    pthread_rwlock_unlock(&t->lock);
    return n;
}

size_t gw_tenants_keys(gw_tenants *t) { return read_size(t, &t->n_rows); }
size_t gw_tenants_count(gw_tenants *t) { return read_size(t, &t->n_named); }
const char *gw_tenant_name(const gw_tenant *n) { return n->name; }

struct gw_tenant_limits gw_tenant_limits_of(gw_tenant *n)
{
    pthread_mutex_lock(&n->lock);
    struct gw_tenant_limits lim = n->lim;
    pthread_mutex_unlock(&n->lock);
    return lim;
}

gw_tenant *gw_tenants_find(gw_tenants *t, const char *key, size_t n)
{
    uint8_t digest[HASH_BYTES];
    size_t found = SIZE_MAX;
    if (n == 0 || n > GW_KEY_MAX)
        return NULL;
    hash_sha256(key, n, digest);
    pthread_rwlock_rdlock(&t->lock);
    for (size_t i = 0; i < t->n_rows; i++) {
        size_t hit = (size_t)0 - (size_t)hash_equal(t->rows[i].digest, digest, HASH_BYTES); /* all ones or zero */
        found = (found & ~hit) | (t->rows[i].tenant & hit);
    }
    gw_tenant *hit = found == SIZE_MAX ? NULL : t->tenants[found];
    pthread_rwlock_unlock(&t->lock);
    return hit;
}

/* ---- counters --------------------------------------------------------------------------------------------- */

static void refill(struct bucket *b, double per_min, uint64_t now_ns)
{
    if (!b->started) {
        b->started = true;
        b->level = per_min;
    } else if (now_ns > b->at_ns) {
        b->level += per_min * (double)(now_ns - b->at_ns) / (60.0 * (double)NS_PER_S);
        if (b->level > per_min)
            b->level = per_min;
    }
    b->at_ns = now_ns;
}

/* Takes `want` when the level holds it, or a full bucket when `want` is more than one holds. */
static bool take(struct bucket *b, double per_min, double want, uint64_t now_ns, uint64_t *retry_ms)
{
    refill(b, per_min, now_ns);
    double need = want < per_min ? want : per_min;
    if (b->level + 1e-6 >= need) {
        b->level -= want;
        return true;
    }
    *retry_ms = (uint64_t)((need - b->level) * 60000.0 / per_min) + 1;
    return false;
}

int gw_tenant_enter(gw_tenant *n, uint64_t now_ns, uint64_t *retry_ms, struct err *e)
{
    int rc = ERR_OK;
    pthread_mutex_lock(&n->lock);
    if (n->lim.concurrent && n->running >= n->lim.concurrent) {
        *retry_ms = 1000;
        rc = err_set(e, ERR_AGAIN, "%u requests of this key's tenant are running, its limit is %u", n->running, n->lim.concurrent);
    } else if (n->lim.requests_per_min && !take(&n->requests, n->lim.requests_per_min, 1, now_ns, retry_ms)) {
        rc = err_set(e, ERR_AGAIN, "rate limit of %u requests a minute reached", n->lim.requests_per_min);
    } else {
        n->running++;
    }
    pthread_mutex_unlock(&n->lock);
    return rc;
}

int gw_tenant_charge(gw_tenant *n, uint64_t tokens, uint64_t now_ns, uint64_t *retry_ms, struct err *e)
{
    int rc = ERR_OK;
    pthread_mutex_lock(&n->lock);
    if (n->lim.tokens_per_min && !take(&n->tokens, (double)n->lim.tokens_per_min, (double)tokens, now_ns, retry_ms))
        rc = err_set(e, ERR_AGAIN, "rate limit of %llu tokens a minute reached", (unsigned long long)n->lim.tokens_per_min);
    pthread_mutex_unlock(&n->lock);
    return rc;
}

void gw_tenant_leave(gw_tenant *n, uint64_t output_tokens, uint64_t now_ns)
{
    pthread_mutex_lock(&n->lock);
    if (n->running)
        n->running--;
    if (n->lim.tokens_per_min && output_tokens) {
        refill(&n->tokens, (double)n->lim.tokens_per_min, now_ns);
        n->tokens.level -= (double)output_tokens;
    }
    pthread_mutex_unlock(&n->lock);
}

int gw_tenant_connect(gw_tenant *n, struct err *e)
{
    int rc = ERR_OK;
    pthread_mutex_lock(&n->lock);
    if (n->lim.connections && n->connections >= n->lim.connections)
        rc = err_set(e, ERR_AGAIN, "%u connections of this key's tenant are open, its limit is %u", n->connections, n->lim.connections);
    else
        n->connections++;
    pthread_mutex_unlock(&n->lock);
    return rc;
}

void gw_tenant_disconnect(gw_tenant *n)
{
    pthread_mutex_lock(&n->lock);
    n->connections -= n->connections > 0;
    pthread_mutex_unlock(&n->lock);
}

int gw_tenant_wait(gw_tenant *n, uint64_t share, struct err *e)
{
    int rc = ERR_OK;
    pthread_mutex_lock(&n->lock);
    uint64_t most = n->lim.queue ? n->lim.queue : share;
    if (most && n->waiting >= most)
        rc = err_set(e, ERR_AGAIN, "%u requests of this key's tenant are waiting, its share of the queue is %llu", n->waiting, (unsigned long long)most);
    else
        n->waiting++;
    pthread_mutex_unlock(&n->lock);
    return rc;
}

void gw_tenant_wait_end(gw_tenant *n)
{
    pthread_mutex_lock(&n->lock);
    n->waiting -= n->waiting > 0;
    pthread_mutex_unlock(&n->lock);
}

static struct gw_rate rate_of(struct bucket *b, uint64_t per_min, uint64_t now_ns)
{
    struct gw_rate r = {.limit = per_min};
    if (!per_min)
        return r;
    refill(b, (double)per_min, now_ns);
    r.left = b->level > 0 ? (uint64_t)(b->level + 1e-6) : 0;
    r.reset_ms = (uint64_t)(((double)per_min - b->level) * 60000.0 / (double)per_min + 0.5);
    return r;
}

void gw_tenant_rates(gw_tenant *n, uint64_t now_ns, struct gw_rates *r)
{
    pthread_mutex_lock(&n->lock);
    r->requests = rate_of(&n->requests, n->lim.requests_per_min, now_ns);
    r->tokens = rate_of(&n->tokens, n->lim.tokens_per_min, now_ns);
    pthread_mutex_unlock(&n->lock);
}

/* ---- the generated key ------------------------------------------------------------------------------------ */

static int read_state_key(const char *path, int fd, char key[GW_STATE_KEY_BYTES], struct err *e)
{
    struct stat st;
    char text[GW_STATE_KEY_BYTES + 1];
    if (fstat(fd, &st))
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (st.st_mode & 077)
        return err_set(e, ERR_INVALID, "%s: mode is %03o, others can read the key; make it 600", path, (unsigned)(st.st_mode & 0777));
    ssize_t n = read(fd, text, sizeof text - 1);
    if (n < 0)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    text[n] = 0;
    text[strcspn(text, "\r\n")] = 0;
    size_t len = strlen(text);
    if (len < 8 || len >= GW_STATE_KEY_BYTES)
        return err_set(e, ERR_INVALID, "%s: expected a key of 8 to %d characters, found %zu; remove the file to have one made", path, GW_STATE_KEY_BYTES - 1, len);
    memcpy(key, text, len + 1);
    return ERR_OK;
}

/* Written beside and renamed, so that a crash never leaves half a key. */
static int write_state_key(const char *path, char key[GW_STATE_KEY_BYTES], struct err *e)
{
    uint8_t secret[24];
    char tmp[4200];
    int rc = ERR_OK;
    if (!hash_random(secret, sizeof secret))
        return err_set(e, ERR_IO, "no random bytes from the system");
    memcpy(key, "sk-sluice-", 10);
    hash_hex(secret, sizeof secret, key + 10);
    snprintf(tmp, sizeof tmp, "%s.%ld", path, (long)getpid());
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_set(e, ERR_IO, "%s: %s", tmp, strerror(errno));
    size_t n = strlen(key);
    if (write(fd, key, n) != (ssize_t)n || write(fd, "\n", 1) != 1 || fsync(fd))
        rc = err_set(e, ERR_IO, "%s: %s", tmp, strerror(errno));
    close(fd);
    if (!rc && rename(tmp, path))
        rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    if (rc)
        unlink(tmp);
    return rc;
}

int gw_state_key(const char *state_dir, char key[GW_STATE_KEY_BYTES], bool *created, struct err *e)
{
    char path[4096];
    *created = false;
    if (snprintf(path, sizeof path, "%s/api-key", state_dir) >= (int)sizeof path)
        return err_set(e, ERR_INVALID, "state directory: path longer than %zu bytes", sizeof path - 9);
    if (mkdir(state_dir, 0700) && errno != EEXIST)
        return err_set(e, ERR_IO, "%s: %s", state_dir, strerror(errno));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        int rc = read_state_key(path, fd, key, e);
        close(fd);
        return rc;
    }
    if (errno != ENOENT)
        return err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    *created = true;
    return write_state_key(path, key, e);
}
