/* SHA-256 known answers (FIPS 180-4 examples), field framing, the table hash, hex. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/hash.h"
#include "tests/support/alloc_fail.h"
#include "tests/support/suite.h"

static const char *hex_of(const void *p, size_t n)
{
    static char out[2 * HASH_BYTES + 1];
    uint8_t d[HASH_BYTES];
    hash_sha256(p, n, d);
    hash_hex(d, sizeof d, out);
    return out;
}

START_TEST(core)
{
    ck_assert_str_eq(hex_of("", 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    ck_assert_str_eq(hex_of(NULL, 0), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    ck_assert_str_eq(hex_of("abc", 3), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    uint8_t a[HASH_BYTES], b[HASH_BYTES];
    hash_ctx *h = hash_new();
    hash_raw(h, "a", 1);
    hash_raw(h, "bc", 2);
    hash_end(h, a);
    hash_sha256("abc", 3, b);
    ck_assert(hash_equal(a, b, HASH_BYTES));
    h = hash_new();
    for (int i = 0; i < 3; i++) { /* one after the other */
        hash_raw(h, "abc", 3);
        memset(a, 0, sizeof a);
        hash_again(h, a);
        ck_assert(hash_equal(a, b, HASH_BYTES));
    }
    hash_end(h, b);
    memcpy(b, a, sizeof b);
    b[31] ^= 1;
    ck_assert(!hash_equal(a, b, HASH_BYTES) && hash_equal(a, b, 31) && hash_equal(NULL, NULL, 0));
}
END_TEST

static void fields(uint8_t out[HASH_BYTES], const char *t1, const char *v1, const char *t2, const char *v2)
{
    hash_ctx *h = hash_new();
    hash_field(h, t1, v1, strlen(v1));
    if (t2)
        hash_field(h, t2, v2, strlen(v2));
    hash_end(h, out);
}

START_TEST(framing)
{
    uint8_t d[5][HASH_BYTES], e[HASH_BYTES];
    fields(d[0], "a", "bc", "d", "e");
    fields(d[1], "a", "b", "cd", "e");
    fields(d[2], "a", "bcde", NULL, NULL);
    fields(d[3], "ab", "c", "d", "e");
    fields(d[4], "a", "bc", "d", "");
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < i; k++)
            ck_assert(!hash_equal(d[i], d[k], HASH_BYTES));
    hash_sha256("x\0\2\0\0\0\0\0\0\0hi", 12, e); /* the framing itself: tag, NUL, u64 LE length, bytes */
    fields(d[0], "x", "hi", NULL, NULL);
    ck_assert(hash_equal(d[0], e, HASH_BYTES));
}
END_TEST

START_TEST(table_hash)
{
    char text[64];
    memset(text, 'a', sizeof text);
    for (size_t n = 0; n <= sizeof text; n++) {
        ck_assert(hash_bytes(text, n, 1) == hash_bytes(text, n, 1) && hash_bytes(text, n, 1) != hash_bytes(text, n, 2));
        for (size_t k = 0; k < n; k++) { /* every byte counts, and so does the length */
            uint64_t h = hash_bytes(text, n, 7);
            text[k] ^= 1;
            ck_assert(hash_bytes(text, n, 7) != h);
            text[k] ^= 1;
            ck_assert(hash_bytes(text, k, 7) != h);
        }
    }
    unsigned bucket[256] = {0};
    for (uint32_t i = 0; i < 25600; i++)
        bucket[hash_bytes(&i, sizeof i, 3) & 255]++;
    for (int i = 0; i < 256; i++) /* 100 expected, standard deviation 10 */
        ck_assert_msg(bucket[i] > 40 && bucket[i] < 170, "bucket %d holds %u", i, bucket[i]);
}
END_TEST

START_TEST(limits)
{
    uint8_t d[4], z[32] = {0}, r[32] = {0};
    char hex[9];
    ck_assert(hash_unhex("00fFA19e", 4, d));
    hash_hex(d, 4, hex);
    ck_assert_str_eq(hex, "00ffa19e");
    ck_assert(!hash_unhex("00ffa1", 4, d) && !hash_unhex("00ffa19g", 4, d) && !hash_unhex("00ffa19e0", 4, d) && !hash_unhex("00 fa19e", 4, d));
    ck_assert(hash_random(r, sizeof r) && memcmp(r, z, sizeof r) != 0 && hash_random(NULL, 0));
}
END_TEST

/* Small draws come from a block of the thread's: no two are equal, and a forked child does not repeat its parent's. */
START_TEST(draws)
{
    static uint64_t v[512];
    int fds[2];
    uint64_t theirs = 0, ours = 0;
    for (int i = 0; i < 512; i++) {
        ck_assert(hash_random(&v[i], 8));
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(v[i], v[k]);
    }
    ck_assert(hash_random(&ours, 3) && ours && pipe(fds) == 0); /* the block is begun */
    pid_t pid = fork();
    if (!pid)
        _exit(hash_random(&theirs, 8) && write(fds[1], &theirs, 8) == 8 ? 0 : 1);
    ck_assert(read(fds[0], &theirs, 8) == 8 && hash_random(&ours, 8));
    ck_assert_uint_ne(ours, theirs);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    close(fds[0]);
    close(fds[1]);
}
END_TEST

START_TEST(errors)
{
    if (!alloc_fail_works()) {
        puts("SKIP hash: allocations are not made to fail under a sanitizer");
        return;
    }
    alloc_fail_at(0);
    ck_assert_ptr_null(hash_new());
    ck_assert(alloc_fail_end());
    hash_end(NULL, NULL);
}
END_TEST

SUITE("base", "hash", core, framing, table_hash, limits, draws, errors)
