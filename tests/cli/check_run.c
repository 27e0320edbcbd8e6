/* The program as a shell calls it: prompts that cannot be read, results that cannot be written, streams that came closed. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/make_model.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_llama.h"

static char program[4096], *dir;

static void setup(void)
{
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 32);
    ck_assert(n > 0);
    program[n] = 0; /* BUILD/tests/cli/check_run */
    for (int i = 0; i < 3; i++)
        *strrchr(program, '/') = 0;
    strcat(program, "/sluice");
    dir = mm_tmpdir();
    char cmd[600];
    snprintf(cmd, sizeof cmd, "mkdir '%s/bad' && cp tests/data/models/llama-tied/*.* '%s/bad' && sed -i 's/\\(num_attention_heads\": \\)9/\\1true/' '%s/bad/config.json'",
             dir, dir, dir);
    ck_assert_int_eq(system(cmd), 0);
    tiny_llama_write(mm_path(dir, "tiny.gguf"), &(struct tiny_llama){.seed = 5});
}

/* `sluice ARGS` by sh in the folder of the model; its exit code. What it said on stderr is in *err, for the caller to free. */
static int sh(const char *args, char **err)
{
    char cmd[6000];
    size_t n;
    snprintf(cmd, sizeof cmd, "cd '%s' && ulimit -v %s && { timeout 60 '%s' %s; } 2>err", dir,
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
             "unlimited",
#else
             "4000000",
#endif
             program, args);
    int status = system(cmd);
    *err = mm_read(mm_path(dir, "err"), &n);
    ck_assert_msg(WIFEXITED(status), "%s: ended by signal: %s", args, *err);
    return WEXITSTATUS(status);
}

START_TEST(core)
{
    static const struct { const char *args; int code; const char *says; } l[] = {
        {"run tiny.gguf -p hi -n 3 >out && test -s out", 0, "prompt"},
        {"run tiny.gguf -n 3 -f . >out", 2, ".: Is a directory"},
        {"run tiny.gguf -n 3 -f none >out", 2, "none: No such file"},
        {"run tiny.gguf -n 3 -f /dev/zero >out", 3, "longer than"},
        {"run none.gguf -n 3 -f . >out", 2, "Is a directory"}, /* before the weights are opened */
        {"run tiny.gguf -p hi -n 3 >/dev/full", 3, "standard output: "},
        {"run tiny.gguf -p hi -n 3 --json >/dev/full", 3, "standard output: "},
        {"check tiny.gguf >/dev/full", 3, "standard output: "},
        {"run tiny.gguf -p hi -n 3 >&-", 3, "standard output: "},
        {"run tiny.gguf -p hi -n 3 <&- >out && test -s out", 0, "prompt"},
        {"tokenize tiny.gguf <&- >out", 3, "standard input"},
        {"tokenize tiny.gguf --decode <tiny.gguf >out", 2, "zero byte at"},
        {"bench tiny.gguf --json -p 4 -n 2 -r 1 -t 1 --alias 'a\"b' >out && grep -q 'model\":\"a.\"b\"' out", 0, ""},
        {"bench tiny.gguf --json --ops -p 4 -n 2 -r 1 -t 1 -b 1,2 -d 0,5 >out && grep -q '\"batch\":2,\"depth\":5,.*\"decode_ops\":.*\"operator\":\"linear\"' out", 0, ""},
        {"bench tiny.gguf --ops -p 4 -n 2 -r 1 -t 1 >out && grep -q 'a step of decode: 1 x 1 tokens at 1' out && grep -q 'rmsnorm' out", 0, ""},
        {"bench tiny.gguf --json -p 4 -n 2 -r 1 -t 1 --alias one --alias=two >out && grep -q 'model\":\"one\"' out", 0, ""},
        {"bench tiny.gguf --ladder -n 2 -r 1 -t 1 >out && grep -q ' 1   1024 .*KV 0.2 MiB, states 0.0 MiB' out && grep -q 'ended at 2042 tokens: context: the model was made for 2048 tokens' out", 0, ""},
        {"bench tiny.gguf --ladder -c 1100 -n 2 -r 1 -t 1 -b 1,2 --json >out && grep -q '\"batch\":2,\"depth\":1094,.*\"kv_bytes\":589824,\"state_bytes\":0.*\"ladder\":{\"last\":1094,\"end\":\"context\"' out", 0, ""},
        {"bench tiny.gguf --ladder -c 1000 >out", 3, "is longer than the context of 1000"},
        {"bench tiny.gguf --ladder -d 5 >out", 2, "exclude each other"},
        {"bench tiny.gguf --seconds 5 >out", 2, "--seconds is for --ladder"},
        {"bench tiny.gguf -d 1,x >out", 2, "-d: expected up to 16 numbers"},
        {"run bad -p hi -n 3 >out", 3, "expected a number, found a truth value"}, /* not the user's flag, but the model's config */
        {"plan tiny.gguf --no-probe --json >out && grep -q '\"sweep_bytes\":0' out", 0, ""},
        {"plan tiny.gguf -c 64 -np 1 >out && grep -q 'roof' out", 0, ""},
        {"plan tiny.gguf -c 128 --no-probe >out && grep -q 'KV: 2 layers x 2 x 2 heads x 16 x 2 bytes = 256 bytes a token; at 128 tokens 2 pages of 64, 0.0 MiB' out", 0, ""},
        {"plan tiny.gguf -c 128 --no-probe --json >out && grep -q '\"formulas\":.{\"what\":\"KV\",\"formula\":\"2 layers x .*\",\"token_bytes\":256,\"sequence_bytes\":32768,' out", 0, ""},
        {"verify tiny.gguf --only needle --length 600 --depth 0,50 >out; code=$?; grep -q '    600   missed   missed' out && exit $code", 1, ""},
        {"verify tiny.gguf --only needle --length 600 --depth 50 --json >out; code=$?; grep -q '\"check\":\"needle\",\"length\":600,' out && exit $code", 1, ""},
        {"verify tiny.gguf --only needle --depth 101 >out", 2, "--depth: expected up to 16 numbers from 0 to 100"},
        {"verify tiny.gguf --only needle --ref x >out", 2, "--only needle has no reference"},
        {"verify tiny.gguf --length 600 >out", 2, "--length and --depth are for --only needle"},
        {"plan tiny.gguf --ram 1M --no-probe >out", 1, "bytes are missing"},
        {"plan tiny.gguf --ram lots", 2, "--ram lots"},
        {"plan none.gguf", 3, "none.gguf"},
        {"check none.gguf >/dev/full", 1, "none.gguf"}, /* the answer counts first */
    };
    char *err;
    setup();
    for (size_t i = 0; i < sizeof l / sizeof *l; i++) {
        int code = sh(l[i].args, &err);
        ck_assert_msg(code == l[i].code && strstr(err, l[i].says), "%s: exit code %d, expected %d with \"%s\": %s", l[i].args, code, l[i].code, l[i].says, err);
        free(err);
    }
    mm_rmdir(dir);
}
END_TEST

SUITE("cli", "run", core)
