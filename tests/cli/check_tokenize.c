/* sluice tokenize: ids out, text back, JSON, exit codes. Each call runs in a child with files for its standard streams. */
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "tests/support/make_model.h"
#include "tests/support/suite.h"

#define LLAMA "tests/data/tokenizer/llama.json"

static int call(const char *dir, const char *args, const char *input, char **out)
{
    char copy[300], *argv[12] = {"sluice", "tokenize"}, *save = NULL;
    int argc = 2, status;
    size_t n;
    snprintf(copy, sizeof copy, "%s", args);
    for (char *a = strtok_r(copy, " ", &save); a && argc < 12; a = strtok_r(NULL, " ", &save))
        argv[argc++] = a;
    mm_text(dir, "in", input);
    pid_t pid = fork();
    ck_assert(pid >= 0);
    if (pid == 0) {
        if (!freopen(mm_path(dir, "in"), "rb", stdin) || !freopen(mm_path(dir, "out"), "wb", stdout) || !freopen(mm_path(dir, "err"), "wb", stderr))
            _exit(99);
        int rc = cli_main(argc, argv);
        fflush(NULL);
        _exit(rc);
    }
    ck_assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    *out = mm_read(mm_path(dir, WEXITSTATUS(status) ? "err" : "out"), &n);
    return WEXITSTATUS(status);
}

START_TEST(core)
{
    static const struct { const char *args, *input; int code; const char *out; } l[] = {
        {LLAMA, "The lock k", CLI_OK, "328 280 460 337\n"},
        {LLAMA " --bos", "The lock k", CLI_OK, "507 328 280 460 337\n"},
        {LLAMA, "", CLI_OK, "\n"},
        {LLAMA, "a<|eot_id|>", CLI_OK, "64 511\n"},
        {LLAMA " --plain", "a<|eot_id|>", CLI_OK, "64 27 91 68 301 62 72 67 91 29\n"},
        {LLAMA " --json", "The lock", CLI_OK, "{\"ids\": [328, 280, 460], \"pieces\": [\"The\", \"\xC4\xA0l\", \"ock\"]}\n"},
        {LLAMA " --decode", "328, 280 460\n", CLI_OK, "The lock"},
        {LLAMA " --decode --json", "[328, 280, 460]", CLI_OK, "{\"text\": \"The lock\"}\n"},
        {LLAMA " --decode", "328 x", CLI_USAGE, "\"x\" is no id"},
        {LLAMA " --decode", "512", CLI_USAGE, "\"512\" is no id"},
        {LLAMA " --decode --plain", "1", CLI_USAGE, "for encoding"},
        {LLAMA, "\xFF", CLI_USAGE, "not UTF-8"},
        {LLAMA " --what", "", CLI_USAGE, "unexpected '--what'"},
        {"", "", CLI_USAGE, "MODEL is missing"},
        {"tests/data/none.gguf", "", CLI_FAULT, "none.gguf"},
        {"tests/data/tokenizer/llama.golden.json", "", CLI_FAULT, "tiktoken.model: line 1"},
        {"--help", "", CLI_OK, "usage: sluice tokenize MODEL"},
    };
    char *dir = mm_tmpdir(), *out;
    for (size_t i = 0; i < sizeof l / sizeof *l; i++) {
        int code = call(dir, l[i].args, l[i].input, &out);
        ck_assert_msg(code == l[i].code, "%s: exit code %d, expected %d: %s", l[i].args, code, l[i].code, out);
        bool whole = code == CLI_OK && strcmp(l[i].args, "--help") != 0;
        ck_assert_msg(whole ? !strcmp(out, l[i].out) : strstr(out, l[i].out) != NULL, "%s: found %s", l[i].args, out);
        free(out);
    }
    mm_rmdir(dir);
}
END_TEST

SUITE("cli", "tokenize", core)
