/* tests/support/fake_engine.h - an engine without a model: speaks frames over a Unix socket and makes up its text.
 *
 * Token i of a request is a function of (seed, choice, i), so that any life of a request gives the same text; every fifth token holds its
 * text back until the next one, as an engine does before a possible stop string. Prompts are bytes (id = byte), and the last
 * command in a prompt decides what happens:
 *   !stop N   end of sequence after N tokens          !fail N    FAILED after N tokens
 *   !delay MS between tokens                          !hang      accepted, never started
 *   !refuse N refused with error code N               !die N     in its first life: the whole engine goes down after N tokens
 *   !met N    the end by !stop is said to come from stop string N - 1
 *   !say T!   its text is T up to the next '!', three bytes a token, then the end of sequence; '~' stands for ENG_MARK
 *   !busy N   refused as full N times, then taken     !mute N    after N tokens nothing more comes, not even PONG
 * Threads: one of its own; the calls below from the test's. */
#ifndef SLUICE_TESTS_FAKE_ENGINE_H
#define SLUICE_TESTS_FAKE_ENGINE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fake_config {
    char path[100];
    uint32_t ctx, seqs, queue_max; uint64_t queue_tokens_max;
    uint32_t down_ms;          /* how long it stays away after !die */
    uint32_t delay_us;         /* between tokens, unless the prompt says otherwise */
    const char *numerics;      /* of the description; another one after a death when numerics_after is set */
    const char *numerics_after;
    bool bad_blob;             /* answers BLOB_GET with other bytes */
    const char *hello;         /* instead of the description */
    const char *format;        /* of the description: JSON; NULL: null */
};
struct fake_counts { uint64_t submits, marked, grammars, resumed, cancels, pauses, resumes, connections, deaths, blobs, live; };

typedef struct fake_engine fake_engine;
void fake_config_default(struct fake_config *c); /* a socket in /tmp named after the process */
fake_engine *fake_open(const struct fake_config *c);
void fake_close(fake_engine *f);
void fake_die(fake_engine *f, uint32_t down_ms);  /* goes down now, back after down_ms; 0: for good */
struct fake_counts fake_counts(fake_engine *f);

/* All text of the first n tokens (held-back text included), NUL-terminated; the caller frees it. */
char *fake_text(uint64_t seed, uint32_t n);
#endif
