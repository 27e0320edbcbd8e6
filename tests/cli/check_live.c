/* The live line: what it says, and that a terminal is left as it was found. */
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/live.h"
#include "tests/support/suite.h"
#include "tests/support/tiny_llama.h"

START_TEST(core)
{
    char s[200];
    struct cli_course c = {.begin = {.ns = 1000000000}, .now = {.ns = 3000000000, .steps = 2}, .prompt = 1000, .chunk = 256};
    cli_live_text(&c, s, sizeof s);
    ck_assert_str_eq(s, "prompt 512 of 1000 tokens, 2 s, 256.0 tok/s, 2 s to go");
    c.now.steps = 9;
    cli_live_text(&c, s, sizeof s);
    ck_assert_str_eq(s, "prompt 1000 of 1000 tokens, 2 s, 500.0 tok/s, 0 s to go");
    c.first = (struct cli_moment){.ns = 3000000000, .tokens = 1, .read_bytes = 1000};
    c.now = (struct cli_moment){.ns = 5000000000, .tokens = 9, .read_bytes = 1600001000};
    cli_live_text(&c, s, sizeof s);
    ck_assert_str_eq(s, "4.0 tok/s");
    c.drive_s = 1e9;
    cli_live_text(&c, s, sizeof s);
    ck_assert_str_eq(s, "4.0 tok/s, 200.0 MB/token from the drive at 0.80 GB/s, 80 % of what it gives");
}
END_TEST

/* Takes out what is painted between saving and restoring the cursor, control sequences and ends of lines: what is left is the answer. */
static void strip(char *s)
{
    char *to = s;
    while (*s) {
        char *end;
        if (s[0] == '\033' && s[1] == '7' && (end = strstr(s, "\0338")))
            s = end + 2;
        else if (s[0] == '\033' && s[1] == '[')
            s += 2 + strcspn(s + 2, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") + 1;
        else if (*s == '\r' || *s == '\n' || s[0] == '\033')
            s++;
        else
            *to++ = *s++;
    }
    *to = 0;
}

/* `run` on a terminal of 24 rows: the last one is taken, and given back. */
START_TEST(terminal)
{
    char path[64], got[65536];
    struct winsize w = {.ws_row = 24, .ws_col = 80};
    size_t n = 0;
    int fd, status;
    snprintf(path, sizeof path, "/tmp/check_live.%d.gguf", (int)getpid());
    tiny_llama_write(path, &(struct tiny_llama){.chain = true});
    pid_t child = forkpty(&fd, NULL, NULL, &w);
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        char *argv[] = {"sluice", "run", path, "-p", "a", "--raw", "-n", "8", "-t", "1", NULL};
        _exit(cli_main(10, argv));
    }
    for (ssize_t r; n < sizeof got - 1 && (r = read(fd, got + n, sizeof got - 1 - n)) > 0;)
        n += (size_t)r;
    got[n] = 0;
    ck_assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    const char *taken = strstr(got, "\033[1;23r"), *back = strstr(got, "\033[r");
    ck_assert_msg(taken && back && taken < back, "%s", got);
    strip(got);
    ck_assert_msg(strstr(got, "bcdefghi") != NULL, "%s", got);
    close(fd);
    unlink(path);
}
END_TEST

SUITE("cli", "live", core, terminal)
