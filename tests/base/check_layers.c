/* The map of the code: includes go down only, policies include base alone, third-party headers stay in one layer. */
#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>

static const char *const layers[] = {"base", "policies", "kernels", "offload", "engine", "gateway", "cli"};
enum { N = sizeof layers / sizeof *layers };
/* may[a][b]: a may include b */
static const int may[N][N] = {
    {1, 0, 0, 0, 0, 0, 0}, /* base */
    {1, 1, 0, 0, 0, 0, 0}, /* policies */
    {1, 1, 1, 0, 0, 0, 0}, /* kernels */
    {1, 1, 1, 1, 0, 0, 0}, /* offload */
    {1, 1, 1, 1, 1, 0, 0}, /* engine */
    {1, 1, 1, 1, 1, 1, 0}, /* gateway */
    {1, 1, 1, 1, 1, 1, 1}, /* cli */
};
/* A system header that begins so may appear in this layer alone. */
static const struct { const char *prefix, *layer; } foreign[] = {
    {"event2/", "gateway"}, {"openssl/ssl.h", "gateway"}, {"openssl/x509", "gateway"},
    {"immintrin.h", "kernels"}, {"vulkan/", "kernels"}, {"pcre2.h", "engine"}, {"utf8proc.h", "engine"},
};

static unsigned files, bad;

static void check_line(const char *layer, const char *path, const char *line)
{
    char what[256];
    int self = -1, other = -1;
    for (int i = 0; i < N; i++)
        if (!strcmp(layers[i], layer))
            self = i;
    if (sscanf(line, " # include \"%255[^\"]", what) == 1) {
        const char *slash = strchr(what, '/');
        for (int i = 0; i < N && slash; i++)
            if (strlen(layers[i]) == (size_t)(slash - what) && !memcmp(layers[i], what, (size_t)(slash - what)))
                other = i;
        if (other < 0 || !may[self][other]) {
            printf("%s: includes \"%s\"\n", path, what);
            bad++;
        }
    } else if (sscanf(line, " # include <%255[^>]", what) == 1) {
        for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
            if (!strncmp(what, foreign[i].prefix, strlen(foreign[i].prefix)) && strcmp(layer, foreign[i].layer)) {
                printf("%s: includes <%s>, which belongs to %s\n", path, what, foreign[i].layer);
                bad++;
            }
    }
}

static void check_file(const char *layer, const char *path)
{
    char line[1024];
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    files++;
    while (fgets(line, sizeof line, f))
        if (strstr(line, "include"))
            check_line(layer, path, line);
    fclose(f);
}

START_TEST(core)
{
    for (int i = 0; i < N; i++) {
        DIR *d = opendir(layers[i]);
        ck_assert_msg(d != NULL, "%s: run from the repository's root", layers[i]);
        for (struct dirent *ent; (ent = readdir(d));) {
            char path[512];
            const char *dot = strrchr(ent->d_name, '.');
            if (!dot || (strcmp(dot, ".c") && strcmp(dot, ".h") && strcmp(dot, ".inc")))
                continue;
            snprintf(path, sizeof path, "%s/%s", layers[i], ent->d_name);
            check_file(layers[i], path);
        }
        closedir(d);
    }
    ck_assert_uint_gt(files, 30);
    ck_assert_msg(bad == 0, "%u includes point the wrong way", bad);
}
END_TEST

/* The checker itself sees what it must see. */
START_TEST(sees)
{
    bad = 0;
    check_line("kernels", "x", "#include \"engine/plan.h\"\n");
    check_line("policies", "x", "#include \"kernels/op.h\"\n");
    check_line("engine", "x", "#include <event2/event.h>\n");
    check_line("engine", "x", "#include \"plan.h\"\n");
    ck_assert_uint_eq(bad, 4);
    check_line("engine", "x", "#include \"kernels/op.h\"\n");
    ck_assert_uint_eq(bad, 4);
    bad = 0;
}
END_TEST

int main(void)
{
    Suite *s = suite_create("layers");
    TCase *t = tcase_create("core");
    tcase_add_test(t, core);
    tcase_add_test(t, sees);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int n = srunner_ntests_failed(r);
    srunner_free(r);
    return n != 0;
}
