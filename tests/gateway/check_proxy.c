/* Networks, X-Forwarded-For and PROXY v2 headers by table; then both on a server. */
#include <arpa/inet.h>
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "tests/support/gw_rig.h"

static struct gw_nets nets(const char *const *list)
{
    struct gw_nets s = {0};
    struct err e;
    for (; *list; list++)
        ck_assert_msg(!gw_nets_add(&s, *list, &e), "%s", e.msg);
    return s;
}

static bool has(const struct gw_nets *s, const char *ip)
{
    union gw_addr a = {0};
    if (inet_pton(AF_INET, ip, &a.in.sin_addr) == 1)
        a.in.sin_family = AF_INET;
    else {
        ck_assert_int_eq(inet_pton(AF_INET6, ip, &a.in6.sin6_addr), 1);
        a.in6.sin6_family = AF_INET6;
    }
    return gw_nets_has(s, &a.sa);
}

START_TEST(networks)
{
    static const char *const list[] = {"10.0.0.0/8", "192.0.2.7", "192.168.4.0/22", "2001:db8::/33", "::1", "0.0.0.0/32", NULL};
    static const struct { const char *ip; bool in; } cases[] = {
        {"10.255.0.1", true}, {"11.0.0.0", false}, {"9.255.255.255", false}, {"192.0.2.7", true}, {"192.0.2.6", false},
        {"192.168.7.255", true}, {"192.168.8.0", false}, {"2001:db8::1", true}, {"2001:db8:7fff::", true}, {"2001:db8:8000::", false},
        {"::1", true}, {"::2", false}, {"::ffff:10.1.1.1", true}, {"::ffff:11.1.1.1", false}, {"0.0.0.0", true}, {"::", false}};
    static const char *const bad[] = {"", "/8", "10.0.0.0/33", "10.0.0.1/8", "10.0.0.0/", "10.0.0.0/8x", "10.0.0.0/-1", "10.0.0.0/ 8", "10.0.0", "host",
                                      "::/129", "2001:db8::1/64", "1.2.3.4/8/8", "fe80::1%lo", "10.0.0.0/99999999999999999999"};
    struct gw_nets s = nets(list), all = {0};
    struct err e;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(has(&s, cases[i].ip) == cases[i].in, "%s", cases[i].ip);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ck_assert_msg(gw_nets_add(&s, bad[i], &e) == ERR_INVALID, "'%s' was taken", bad[i]);
    ck_assert_uint_eq(s.n, 6);
    ck_assert_int_eq(gw_nets_add(&all, "0.0.0.0/0", &e), 0);
    ck_assert(has(&all, "203.0.113.9") && !has(&all, "2001:db8::1")); /* IPv4's everything is not IPv6's */
    while (all.n < GW_NETS_MAX)
        ck_assert_int_eq(gw_nets_add(&all, "192.0.2.1", &e), 0);
    ck_assert_int_eq(gw_nets_add(&all, "192.0.2.1", &e), ERR_LIMIT);
}
END_TEST

START_TEST(forwarded)
{
    static const char *const list[] = {"10.0.0.0/8", "::1", NULL};
    static const struct { const char *in, *out; } cases[] = {
        {"203.0.113.9", "203.0.113.9"}, {"203.0.113.9, 10.1.1.1", "203.0.113.9"}, {"1.2.3.4, 203.0.113.9, 10.1.1.1,10.2.2.2", "203.0.113.9"},
        {"10.1.1.1", "10.1.1.1"}, {"10.3.3.3, 10.1.1.1", "10.3.3.3"}, {" 203.0.113.9:4711 ,\t10.1.1.1:80", "203.0.113.9"},
        {"[2001:db8::1]:4711, 10.1.1.1", "2001:db8::1"}, {"2001:DB8:0:0::1", "2001:db8::1"}, {"[2001:db8::1]", "2001:db8::1"}, {"evil, 203.0.113.9", "203.0.113.9"},
        {"203.0.113.9, ::1", "203.0.113.9"}, {"::ffff:203.0.113.9", "203.0.113.9"},
        {"203.0.113.9, evil", NULL}, {"203.0.113.9, 10.1.1.1, ", NULL}, {"", NULL}, {",", NULL}, {"unknown", NULL}, {"203.0.113.9, unknown, 10.1.1.1", NULL},
        {"[2001:db8::1]x", NULL}, {"[2001:db8::1", NULL}, {"203.0.113", NULL}, {"203.0.113.9;10.1.1.1", NULL},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", NULL}};
    struct gw_nets s = nets(list);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char out[GW_ADDR_TEXT] = "untouched";
        bool ok = gw_forwarded_for(cases[i].in, &s, out);
        ck_assert_msg(ok == (cases[i].out != NULL), "'%s': %d %s", cases[i].in, ok, out);
        if (ok)
            ck_assert_str_eq(out, cases[i].out);
    }
}
END_TEST

/* ---- PROXY v2 ---------------------------------------------------------------------------------------------------- */
static size_t header(uint8_t *p, uint8_t command, uint8_t family, size_t len, const char *src, uint16_t port)
{
    static const uint8_t sig[] = "\r\n\r\n\0\r\nQUIT\n";
    memset(p, 0, 16 + len);
    memcpy(p, sig, 12);
    p[12] = command;
    p[13] = family;
    p[14] = (uint8_t)(len >> 8);
    p[15] = (uint8_t)len;
    size_t at = family == 0x21 ? 48 : 24;
    if (src)
        ck_assert_int_eq(inet_pton(family == 0x21 ? AF_INET6 : AF_INET, src, p + 16), 1);
    if (len >= 12 && at + 2 <= 16 + len) {
        p[at] = (uint8_t)(port >> 8);
        p[at + 1] = (uint8_t)port;
    }
    return 16 + len;
}

START_TEST(proxy2)
{
    static const struct { uint8_t command, family; size_t len; int cut; int want; } cases[] = {
        {0x21, 0x11, 12, 0, 0}, {0x21, 0x21, 36, 0, 0}, {0x21, 0x11, 200, 0, 0} /* TLVs */, {0x20, 0x00, 0, 0, 0}, {0x20, 0x11, 12, 0, 0},
        {0x21, 0x11, 11, 0, ERR_FORMAT}, {0x21, 0x21, 35, 0, ERR_FORMAT}, {0x21, 0x11, 12, 1, ERR_FORMAT}, {0x21, 0x11, 12, -1, ERR_FORMAT},
        {0x11, 0x11, 12, 0, ERR_FORMAT}, {0x22, 0x11, 12, 0, ERR_FORMAT}, {0x31, 0x11, 12, 0, ERR_FORMAT}, {0x21, 0x12, 12, 0, ERR_UNSUPPORTED},
        {0x21, 0x31, 216, 0, ERR_UNSUPPORTED}, {0x21, 0x00, 0, 0, ERR_UNSUPPORTED}, {0x21, 0xFF, 12, 0, ERR_UNSUPPORTED}};
    uint8_t p[4096];
    union gw_addr a;
    struct err e;
    bool local;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool six = cases[i].family == 0x21;
        size_t n = header(p, cases[i].command, cases[i].family, cases[i].len, cases[i].len >= 36 || !six ? (six ? "2001:db8::7" : cases[i].len >= 4 ? "203.0.113.7" : NULL) : NULL, 4711);
        ck_assert_uint_eq(gw_proxy2_length(p), n);
        int rc = gw_proxy2_parse(p, n - (size_t)cases[i].cut, &a, &local, &e);
        ck_assert_msg(rc == cases[i].want, "case %zu: %d %s", i, rc, rc ? e.msg : "");
        if (rc)
            continue;
        ck_assert(local == (cases[i].command == 0x20));
        if (!local) {
            char text[GW_ADDR_TEXT];
            inet_ntop(a.sa.sa_family, six ? (void *)&a.in6.sin6_addr : (void *)&a.in.sin_addr, text, sizeof text);
            ck_assert_str_eq(text, six ? "2001:db8::7" : "203.0.113.7");
            ck_assert_uint_eq(ntohs(six ? a.in6.sin6_port : a.in.sin_port), 4711);
        }
    }
    header(p, 0x21, 0x11, 12, NULL, 0);
    for (size_t i = 0; i < 12; i++) { /* each byte of the signature counts */
        p[i] ^= 1;
        ck_assert_uint_eq(gw_proxy2_length(p), 0);
        p[i] ^= 1;
    }
    header(p, 0x21, 0x11, GW_PROXY2_MAX - 16, NULL, 0);
    ck_assert_uint_eq(gw_proxy2_length(p), GW_PROXY2_MAX);
    header(p, 0x21, 0x11, GW_PROXY2_MAX - 15, NULL, 0);
    ck_assert_uint_eq(gw_proxy2_length(p), 0);
}
END_TEST

/* ---- on a server --------------------------------------------------------------------------------------------------- */
static struct rig rig;
static struct client cl;

static void open_with(bool protocol, const char *trusted, unsigned each, bool tls)
{
    struct gw_server_config cfg;
    struct err e;
    rig_config(&cfg);
    cfg.proxy_protocol = protocol;
    cfg.connections_address_max = each;
    ck_assert_int_eq(gw_nets_add(&cfg.trusted, trusted, &e), 0);
    rig_open(&rig, &cfg, tls);
}

static void ask(const char *headers, const char *want)
{
    char text[500];
    snprintf(text, sizeof text, "GET /client HTTP/1.1\r\nHost: localhost\r\n%s\r\n", headers);
    client_say(&cl, text);
    client_expect(&cl, "\r\n\r\n");
    client_expect(&cl, want);
}

START_TEST(header_of_a_proxy)
{
    open_with(false, _i ? "127.0.0.0/8" : "10.0.0.0/8", 0, false);
    client_open(&cl, &rig);
    ask("", "127.0.0.1 local\n");
    ask("X-Forwarded-For: 203.0.113.9\r\n", _i ? "203.0.113.9 far\n" : "127.0.0.1 far\n");
    ask("X-Forwarded-For: 1.1.1.1\r\nX-Forwarded-For: 203.0.113.9\r\n", _i ? "203.0.113.9 far\n" : "127.0.0.1 far\n");
    ask("X-Forwarded-For: rubbish\r\n", "127.0.0.1 far\n");
    ask("Via: 1.1 somebody\r\n", "127.0.0.1 far\n");
    ask("Origin: https://evil.example\r\n", "127.0.0.1 far\n");
    client_say(&cl, "GET /client HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    client_expect(&cl, "127.0.0.1 far\n");
    client_close(&cl);
    rig_close(&rig);
}
END_TEST

static void say_header(uint8_t command, uint8_t family, size_t len, const char *src, bool in_pieces)
{
    uint8_t p[4096];
    size_t n = header(p, command, family, len, src, 4711);
    struct client plain = {.fd = cl.fd};
    for (size_t i = 0; i < n; i += in_pieces ? 5 : n) {
        client_send(&plain, p + i, in_pieces ? (n - i < 5 ? n - i : 5) : n);
        if (in_pieces)
            clock_sleep_ns(NS_PER_MS);
    }
}

START_TEST(protocol_of_a_proxy)
{
    struct gw_counters c;
    open_with(true, "127.0.0.1", 2, _i > 1);
    for (int round = 0; round < 3; round++) {
        memset(&cl, 0, sizeof cl);
        cl.fd = client_connect(rig.port);
        if (round == 0)
            say_header(0x21, 0x11, 12, "203.0.113.9", _i % 2);
        else if (round == 1)
            say_header(0x21, 0x21, 300, "2001:db8::9", _i % 2);
        else
            say_header(0x20, 0x00, 0, NULL, _i % 2);
        if (_i > 1) {
            cl.ctx = client_ctx(&rig);
            cl.ssl = SSL_new(cl.ctx);
            SSL_set_fd(cl.ssl, cl.fd);
            SSL_set1_host(cl.ssl, "localhost");
            SSL_clear_mode(cl.ssl, SSL_MODE_AUTO_RETRY);
            ck_assert_int_eq(SSL_connect(cl.ssl), 1);
        }
        ask("", round == 0 ? "203.0.113.9 far\n" : round == 1 ? "2001:db8::9 far\n" : "127.0.0.1 local\n");
        client_close(&cl);
    }
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.proxy_errors, 0);
    rig_close(&rig);
}
END_TEST

START_TEST(protocol_refusals)
{
    struct gw_counters c;
    struct client two[2];
    open_with(true, "127.0.0.1", 2, false);
    cl = (struct client){.fd = client_connect(rig.port)};
    client_say(&cl, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); /* no header at all */
    client_expect_end(&cl);
    ck_assert_uint_eq(cl.len, 0);
    client_close(&cl);
    cl = (struct client){.fd = client_connect(rig.port)};
    say_header(0x21, 0x12, 12, "203.0.113.9", false); /* UDP */
    client_expect_end(&cl);
    client_close(&cl);
    for (int i = 0; i < 2; i++) { /* the bound is on the addresses behind the proxy, not on the proxy's */
        cl = two[i] = (struct client){.fd = client_connect(rig.port)};
        say_header(0x21, 0x11, 12, "203.0.113.9", false);
        ask("", "203.0.113.9 far\n");
        two[i] = cl;
    }
    cl = (struct client){.fd = client_connect(rig.port)};
    say_header(0x21, 0x11, 12, "203.0.113.9", false);
    client_expect_end(&cl);
    client_close(&cl);
    cl = (struct client){.fd = client_connect(rig.port)};
    say_header(0x21, 0x11, 12, "203.0.113.10", false);
    ask("", "203.0.113.10 far\n");
    client_close(&cl);
    client_close(&two[0]);
    client_close(&two[1]);
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.proxy_errors, 2);
    ck_assert_uint_eq(c.connections_refused_address, 1);
    rig_close(&rig);
    open_with(true, "10.0.0.0/8", 0, false); /* from nobody who is trusted */
    cl = (struct client){.fd = client_connect(rig.port)};
    client_expect_end(&cl);
    client_close(&cl);
    rig_counters(&rig, &c);
    ck_assert_uint_eq(c.proxy_errors, 1);
    rig_close(&rig);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("proxy");
    TCase *t = tcase_create("core");
    tcase_add_test(t, networks);
    tcase_add_test(t, forwarded);
    tcase_add_test(t, proxy2);
    tcase_add_loop_test(t, header_of_a_proxy, 0, 2);
    tcase_add_loop_test(t, protocol_of_a_proxy, 0, 4);
    tcase_add_test(t, protocol_refusals);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
