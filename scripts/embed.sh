#!/bin/sh
# Writes a C file that holds the given files: table sluice_embedded[] of {name, data, size}, ended by a NULL name.
set -eu
echo '#include <stddef.h>'
echo '#include "base/embedded.h"'
i=0
for f in "$@"; do
    printf '__asm__(".section .rodata\\n.balign 16\\nslx_%d: .incbin \\"%s\\"\\nslx_%d_end: .byte 0\\n.previous\\n");\n' "$i" "$f" "$i"
    printf 'extern const char slx_%d[], slx_%d_end[];\n' "$i" "$i"
    i=$((i + 1))
done
echo 'const struct embedded sluice_embedded[] = {'
i=0
for f in "$@"; do
    printf '    {"%s", slx_%d, slx_%d_end},\n' "$f" "$i" "$i"
    i=$((i + 1))
done
echo '    {NULL, NULL, NULL}};'
