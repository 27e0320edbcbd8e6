#include "cli/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

/* In the child, before exec: only calls that are safe after fork. */
static void become(const struct cli_child *c, int fd, pid_t parent)
{
    char number[16];
    sigset_t none;
    const char *argv[] = {"sluice", c->verb, "--config", c->config, "--ready-fd", number, NULL};
    snprintf(number, sizeof number, "%d", fd);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127); /* it died before the line above */
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, 0);
    dup2(2, 1); /* stdout is the parent's own */
    close_range(3, (unsigned)fd - 1, 0);
    close_range((unsigned)fd + 1, ~0u, 0);
    execv("/proc/self/exe", (char *const *)argv);
    _exit(127);
}

int cli_child_start(struct cli_child *c, struct err *e)
{
    int fds[2];
    pid_t parent = getpid();
    if (pipe2(fds, O_NONBLOCK))
        return err_set(e, ERR_IO, "pipe: %s", strerror(errno));
    fcntl(fds[0], F_SETFD, FD_CLOEXEC);
    pid_t pid = fork();
    if (pid == 0)
        become(c, fds[1], parent);
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return err_set(e, ERR_IO, "fork: %s", strerror(errno));
    }
    c->pid = pid;
    c->ready_fd = fds[0];
    c->ready = false;
    c->said_n = 0;
    c->started_ns = clock_now_ns();
    return ERR_OK;
}

static void fill(struct cli_child *c)
{
    while (c->ready_fd >= 0 && c->said_n < sizeof c->said) {
        ssize_t n = read(c->ready_fd, c->said + c->said_n, sizeof c->said - c->said_n);
        if (n > 0) {
            c->said_n += (size_t)n;
            continue;
        }
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            close(c->ready_fd);
            c->ready_fd = -1;
        }
        return;
    }
}

const char *cli_child_line(struct cli_child *c, char *line, size_t n)
{
    fill(c);
    char *nl = memchr(c->said, '\n', c->said_n);
    if (!nl) {
        if (c->said_n == sizeof c->said)
            c->said_n = 0; /* no child of ours says so much in one line */
        return NULL;
    }
    size_t len = (size_t)(nl - c->said);
    snprintf(line, n, "%.*s", (int)len, c->said);
    c->said_n -= len + 1;
    memmove(c->said, nl + 1, c->said_n);
    if (!strcmp(line, "ready"))
        c->ready = c->ever_ready = true;
    return line;
}

uint64_t cli_backoff_ns(unsigned deaths)
{
    if (deaths >= CLI_DEATHS_MAX)
        return UINT64_MAX;
    uint64_t ns = deaths < 2 ? 0 : 250 * NS_PER_MS << (deaths - 2);
    return ns < 30 * NS_PER_S ? ns : 30 * NS_PER_S;
}

static void forget(struct cli_child *c)
{
    c->pid = 0;
    if (c->ready_fd >= 0)
        close(c->ready_fd);
    c->ready_fd = -1;
}

bool cli_child_died(struct cli_child *c, uint64_t now_ns, int *status)
{
    if (!c->pid || waitpid(c->pid, status, WNOHANG) != c->pid)
        return false;
    forget(c);
    if (c->ready && now_ns - c->started_ns >= CLI_HEALTHY_MS * NS_PER_MS)
        c->deaths = 0;
    c->ready = false;
    uint64_t wait = cli_backoff_ns(++c->deaths);
    c->retry_ns = wait == UINT64_MAX ? UINT64_MAX : now_ns + wait;
    return true;
}

void cli_child_signal(const struct cli_child *c, int sig)
{
    if (c->pid)
        kill(c->pid, sig);
}

void cli_child_end(struct cli_child *c, uint64_t ms)
{
    uint64_t end = clock_now_ns() + ms * NS_PER_MS;
    int status;
    while (c->pid) {
        pid_t got = waitpid(c->pid, &status, WNOHANG);
        if (got == c->pid || (got < 0 && errno == ECHILD))
            break;
        if (clock_now_ns() >= end) {
            kill(c->pid, SIGKILL);
            waitpid(c->pid, &status, 0);
            break;
        }
        clock_sleep_ns(5 * NS_PER_MS);
    }
    forget(c);
}

void cli_describe_status(int status, char *text, size_t n)
{
    if (WIFSIGNALED(status))
        snprintf(text, n, "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, n, "exit %d", WEXITSTATUS(status));
}
