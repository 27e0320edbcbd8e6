/* tests/support/tiny_llama.h - a whole model of some 100 KB as one GGUF file, so that engine and server run without a download.
 *
 * Architecture llama: 2 layers, hidden 64, 4 heads over 2 KV heads of 16, feed-forward 128, weights in F32, F16, BF16, Q8_0, Q4_0
 * and Q4_1, a byte-level BPE vocabulary of TINY_VOCAB tokens (ids 0-2 special, 3-258 the bytes, then merges), ChatML template.
 * The same options give the same bytes on every machine.
 *
 * random (default): weights without meaning. The next token depends on the whole context by close margins: what differs in the
 *        arithmetic differs in the text. Greedy text is printable ASCII and never ends by itself.
 * chain: each token asks for the next of TINY_CHAIN, by wide margins. A chat answers "abc...789" and ends with <|im_end|>. */
#ifndef SLUICE_TESTS_SUPPORT_TINY_LLAMA_H
#define SLUICE_TESTS_SUPPORT_TINY_LLAMA_H
#include <stdbool.h>
#include <stdint.h>

enum { TINY_VOCAB = 300, TINY_ENDOFTEXT = 0, TINY_IM_START = 1, TINY_IM_END = 2, TINY_BYTE0 = 3, TINY_HIDDEN = 64, TINY_LAYERS = 2 };
#define TINY_CHAIN "abcdefghijklmnopqrstuvwxyz0123456789"

struct tiny_llama {
    uint64_t seed;
    uint32_t ctx;              /* llama.context_length; 0: 2048 */
    uint32_t layers, ff;       /* 0: TINY_LAYERS, 128; at most 24 layers, ff a multiple of 32 */
    bool chain;
    bool untied;               /* an output.weight of its own; chain always has one */
    bool f32;                  /* every weight F32: for references */
};
/* Writes path; o may be NULL. Aborts when the system refuses. */
void tiny_llama_write(const char *path, const struct tiny_llama *o);
/* The id of a single byte's token. */
static inline int32_t tiny_llama_byte(uint8_t b) { return TINY_BYTE0 + b; }
#endif
