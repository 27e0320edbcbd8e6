/* Growth up to the maximum and no further, sticky failure, little-endian fields there and back, a reader that stays bad. */
#include <math.h>
#include <string.h>

#include "base/buf.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

START_TEST(core)
{
    struct buf b;
    buf_init(&b, 1000);
    ck_assert(buf_str(&b, "ab") && buf_char(&b, 'c') && buf_printf(&b, "%d-%s", 42, "x") && buf_add(&b, NULL, 0));
    ck_assert_str_eq(b.data, "abc42-x");
    for (int i = 0; i < 40; i++) /* in the room there is, and past it */
        ck_assert(buf_printf(&b, "%0*d", i, 7) && b.len == strlen(b.data));
    buf_reset(&b);
    ck_assert(buf_uint(&b, 0) && buf_char(&b, ' ') && buf_uint(&b, UINT64_MAX) && buf_char(&b, ' ') && buf_milli(&b, 7) && buf_char(&b, ' ') &&
              buf_milli(&b, 12345060));
    ck_assert_str_eq(b.data, "0 18446744073709551615 0.007 12345.060");
    buf_reset(&b);
    ck_assert(buf_str(&b, "abc42-x"));
    buf_consume(&b, 3);
    ck_assert_str_eq(b.data, "42-x");
    buf_consume(&b, 100);
    ck_assert(b.len == 0 && b.data[0] == 0);
    buf_reset(&b);
    ck_assert(buf_u8(&b, 0xAB) && buf_u16(&b, 0x1234) && buf_u32(&b, 0xDEADBEEF) && buf_u64(&b, 0x0102030405060708ull) && buf_f32(&b, -1.5f) &&
              buf_blob(&b, "hey", 3) && buf_blob(&b, NULL, 0));
    ck_assert(!memcmp(b.data, "\xAB\x34\x12\xEF\xBE\xAD\xDE\x08\x07", 9) && b.len == 1 + 2 + 4 + 8 + 4 + 7 + 4);
    struct rd r = rd_of(b.data, b.len);
    size_t n;
    ck_assert(rd_u8(&r) == 0xAB && rd_u16(&r) == 0x1234 && rd_u32(&r) == 0xDEADBEEF && rd_u64(&r) == 0x0102030405060708ull && rd_f32(&r) == -1.5f);
    ck_assert(!memcmp(rd_blob(&r, &n), "hey", 3) && n == 3 && rd_blob(&r, &n) && n == 0 && rd_left(&r) == 0 && !r.bad);
    ck_assert(rd_u8(&r) == 0 && r.bad);
    buf_free(&b);
}
END_TEST

START_TEST(limits)
{
    struct buf b;
    size_t n;
    buf_init(&b, 10);
    ck_assert(buf_str(&b, "0123456789") && !buf_char(&b, 'x') && b.failed && b.len == 10);
    buf_reset(&b);
    ck_assert(buf_str(&b, "01234567") && !buf_blob(&b, "ab", 2) && b.len == 8 && !buf_char(&b, 'x')); /* nothing of a blob that does not fit; failure stays */
    buf_reset(&b);
    ck_assert(!buf_printf(&b, "%s", "more than ten") && b.len == 0 && b.failed);
    buf_free(&b);
    buf_init(&b, SIZE_MAX);
    ck_assert(buf_char(&b, 'x') && !buf_reserve(&b, SIZE_MAX - 1) && b.failed);
    buf_free(&b);
    struct rd r = rd_of("\xFF\xFF\xFF\xFFxy", 6);
    ck_assert(!rd_blob(&r, &n) && n == 0 && r.bad && rd_u8(&r) == 0 && !rd_bytes(&r, 0));
    r = rd_of(NULL, 0);
    ck_assert(rd_bytes(&r, 0) && !r.bad && !rd_u32(&r) && r.bad);
}
END_TEST

START_TEST(errors)
{
    struct buf b;
    if (!alloc_fail_works()) {
        puts("SKIP buf: allocations are not made to fail under a sanitizer");
        return;
    }
    buf_init(&b, 1000);
    alloc_fail_at(0);
    ck_assert(!buf_str(&b, "x") && b.failed && b.len == 0 && alloc_fail_end());
    buf_reset(&b);
    ck_assert(buf_str(&b, "ok"));
    buf_free(&b);
}
END_TEST

SUITE("base", "buf", core, limits, errors)
