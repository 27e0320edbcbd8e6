/* The listening socket of a link: a Unix path (a stale file is replaced, a living one is not), or a loopback address. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/link_internal.h"

static int new_socket(int family, struct err *e, const char *address)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        err_set(e, ERR_IO, "%s: socket: %s", address, strerror(errno));
    return fd;
}

/* A socket file that nobody answers on is what a killed engine left behind. */
static int clear_stale(const struct sockaddr_un *a, struct err *e)
{
    struct stat st;
    if (lstat(a->sun_path, &st))
        return ERR_OK;
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_IO, "%s: expected a socket or nothing, found another file", a->sun_path);
    int fd = new_socket(AF_UNIX, e, a->sun_path);
    if (fd < 0)
        return ERR_IO;
    int rc = connect(fd, (const struct sockaddr *)a, sizeof *a), why = errno;
    close(fd);
    if (rc == 0 || (why != ECONNREFUSED && why != ENOENT))
        return err_set(e, ERR_IO, "%s: another engine listens there", a->sun_path);
    unlink(a->sun_path);
    return ERR_OK;
}

static int listen_unix(const char *path, int *out, char **kept, struct err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof a.sun_path)
        return err_set(e, ERR_INVALID, "%s: expected a socket path of 1 to %zu bytes", path, sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    int rc = clear_stale(&a, e), fd = -1;
    if (rc)
        return rc;
    if ((fd = new_socket(AF_UNIX, e, path)) < 0)
        return ERR_IO;
    fchmod(fd, 0600); /* before it has a name */
    if (bind(fd, (struct sockaddr *)&a, sizeof a) || chmod(path, 0600))
        rc = err_set(e, ERR_IO, "%s: %s", path, strerror(errno));
    else if (!(*kept = strdup(path)))
        rc = err_set(e, ERR_NOMEM, "%s", path);
    if (rc)
        close(fd);
    else
        *out = fd;
    return rc;
}

static bool split(const char *address, char host[64], uint16_t *port)
{
    const char *colon = strrchr(address, ':');
    char *end;
    if (!colon || colon == address || colon - address >= 64 || colon[1] < '0' || colon[1] > '9')
        return false;
    unsigned long p = strtoul(colon + 1, &end, 10);
    size_t n = (size_t)(colon - address);
    if (*end || p > 65535)
        return false;
    if (address[0] == '[' && address[n - 1] == ']') {
        address++;
        n -= 2;
    }
    memcpy(host, address, n);
    host[n] = 0;
    *port = (uint16_t)p;
    return true;
}

static int listen_tcp(const char *address, int *out, uint16_t *port, struct err *e)
{
    char host[64];
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
    if (!split(address, host, port))
        return err_set(e, ERR_INVALID, "%s: expected unix:/path, /path or host:port", address);
    bool is4 = inet_pton(AF_INET, strcmp(host, "localhost") ? host : "127.0.0.1", &v4.sin_addr) == 1;
    if (!is4 && inet_pton(AF_INET6, host, &v6.sin6_addr) != 1)
        return err_set(e, ERR_INVALID, "%s: expected a numeric address or localhost", address);
    if (is4 ? ntohl(v4.sin_addr.s_addr) >> 24 != 127 : !IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr))
        return err_set(e, ERR_UNSUPPORTED, "%s: expected an address of this machine: beyond it the connection needs TLS, which the engine does not have",
                       address);
    v4.sin_port = v6.sin6_port = htons(*port);
    struct sockaddr *a = is4 ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    socklen_t n = is4 ? sizeof v4 : sizeof v6;
    int one = 1, fd = new_socket(a->sa_family, e, address);
    if (fd < 0)
        return ERR_IO;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, a, n) || getsockname(fd, a, &n)) {
        int rc = err_set(e, ERR_IO, "%s: %s", address, strerror(errno));
        close(fd);
        return rc;
    }
    *port = ntohs(is4 ? v4.sin_port : v6.sin6_port);
    *out = fd;
    return ERR_OK;
}

int link_listen(const char *address, int *fd, char **path, uint16_t *port, struct err *e)
{
    *port = 0;
    if (!strncmp(address, "unix:", 5))
        return listen_unix(address + 5, fd, path, e);
    return strchr(address, '/') ? listen_unix(address, fd, path, e) : listen_tcp(address, fd, port, e);
}
