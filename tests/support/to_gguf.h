/* tests/support/to_gguf.h - a tiny checkpoint (safetensors) written as GGUF, with what the usual converter does to each family's tensors. */
#ifndef SLUICE_TESTS_SUPPORT_TO_GGUF_H
#define SLUICE_TESTS_SUPPORT_TO_GGUF_H

/* dir: config.json, tokenizer.json, safetensors. arch: llama, qwen2, qwen3, gemma3, phi3, glm4, qwen3moe, gpt-oss, deepseek2, kimi-linear or kimi-k3. files: 1, or the size of a split set.
 * Writes out_dir/m.gguf, or out_dir/m-0000i-of-0000N.gguf. Matrices keep their bytes; vectors become F32. Aborts on any trouble. */
void mm_to_gguf(const char *dir, const char *arch, const char *out_dir, unsigned files);
#endif
