/* tiny_model PATH random|chain: writes a whole model of some 100 KB for the client tests (tests/support/tiny_llama.h). */
#include <stdio.h>
#include <string.h>

#include "tests/support/tiny_llama.h"

int main(int argc, char **argv)
{
    if (argc != 3 || (strcmp(argv[2], "random") && strcmp(argv[2], "chain"))) {
        fprintf(stderr, "usage: tiny_model PATH random|chain\n");
        return 2;
    }
    struct tiny_llama o = {.seed = 3, .chain = argv[2][0] == 'c'};
    tiny_llama_write(argv[1], &o);
    return 0;
}
