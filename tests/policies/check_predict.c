/* policies/predict: steps by hand, and that more memory is never slower. */
#include <math.h>

#include "policies/predict.h"
#include "tests/support/suite.h"

START_TEST(core)
{
    struct pol_tiers t = {.trunk_bytes = 1000, .memory_s = 100, .drive_s = 10};
    struct pol_step s = pol_predict(&t, 1);
    ck_assert(!s.drive && fabs(s.roof_s - 10) < 1e-9 && fabs(s.expected_s - 10) < 1e-9 && s.drive_bytes == 0 && s.hits == 1);
    t.streamed_bytes = 500;
    s = pol_predict(&t, 8); /* a dense step costs the same whoever shares it */
    ck_assert(s.drive && fabs(s.roof_s - 50) < 1e-9 && fabs(s.expected_s - 50) < 1e-9);
    t = (struct pol_tiers){.trunk_bytes = 1000, .layers = 2, .experts = 8, .k = 2, .expert_bytes = 50, .resident = 0.5, .memory_s = 100, .drive_s = 10};
    s = pol_predict(&t, 1); /* 4 experts of 50 bytes, half of them missing */
    ck_assert(fabs(s.memory_bytes - 1200) < 1e-9 && fabs(s.drive_bytes - 100) < 1e-9 && fabs(s.hits - 0.5) < 1e-9);
    ck_assert(!s.drive && fabs(s.roof_s - 12) < 1e-9 && fabs(s.expected_s - 20) < 1e-9);
    s = pol_predict(&t, 2); /* a second token chooses a quarter of what the first left: 3.5 a layer */
    ck_assert(fabs(s.memory_bytes - 1350) < 1e-9);
    t.resident = 1;
    s = pol_predict(&t, 1);
    ck_assert(s.drive_bytes == 0 && fabs(s.expected_s - 12) < 1e-9);
}
END_TEST

START_TEST(limits)
{
    uint64_t x = 3;
    for (int round = 0; round < 2000; round++) {
        uint32_t r[6];
        for (int i = 0; i < 6; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            r[i] = (uint32_t)(x >> 40);
        }
        struct pol_tiers t = {.trunk_bytes = r[0], .streamed_bytes = r[1] % (r[0] + 1), .layers = r[2] % 90, .experts = 1 + r[3] % 900, .expert_bytes = r[4] % 100000,
                              .memory_s = 1 + r[5] % 1000, .drive_s = 1 + r[1] % 100};
        t.k = 1 + r[5] % t.experts;
        double last = INFINITY, roof = INFINITY;
        for (int i = 0; i <= 20; i++) {
            t.resident = i / 20.0;
            struct pol_step s = pol_predict(&t, 1 + r[2] % 16);
            ck_assert(s.expected_s <= last && s.roof_s <= roof && s.roof_s <= s.expected_s * (1 + 1e-12));
            last = s.expected_s;
            roof = s.roof_s;
        }
        t.streamed_bytes /= 2;
        struct pol_step s = pol_predict(&t, 1 + r[2] % 16);
        ck_assert(s.expected_s <= last && s.roof_s <= roof);
    }
    ck_assert(pol_predict(&(struct pol_tiers){0}, 1).roof_s == 0);
}
END_TEST

SUITE("policies", "predict", core, limits)
