/* sluice VERB: each verb is one file cli/verb_*.c. */
#include <fcntl.h>
#include <unistd.h>

#include "cli/cli.h"

/* A standard stream that came closed would be the next file that is opened, and what is printed would go into a lock or a socket.
 * The stand-ins fail on use, as a closed stream should. */
static void hold_streams(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
            _exit(CLI_FAULT);
}

int main(int argc, char **argv)
{
    hold_streams();
    return cli_main(argc, argv);
}
