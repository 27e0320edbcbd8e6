/* cli/notify.h - tells a service manager how things stand: systemd's sd_notify protocol, which is one datagram of VARIABLE=VALUE lines to
 * the socket named by $NOTIFY_SOCKET. Nothing happens where there is none. */
#ifndef SLUICE_CLI_NOTIFY_H
#define SLUICE_CLI_NOTIFY_H
#include <stdbool.h>
/* "READY=1", "STOPPING=1", "RELOADING=1", "STATUS=..."; several lines in one. RELOADING is given its MONOTONIC_USEC. False: a socket is
 * named and cannot be told. */
bool cli_notify(const char *lines);
void cli_notify_take(void);  /* keeps the name for this process and removes it from the environment: children are none of the manager's business */
#endif
