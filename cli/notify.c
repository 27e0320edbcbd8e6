#include "cli/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"

static char taken[sizeof ((struct sockaddr_un *)0)->sun_path + 1];

void cli_notify_take(void)
{
    const char *name = getenv("NOTIFY_SOCKET");
    if (name)
        snprintf(taken, sizeof taken, "%s", name);
    unsetenv("NOTIFY_SOCKET");
}

bool cli_notify(const char *lines)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *name = *taken ? taken : getenv("NOTIFY_SOCKET");
    char text[512];
    size_t n = name ? strlen(name) : 0;
    if (!n)
        return true;
    if ((name[0] != '/' && name[0] != '@') || n >= sizeof a.sun_path)
        return false;
    memcpy(a.sun_path, name, n);
    if (name[0] == '@')
        a.sun_path[0] = 0; /* the abstract namespace */
    if (!strncmp(lines, "RELOADING=1", 11))
        n = (size_t)snprintf(text, sizeof text, "%s\nMONOTONIC_USEC=%llu", lines, (unsigned long long)(clock_now_ns() / NS_PER_US));
    else
        n = (size_t)snprintf(text, sizeof text, "%s", lines);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(name));
    bool ok = fd >= 0 && n < sizeof text && sendto(fd, text, n, MSG_NOSIGNAL, (struct sockaddr *)&a, len) == (ssize_t)n;
    if (fd >= 0)
        close(fd);
    return ok;
}
