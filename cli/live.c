#include "cli/live.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static char restore[64];          /* for the handler: gives the terminal its last row back */

static void on_signal(int sig)
{
    ssize_t r = write(2, restore, strlen(restore));
    (void)r;
    signal(sig, SIG_DFL);
    raise(sig);
}

/* The last row is taken out of what scrolls; the cursor stays, a row higher if it was there. */
static void take_row(struct cli_live *l)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    snprintf(restore, sizeof restore, "\0337\033[r\033[%d;1H\033[2K\0338", l->rows);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (signal(signals[i], on_signal) == SIG_IGN)
            signal(signals[i], SIG_IGN);
    fflush(stdout);
    fprintf(stderr, "\n\033[1A\0337\033[1;%dr\0338", l->rows - 1);
}

void cli_live_open(struct cli_live *l)
{
    struct winsize w = {0};
    *l = (struct cli_live){.on = isatty(2)};
    if (l->on && isatty(1) && !ioctl(2, TIOCGWINSZ, &w) && w.ws_row >= 4)
        l->rows = w.ws_row;
    else
        l->on = l->on && !isatty(1); /* a terminal of unknown height: the text alone */
    if (l->rows)
        take_row(l);
}

void cli_live_show(struct cli_live *l, const char *text)
{
    if (!l->on)
        return;
    fflush(stdout);
    if (l->rows)
        fprintf(stderr, "\0337\033[%d;1H\033[2K%s\0338", l->rows, text);
    else
        fprintf(stderr, "\r%s\033[K", text);
    l->shown = true;
}

void cli_live_close(struct cli_live *l)
{
    if (l->on && l->rows) {
        fflush(stdout);
        fputs(restore, stderr);
    } else if (l->on && l->shown) {
        fputs("\r\033[K", stderr);
    }
    l->on = false;
}

void cli_live_text(const struct cli_course *c, char *out, size_t n)
{
    double s = (double)(c->now.ns - c->begin.ns) / 1e9;
    uint64_t done = (c->now.steps - c->begin.steps) * c->chunk;
    if (!c->first.ns || c->now.ns == c->first.ns) {
        done = done < c->prompt ? done : c->prompt;
        size_t k = (size_t)snprintf(out, n, "prompt %llu of %u tokens, %.0f s", (unsigned long long)done, c->prompt, s);
        if (done && s > 0 && k < n)
            snprintf(out + k, n - k, ", %.1f tok/s, %.0f s to go", (double)done / s, s * (double)(c->prompt - done) / (double)done);
        return;
    }
    s = (double)(c->now.ns - c->first.ns) / 1e9;
    uint64_t tokens = c->now.tokens - c->first.tokens, bytes = c->now.read_bytes - c->first.read_bytes;
    size_t k = (size_t)snprintf(out, n, "%.1f tok/s", (double)tokens / s);
    if (c->drive_s > 0 && tokens && k < n)
        snprintf(out + k, n - k, ", %.1f MB/token from the drive at %.2f GB/s, %.0f %% of what it gives", (double)bytes / 1e6 / (double)tokens, (double)bytes / 1e9 / s,
                 100 * (double)bytes / s / c->drive_s);
}
