/* Entries leave with their text; bytes that are no characters have names of their own; both of OpenAI's shapes. */
#include <math.h>

#include "base/json.h"
#include "gateway/logprobs.h"
#include "tests/gateway/fake_chat.h"
#include "tests/support/suite.h"

static struct gw_lp_token token(int32_t id, float lp, uint32_t n_top)
{
    struct gw_lp_token t;
    memset(&t, 0, sizeof t);
    t.id = id;
    t.lp = (struct eng_logprobs){.logprob = lp, .n_top = n_top, .top = {{'b', -0.25f}, {0xC3, -INFINITY}}};
    return t;
}

START_TEST(core)
{
    struct gw_lp l;
    struct buf b;
    struct gw_lp_token t[4] = {token('a', -1, 2), token(0xC3, -2, 2), token(0xA9, -3, 2), token('"', -4, 2)};
    gw_lp_init(&l, 1u << 20);
    buf_init(&b, 1u << 20);
    ck_assert(gw_lp_add(&l, NULL, t, 3) && gw_lp_add(&l, NULL, t + 3, 1));
    ck_assert_uint_eq(gw_lp_ready(&l, 0, false), 0); /* nothing went out */
    ck_assert_uint_eq(gw_lp_ready(&l, 1, false), 1);
    ck_assert_uint_eq(gw_lp_ready(&l, 3, false), 3); /* a, and both halves of the letter */
    ck_assert_uint_eq(gw_lp_ready(&l, 3, true), 4);
    gw_lp_put_chat(&b, &l, NULL, 1);
    ck_assert_str_eq(b.data, "{\"content\":[{\"token\":\"a\",\"logprob\":-1,\"bytes\":[97],\"top_logprobs\":[{\"token\":\"b\",\"logprob\":-0.25,\"bytes\":[98]},"
                             "{\"token\":\"\xEF\xBF\xBD\",\"logprob\":-9999,\"bytes\":[195]}]}],\"refusal\":null}");
    buf_reset(&b);
    gw_lp_put_completion(&b, &l, NULL, 2);
    ck_assert_str_eq(b.data, "{\"tokens\":[\"a\",\"bytes:\\\\xc3\"],\"token_logprobs\":[-1,-2],\"top_logprobs\":[{\"b\":-0.25,\"bytes:\\\\xc3\":-9999,\"a\":-1},"
                             "{\"b\":-0.25,\"bytes:\\\\xc3\":-9999}],\"text_offset\":[0,1]}");
    gw_lp_drop(&l, 3);
    ck_assert_uint_eq(gw_lp_ready(&l, 3, false), 0);
    ck_assert_uint_eq(gw_lp_ready(&l, 4, false), 1);
    buf_reset(&b);
    gw_lp_put_completion(&b, &l, NULL, 1);
    ck_assert_ptr_nonnull(strstr(b.data, "\"tokens\":[\"\\\"\"]"));
    ck_assert_ptr_nonnull(strstr(b.data, "\"text_offset\":[2]")); /* in characters */
    buf_reset(&b);
    gw_lp_put_chat(&b, &l, NULL, 0);
    ck_assert_str_eq(b.data, "{\"content\":[],\"refusal\":null}");
    gw_lp_free(&l);
    gw_lp_init(&l, 100); /* less than one entry: said, not lost */
    ck_assert(!gw_lp_add(&l, NULL, t, 1));
    gw_lp_free(&l);
    buf_free(&b);
}
END_TEST

SUITE("gateway", "logprobs", core)
