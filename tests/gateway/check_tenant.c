/* Keys files good and bad, look-ups, limits against a clock that the test moves, the generated key. */
#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "gateway/tenant.h"
#include "tests/support/alloc_fail.h"

static char dir[64], path[128];

static void setup(void)
{
    snprintf(dir, sizeof dir, "/tmp/check_tenant.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/keys", dir);
}

static void teardown(void)
{
    char cmd[160];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

static const char *hex_of(const char *key)
{
    static char hex[4][65];
    static int at;
    uint8_t d[32];
    at = (at + 1) % 4;
    hash_sha256(key, strlen(key), d);
    hash_hex(d, 32, hex[at]);
    return hex[at];
}

static void write_keys(const char *text)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

START_TEST(core)
{
    char text[1024];
    struct err e;
    gw_tenants *t;
    snprintf(text, sizeof text,
             "# keys\n\n%s acme concurrent=2 max_tokens=100 requests_per_min=60 tokens_per_min=6000 priority=3 # trailing\n"
             "%s acme\n%s other\r\n", hex_of("first-key"), hex_of("second-key"), hex_of("third-key"));
    write_keys(text);
    ck_assert_msg(!gw_tenants_open(&t, path, "fourth-key", &e), "%s", e.msg);
    ck_assert_uint_eq(gw_tenants_keys(t), 4);
    gw_tenant *a = gw_tenants_find(t, "first-key", 9), *b = gw_tenants_find(t, "second-key", 10);
    ck_assert_ptr_nonnull(a);
    ck_assert_ptr_eq(a, b);
    ck_assert_str_eq(gw_tenant_name(a), "acme");
    ck_assert_uint_eq(gw_tenant_limits_of(a).max_tokens, 100);
    ck_assert_int_eq(gw_tenant_limits_of(a).priority, 3);
    ck_assert_str_eq(gw_tenant_name(gw_tenants_find(t, "third-key", 9)), "other");
    ck_assert_str_eq(gw_tenant_name(gw_tenants_find(t, "fourth-key", 10)), "default");
    ck_assert_ptr_null(gw_tenants_find(t, "fourth-ke", 9));
    ck_assert_ptr_null(gw_tenants_find(t, "", 0));
    char big[600];
    memset(big, 'x', sizeof big);
    ck_assert_ptr_null(gw_tenants_find(t, big, sizeof big));
    gw_tenants_close(t);
}
END_TEST

START_TEST(limits)
{
    char text[256];
    struct err e;
    gw_tenants *t;
    uint64_t retry = 0, now = 1000 * NS_PER_S;
    snprintf(text, sizeof text, "%s a concurrent=2 requests_per_min=3 tokens_per_min=600\n", hex_of("key-of-a"));
    write_keys(text);
    ck_assert_int_eq(gw_tenants_open(&t, path, NULL, &e), 0);
    gw_tenant *a = gw_tenants_find(t, "key-of-a", 8);
    ck_assert_int_eq(gw_tenant_enter(a, now, &retry, &e), 0);
    ck_assert_int_eq(gw_tenant_enter(a, now, &retry, &e), 0);
    ck_assert_int_eq(gw_tenant_enter(a, now, &retry, &e), ERR_AGAIN); /* a third at once */
    ck_assert_uint_eq(retry, 1000);
    gw_tenant_leave(a, 0, now);
    ck_assert_int_eq(gw_tenant_enter(a, now, &retry, &e), 0);         /* the third of this minute */
    gw_tenant_leave(a, 0, now);
    ck_assert_int_eq(gw_tenant_enter(a, now, &retry, &e), ERR_AGAIN);
    ck_assert_msg(retry > 19000 && retry <= 20001, "%llu", (unsigned long long)retry); /* one refills in 20 s */
    now += 20 * NS_PER_S;
    ck_assert_int_eq(gw_tenant_enter(a, now, &retry, &e), 0);

    ck_assert_int_eq(gw_tenant_charge(a, 500, now, &retry, &e), 0);
    ck_assert_int_eq(gw_tenant_charge(a, 200, now, &retry, &e), ERR_AGAIN);
    ck_assert_msg(retry > 9900 && retry <= 10001, "%llu", (unsigned long long)retry);
    gw_tenant_leave(a, 200, now);                                     /* output drives the level to -100 */
    ck_assert_int_eq(gw_tenant_charge(a, 100, now + 19 * NS_PER_S, &retry, &e), ERR_AGAIN);
    ck_assert_int_eq(gw_tenant_charge(a, 100, now + 21 * NS_PER_S, &retry, &e), 0);
    ck_assert_int_eq(gw_tenant_charge(a, 5000, now + 200 * NS_PER_S, &retry, &e), 0); /* more than a minute's worth: on a full bucket */
    ck_assert_int_eq(gw_tenant_charge(a, 1, now + 201 * NS_PER_S, &retry, &e), ERR_AGAIN);
    gw_tenants_close(t);
}
END_TEST

static const struct { const char *line, *says; } bad[] = {
    {"abc acme\n", "expected the SHA-256"},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdeg acme\n", "expected the SHA-256"},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n", "expected a tenant name"},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef a/b\n", "expected a tenant name"},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef a speed=1\n", "unknown limit 'speed'"},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef a concurrent\n", "expected name=value"},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef a concurrent=0\n", "concurrent: expected an integer"},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef a max_tokens=1k\n", "max_tokens: expected an integer"},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef a\n0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef b\n", "keys:2: this key was given before"},
    {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef a priority=1\n1123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef a priority=2\n", "keys:2: limits of tenant 'a' were given before"},
    {"# nothing\n", "no key in it"},
};

START_TEST(errors)
{
    struct err e;
    gw_tenants *t;
    write_keys(bad[_i].line);
    ck_assert_int_ne(gw_tenants_open(&t, path, NULL, &e), 0);
    ck_assert_ptr_null(t);
    ck_assert_msg(strstr(e.msg, bad[_i].says) != NULL, "%s", e.msg);
}
END_TEST

START_TEST(errors_files)
{
    struct err e;
    gw_tenants *t;
    ck_assert_int_eq(gw_tenants_open(&t, "/nonexistent/keys", NULL, &e), ERR_IO);
    ck_assert_int_eq(gw_tenants_open(&t, NULL, NULL, &e), ERR_INVALID);
    ck_assert_int_eq(gw_tenants_open(&t, NULL, "short", &e), ERR_INVALID);
}
END_TEST

START_TEST(memory)
{
    char text[512];
    struct err e;
    gw_tenants *t;
    if (!alloc_fail_works()) {
        puts("SKIP memory: a sanitizer owns the allocator");
        return;
    }
    snprintf(text, sizeof text, "%s a\n%s b\n", hex_of("key-of-a"), hex_of("key-of-b"));
    write_keys(text);
    for (long n = 0;; n++) {
        alloc_fail_at(n);
        int rc = gw_tenants_open(&t, path, NULL, &e);
        if (!alloc_fail_end()) {
            ck_assert_int_eq(rc, 0);
            gw_tenants_close(t);
            ck_assert_int_gt(n, 3);
            break;
        }
        if (rc) /* the C library may do without an allocation of its own */
            ck_assert_ptr_null(t);
        else
            gw_tenants_close(t);
    }
}
END_TEST

START_TEST(state_key)
{
    char state[128], file[160], key[GW_STATE_KEY_BYTES], again[GW_STATE_KEY_BYTES];
    struct err e;
    struct stat st;
    bool created;
    snprintf(state, sizeof state, "%s/state", dir);
    snprintf(file, sizeof file, "%s/api-key", state);
    ck_assert_msg(!gw_state_key(state, key, &created, &e), "%s", e.msg);
    ck_assert(created);
    ck_assert_int_eq(strncmp(key, "sk-sluice-", 10), 0);
    ck_assert_uint_eq(strlen(key), 58);
    ck_assert_int_eq(stat(file, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(gw_state_key(state, again, &created, &e), 0);
    ck_assert(!created);
    ck_assert_str_eq(key, again);
    chmod(file, 0644);
    ck_assert_int_eq(gw_state_key(state, again, &created, &e), ERR_INVALID);
    chmod(file, 0600);
    ck_assert_int_eq(truncate(file, 3), 0);
    ck_assert_int_eq(gw_state_key(state, again, &created, &e), ERR_INVALID);
    ck_assert_int_eq(gw_state_key("/proc/nowhere/x", again, &created, &e), ERR_IO);
}
END_TEST

/* New keys and limits in place: who runs keeps its place, an old key is out, a bad file changes nothing. */
START_TEST(reload)
{
    char text[512];
    struct err e;
    uint64_t retry;
    gw_tenants *t;
    snprintf(text, sizeof text, "%s acme concurrent=1 admin=1\n%s gone\n", hex_of("first-key"), hex_of("second-key"));
    write_keys(text);
    ck_assert_msg(!gw_tenants_open(&t, path, NULL, &e), "%s", e.msg);
    gw_tenant *a = gw_tenants_find(t, "first-key", 9), *gone = gw_tenants_find(t, "second-key", 10);
    ck_assert(gw_tenant_limits_of(a).admin && !gw_tenant_limits_of(gone).admin);
    ck_assert_int_eq(gw_tenant_enter(a, 1, &retry, &e), 0);
    ck_assert_int_eq(gw_tenant_enter(gone, 1, &retry, &e), 0);
    write_keys("this is no key\n");
    ck_assert_int_eq(gw_tenants_reload(t, path, NULL, &e), ERR_FORMAT);
    ck_assert_ptr_eq(gw_tenants_find(t, "first-key", 9), a);
    snprintf(text, sizeof text, "%s new\n%s acme concurrent=2 connections=1 queue=1\n", hex_of("third-key"), hex_of("fourth-key"));
    write_keys(text);
    ck_assert_msg(!gw_tenants_reload(t, path, NULL, &e), "%s", e.msg);
    ck_assert_ptr_null(gw_tenants_find(t, "first-key", 9));
    ck_assert_ptr_null(gw_tenants_find(t, "second-key", 10));
    ck_assert_ptr_eq(gw_tenants_find(t, "fourth-key", 10), a);
    ck_assert_str_eq(gw_tenant_name(gw_tenants_find(t, "third-key", 9)), "new");
    ck_assert_uint_eq(gw_tenants_count(t), 2);
    ck_assert_int_eq(gw_tenant_enter(a, 1, &retry, &e), 0); /* one more now */
    ck_assert_int_eq(gw_tenant_enter(a, 1, &retry, &e), ERR_AGAIN);
    ck_assert(!gw_tenant_limits_of(a).admin);
    gw_tenant_leave(gone, 0, 1); /* a tenant without keys still ends what it runs */
    ck_assert_int_eq(gw_tenant_connect(a, &e), 0);
    ck_assert_int_eq(gw_tenant_connect(a, &e), ERR_AGAIN);
    gw_tenant_disconnect(a);
    ck_assert_int_eq(gw_tenant_connect(a, &e), 0);
    ck_assert_int_eq(gw_tenant_wait(a, 100, &e), 0); /* its own bound, not the share */
    ck_assert_int_eq(gw_tenant_wait(a, 100, &e), ERR_AGAIN);
    gw_tenant_wait_end(a);
    ck_assert_int_eq(gw_tenant_wait(a, 100, &e), 0);
    gw_tenants_close(t);
}
END_TEST

START_TEST(rates)
{
    char text[256];
    struct err e;
    struct gw_rates r;
    uint64_t retry, now = 1000 * NS_PER_S;
    gw_tenants *t;
    snprintf(text, sizeof text, "%s acme requests_per_min=60 tokens_per_min=6000\n%s free\n", hex_of("first-key"), hex_of("other-key"));
    write_keys(text);
    ck_assert_msg(!gw_tenants_open(&t, path, NULL, &e), "%s", e.msg);
    gw_tenant *a = gw_tenants_find(t, "first-key", 9);
    gw_tenant_rates(a, now, &r);
    ck_assert_uint_eq(r.requests.limit, 60);
    ck_assert_uint_eq(r.requests.left, 60);
    ck_assert_uint_eq(r.requests.reset_ms, 0);
    ck_assert_int_eq(gw_tenant_enter(a, now, &retry, &e), 0);
    ck_assert_int_eq(gw_tenant_charge(a, 1500, now, &retry, &e), 0);
    gw_tenant_rates(a, now, &r);
    ck_assert_uint_eq(r.requests.left, 59);
    ck_assert_uint_eq(r.requests.reset_ms, 1000);
    ck_assert_uint_eq(r.tokens.left, 4500);
    ck_assert_uint_eq(r.tokens.reset_ms, 15000);
    gw_tenant_leave(a, 9000, now); /* more than there was: below zero */
    gw_tenant_rates(a, now, &r);
    ck_assert_uint_eq(r.tokens.left, 0);
    ck_assert_uint_eq(r.tokens.reset_ms, 105000);
    gw_tenant_rates(gw_tenants_find(t, "other-key", 9), now, &r);
    ck_assert_uint_eq(r.requests.limit + r.tokens.limit, 0);
    ck_assert_int_eq(gw_tenant_wait(a, 2, &e), 0);
    ck_assert_int_eq(gw_tenant_wait(a, 2, &e), 0);
    ck_assert_int_eq(gw_tenant_wait(a, 2, &e), ERR_AGAIN);
    gw_tenants_close(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("gateway/tenant");
    TCase *c = tcase_create("core");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, core);
    tcase_add_test(c, limits);
    tcase_add_test(c, reload);
    tcase_add_test(c, rates);
    tcase_add_loop_test(c, errors, 0, (int)(sizeof bad / sizeof *bad));
    tcase_add_test(c, errors_files);
    tcase_add_test(c, memory);
    tcase_add_test(c, state_key);
    suite_add_tcase(s, c);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
