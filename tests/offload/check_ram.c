/* offload/ram: the smallest limit rules, found along the path that /proc/self/cgroup names; on a made-up root. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "offload/ram.h"

static char root[] = "/tmp/sluice-ram-XXXXXX";

static void put(const char *path, const char *text)
{
    char p[512], *s;
    snprintf(p, sizeof p, "%s%s", root, path);
    for (s = p + strlen(root) + 1; (s = strchr(s, '/')); *s++ = '/') {
        *s = 0;
        mkdir(p, 0755);
    }
    FILE *f = fopen(p, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

static void expect(uint64_t bytes, const char *rule)
{
    struct off_ram r = off_ram_limit(root);
    ck_assert_msg(r.bytes == bytes && !strcmp(r.rule, rule), "%llu %s", (unsigned long long)r.bytes, r.rule);
}

START_TEST(core)
{
    ck_assert_ptr_nonnull(mkdtemp(root));
    put("/proc/meminfo", "MemFree:  1 kB\nMemTotal:       8000 kB\n");
    expect(8000 * 1024, "physical memory");
    put("/proc/self/cgroup", "12:cpu:/x\n5:memory:/a/b\n");
    put("/sys/fs/cgroup/memory/a/b/memory.stat", "cache 1\nhierarchical_memory_limit 4096000\n");
    expect(4096000, "cgroup v1");
    put("/sys/fs/cgroup/memory/a/b/memory.stat", "hierarchical_memory_limit 9223372036854771712\n");
    expect(8000 * 1024, "physical memory");
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/memory.max", "3000000\n");
    put("/sys/fs/cgroup/memory.max", "5000000\n");
    expect(3000000, "cgroup v2");
    put("/sys/fs/cgroup/a/b/memory.max", "2000000\n");
    expect(2000000, "cgroup v2");
    char cmd[256];
    snprintf(cmd, sizeof cmd, "rm -rf %s", root);
    ck_assert_int_eq(system(cmd), 0);
}
END_TEST

START_TEST(limits)
{
    struct off_ram here = off_ram_limit("");
    ck_assert(here.bytes > 0 && here.bytes < UINT64_MAX);
    ck_assert_uint_eq(off_ram_default((struct off_ram){1ull << 20, ""}), 0);
    ck_assert_uint_eq(off_ram_default((struct off_ram){100ull << 30, ""}), 98ull << 30);
    ck_assert_uint_eq(off_ram_default((struct off_ram){1ull << 30, ""}), (1024ull - 128) << 20);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("ram");
    TCase *t = tcase_create("core");
    tcase_add_test(t, core);
    tcase_add_test(t, limits);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int bad = srunner_ntests_failed(r);
    srunner_free(r);
    return bad != 0;
}
