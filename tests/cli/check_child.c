/* A child of serve: what it says, how it dies, that it dies with its parent, and how long until the next try. This program is its
 * own child: started as `sluice VERB`, it plays the part that VERB names. */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/child.h"
#include "tests/support/suite.h"

/* argv: sluice VERB --config FILE --ready-fd N */
static int play(const char *verb, const char *config, int fd)
{
    if (!strcmp(verb, "talk"))
        return dprintf(fd, "port 42\nfile %s\nready\nhalf", config) < 0;
    if (!strcmp(verb, "fail"))
        return 3;
    if (!strcmp(verb, "lean")) { /* stdio and the pipe are all it has */
        for (int i = 3; i < 200; i++)
            if (i != fd && fcntl(i, F_GETFD) >= 0)
                return 4;
        char c;
        return getpgrp() == getpid() && read(0, &c, 1) == 0 ? 0 : 5;
    }
    if (!strcmp(verb, "deaf"))
        signal(SIGTERM, SIG_IGN);
    if (!strcmp(verb, "parent")) { /* has a child of its own, says its pid, and is killed */
        struct cli_child c = {.verb = "sleep", .config = "x", .ready_fd = -1};
        struct err e;
        if (cli_child_start(&c, &e))
            return 6;
        dprintf(fd, "child %d\n", (int)c.pid);
    }
    dprintf(fd, "ready\n");
    for (;;)
        pause();
}

static uint64_t died_ns; /* when it was told */

static bool dies(struct cli_child *c, int *status)
{
    for (int i = 0; i < 12000; i++) {
        if (cli_child_died(c, died_ns = clock_now_ns(), status))
            return true;
        clock_sleep_ns(5 * NS_PER_MS);
    }
    return false;
}

static const char *says(struct cli_child *c)
{
    static char line[256];
    for (int i = 0; i < 12000; i++) {
        const char *s = cli_child_line(c, line, sizeof line);
        if (s || c->ready_fd < 0)
            return s;
        clock_sleep_ns(5 * NS_PER_MS);
    }
    return NULL;
}

START_TEST(core)
{
    struct err e = {0};
    struct cli_child c = {.verb = "talk", .config = "the file", .ready_fd = -1};
    int status;
    OK(cli_child_start(&c, &e));
    ck_assert_str_eq(says(&c), "port 42");
    ck_assert(!c.ready);
    ck_assert_str_eq(says(&c), "file the file");
    ck_assert_str_eq(says(&c), "ready");
    ck_assert(c.ready && c.ever_ready);
    ck_assert_ptr_null(says(&c));
    ck_assert(dies(&c, &status) && WIFEXITED(status) && !WEXITSTATUS(status) && !c.pid && c.deaths == 1);

    c = (struct cli_child){.verb = "lean", .config = "x", .ready_fd = -1};
    ck_assert(open("/dev/null", O_RDONLY) >= 3); /* not for the child */
    OK(cli_child_start(&c, &e));
    ck_assert(dies(&c, &status));
    ck_assert_msg(WIFEXITED(status) && !WEXITSTATUS(status), "exit %d", WEXITSTATUS(status));
}
END_TEST

START_TEST(deaths)
{
    struct err e = {0};
    struct cli_child c = {.verb = "sleep", .config = "x", .ready_fd = -1};
    int status;
    char how[64];
    OK(cli_child_start(&c, &e));
    ck_assert_str_eq(says(&c), "ready");
    cli_child_signal(&c, SIGKILL);
    ck_assert(dies(&c, &status));
    cli_describe_status(status, how, sizeof how);
    ck_assert_str_eq(how, "signal 9 (Killed)");
    ck_assert(c.retry_ns <= clock_now_ns() && c.deaths == 1 && c.ever_ready && !c.ready); /* the first time at once */
    c.verb = "fail";
    uint64_t last = 0;
    for (unsigned i = 2; i < CLI_DEATHS_MAX; i++) {
        OK(cli_child_start(&c, &e));
        ck_assert(dies(&c, &status) && c.deaths == i);
        cli_describe_status(status, how, sizeof how);
        ck_assert_str_eq(how, "exit 3");
        ck_assert(c.retry_ns > died_ns && c.retry_ns - died_ns > last);
        last = c.retry_ns - died_ns;
    }
    OK(cli_child_start(&c, &e));
    ck_assert(dies(&c, &status) && c.retry_ns == UINT64_MAX);
    ck_assert(cli_backoff_ns(1) == 0 && cli_backoff_ns(2) == 250 * NS_PER_MS && cli_backoff_ns(CLI_DEATHS_MAX) == UINT64_MAX);

    c = (struct cli_child){.verb = "sleep", .config = "x", .ready_fd = -1, .deaths = 4};
    OK(cli_child_start(&c, &e));
    ck_assert_str_eq(says(&c), "ready");
    c.started_ns -= (CLI_HEALTHY_MS + 1) * NS_PER_MS; /* a healthy life clears the count */
    cli_child_signal(&c, SIGTERM);
    ck_assert(dies(&c, &status) && c.deaths == 1);
}
END_TEST

START_TEST(ends)
{
    struct err e = {0};
    struct cli_child c = {.verb = "deaf", .config = "x", .ready_fd = -1};
    OK(cli_child_start(&c, &e));
    ck_assert_str_eq(says(&c), "ready");
    pid_t pid = c.pid;
    cli_child_signal(&c, SIGTERM);
    cli_child_end(&c, 50); /* killed in the end */
    ck_assert(!c.pid && c.ready_fd == -1 && kill(pid, 0) == -1);
    cli_child_end(&c, 50); /* nothing to end */

    /* kill -9 of a parent takes its child with it */
    char *space;
    c = (struct cli_child){.verb = "parent", .config = "x", .ready_fd = -1};
    OK(cli_child_start(&c, &e));
    const char *s = says(&c);
    ck_assert(s && !strncmp(s, "child ", 6));
    pid_t grandchild = (pid_t)strtol(s + 6, &space, 10);
    ck_assert_str_eq(says(&c), "ready");
    ck_assert(kill(grandchild, 0) == 0);
    cli_child_signal(&c, SIGKILL);
    int status, gone = 0;
    ck_assert(dies(&c, &status));
    for (int i = 0; i < 12000 && !gone; i++) { /* an orphan: its new parent reaps it, sooner or later; a zombie is dead enough */
        char name[64], state = 0;
        snprintf(name, sizeof name, "/proc/%d/stat", (int)grandchild);
        FILE *f = fopen(name, "r");
        gone = !f || (fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && state == 'Z');
        if (f)
            fclose(f);
        clock_sleep_ns(5 * NS_PER_MS);
    }
    ck_assert(gone);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[0], "sluice"))
        return play(argv[1], argv[3], atoi(argv[5]));
    const TTest *const tests[] = {core, deaths, ends};
    const char *const names[] = {"core", "deaths", "ends"};
    return suite_main("cli/child", tests, names, 3);
}
