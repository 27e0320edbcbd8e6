/* Gateway processes as a service manager sees them: a hot restart under load, a reload, what sd_notify is told, a heir that fails. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/suite.h"

#define KEY "restart-key-1"
static char dir[] = "/tmp/sluice-restart-XXXXXX", program[4096], conf[64], logs[64], notify_path[64];
static uint16_t port;
static pid_t engine, gateway;
static int notify_fd = -1;

static void put_file(const char *path, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put_file(const char *path, const char *fmt, ...)
{
    va_list ap;
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fclose(f);
}

static uint16_t free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(!bind(fd, (void *)&a, sizeof a) && !getsockname(fd, (void *)&a, &len));
    close(fd);
    return ntohs(a.sin_port);
}

static pid_t spawn(const char *verb, const char *config)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    int fd = open(logs, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(fd, 2);
    setenv("NOTIFY_SOCKET", notify_path, 1);
    execl(program, "sluice", verb, "--config", config, NULL);
    _exit(127);
}

static bool log_has(const char *text, char *after, size_t n)
{
    static char all[1 << 20];
    FILE *f = fopen(logs, "r");
    size_t len = f ? fread(all, 1, sizeof all - 1, f) : 0;
    if (f)
        fclose(f);
    all[len] = 0;
    const char *p = strstr(all, text);
    for (const char *later; p && (later = strstr(p + 1, text));)
        p = later; /* the last one */
    if (p && after)
        snprintf(after, n, "%s", p + strlen(text));
    return p != NULL;
}

static void wait_log(const char *text)
{
    for (int i = 0; i < 12000 && !log_has(text, NULL, 0); i++)
        clock_sleep_ns(5 * NS_PER_MS);
    ck_assert_msg(log_has(text, NULL, 0), "the log never said: %s", text);
}

static void write_conf(const char *more)
{
    put_file(conf, "listen 127.0.0.1:%u\nengine unix:%s/e.sock\ntls off\napi_key %s\ndrain_deadline 60s\n%s", port, dir, KEY, more);
}

static void setup(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char path[64];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 32);
    ck_assert(n > 0);
    program[n] = 0;
    for (int i = 0; i < 3; i++)
        *strrchr(program, '/') = 0;
    strcat(program, "/sluice");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(conf, sizeof conf, "%s/gateway.conf", dir);
    snprintf(logs, sizeof logs, "%s/log", dir);
    snprintf(path, sizeof path, "%s/engine.conf", dir);
    snprintf(notify_path, sizeof notify_path, "%s/notify", dir);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", notify_path);
    notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(notify_fd, (void *)&a, sizeof a), 0);
    put_file(path, "listen unix:%s/e.sock\nmock \" one two three four five six seven eight nine ten\"\nmock_rate 4\n", dir);
    port = free_port();
    write_conf("");
    engine = spawn("engine", path);
    gateway = spawn("gateway", conf);
    for (int i = 0; i < 12000 && !log_has("gateway: ready", NULL, 0); i++)
        clock_sleep_ns(5 * NS_PER_MS);
    wait_log("gateway: ready");
}

static void teardown(void)
{
    char cmd[96];
    kill(engine, SIGKILL);
    waitpid(engine, NULL, 0);
    close(notify_fd);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    ck_assert_int_eq(system(cmd), 0);
}

static int exit_status(pid_t pid)
{
    int status;
    for (int i = 0; i < 18000; i++, clock_sleep_ns(5 * NS_PER_MS))
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    ck_abort_msg("process %d does not end", (int)pid);
}

/* What the service manager was told, all of it until now. */
static const char *told(void)
{
    static char all[4096];
    size_t n = 0;
    ssize_t got;
    while ((got = recv(notify_fd, all + n, sizeof all - n - 2, 0)) > 0) {
        n += (size_t)got;
        all[n++] = '|';
    }
    all[n] = 0;
    return all;
}

/* ---- requests --------------------------------------------------------------------------------------------------- */
static int connect_to(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval tv = {20, 0};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    if (connect(fd, (void *)&a, sizeof a)) {
        close(fd);
        return -1;
    }
    return fd;
}

static int ask(int fd, const char *method, const char *path, const char *body)
{
    char text[1024];
    int n = snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\n\r\n%s", method, path, KEY, strlen(body), body);
    return send(fd, text, (size_t)n, MSG_NOSIGNAL) == n ? 0 : -1;
}

static size_t rest(int fd, char *out, size_t most)
{
    size_t n = 0;
    ssize_t got;
    while (n < most - 1 && (got = recv(fd, out + n, most - 1 - n, 0)) > 0)
        n += (size_t)got;
    out[n] = 0;
    close(fd);
    return n;
}

static pid_t heir_pid(void)
{
    char number[32];
    ck_assert(log_has("a new gateway is starting pid=", number, sizeof number));
    return (pid_t)atoi(number);
}

static void end_heir(void) /* not our child: its end shows at the port */
{
    int fd = -1;
    kill(heir_pid(), SIGTERM);
    for (int i = 0; i < 12000 && (fd = connect_to()) >= 0; i++) {
        close(fd);
        clock_sleep_ns(5 * NS_PER_MS);
    }
    ck_assert_int_eq(fd, -1);
}

static atomic_bool stop_load;
static atomic_uint refused, broken, answered;
static void *load(void *arg)
{
    char text[4096];
    (void)arg;
    while (!atomic_load(&stop_load)) {
        int fd = connect_to();
        if (fd < 0) {
            atomic_fetch_add(&refused, 1);
            continue;
        }
        ask(fd, "GET", "/ready", "");
        rest(fd, text, sizeof text);
        atomic_fetch_add(strncmp(text, "HTTP/1.1 200 ", 13) ? &broken : &answered, 1);
    }
    return NULL;
}

#define STREAM "{\"model\":\"mock\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"

/* The new process has the same port from the same sockets: nobody is refused, nobody is cut, a stream ends where it began. */
START_TEST(hot_restart)
{
    char text[65536];
    pthread_t t[2];
    ck_assert_ptr_nonnull(strstr(told(), "READY=1"));
    int fd = connect_to();
    ck_assert_int_eq(ask(fd, "POST", "/v1/chat/completions", STREAM), 0);
    ck_assert_int_gt(recv(fd, text, 1, MSG_PEEK), 0);
    for (int i = 0; i < 2; i++)
        pthread_create(&t[i], NULL, load, NULL);
    for (int i = 0; i < 12000 && atomic_load(&answered) < 20; i++)
        clock_sleep_ns(5 * NS_PER_MS);
    kill(gateway, SIGUSR2);
    wait_log("took over pid=");
    int early = connect_to(); /* while the old one drains */
    ck_assert_int_eq(ask(early, "POST", "/v1/chat/completions", STREAM), 0);
    rest(fd, text, sizeof text);
    ck_assert_msg(strstr(text, "ten") && strstr(text, "[DONE]"), "%s", text);
    ck_assert_int_eq(exit_status(gateway), 0);
    for (unsigned i = 0, before = atomic_load(&answered); i < 12000 && atomic_load(&answered) < before + 20; i++) /* and by the new one */
        clock_sleep_ns(5 * NS_PER_MS);
    atomic_store(&stop_load, true);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    ck_assert_uint_eq(atomic_load(&refused), 0);
    ck_assert_uint_eq(atomic_load(&broken), 0);
    ck_assert_uint_ge(atomic_load(&answered), 40);
    rest(early, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "[DONE]"));
    pid_t heir = heir_pid();
    char want[64];
    snprintf(want, sizeof want, "MAINPID=%d\nREADY=1|", (int)heir);
    ck_assert_ptr_nonnull(strstr(told(), want));
    end_heir();
}
END_TEST

/* A configuration that is wrong by now: the new one says so and ends, the old one never stopped. */
START_TEST(heir_fails)
{
    char text[4096];
    write_conf("no_such_thing on\n");
    kill(gateway, SIGUSR2);
    wait_log("took nothing over");
    ck_assert(log_has("no_such_thing", NULL, 0));
    int fd = connect_to();
    ask(fd, "GET", "/ready", "");
    rest(fd, text, sizeof text);
    ck_assert_int_eq(strncmp(text, "HTTP/1.1 200 ", 13), 0);
    write_conf(""); /* and it can be tried again */
    kill(gateway, SIGUSR2);
    ck_assert_int_eq(exit_status(gateway), 0);
    wait_log("took over pid=");
    end_heir();
}
END_TEST

START_TEST(signals)
{
    told();
    kill(gateway, SIGHUP);
    wait_log("gateway: reloaded");
    const char *s = told();
    ck_assert_msg(!strncmp(s, "RELOADING=1\nMONOTONIC_USEC=", 27) && strstr(s, "|READY=1|"), "%s", s);
    kill(engine, SIGUSR2); /* means nothing to it */
    int fd = connect_to();
    char text[4096];
    ask(fd, "GET", "/ready", "");
    rest(fd, text, sizeof text);
    ck_assert_int_eq(strncmp(text, "HTTP/1.1 200 ", 13), 0);
    kill(gateway, SIGTERM);
    ck_assert_int_eq(exit_status(gateway), 0);
    ck_assert_ptr_nonnull(strstr(told(), "STOPPING=1"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("restart");
    TCase *t = tcase_create("core");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, hot_restart);
    tcase_add_test(t, heir_fails);
    tcase_add_test(t, signals);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed != 0;
}
