#!/bin/sh
# Start to ready, Sluice beside llama-server, file cache warm, interleaved: bench/ready.sh MODEL.gguf [ROUNDS]. See bench/server.sh.
ROUNDS=${2:-5} ONLY=ready exec "$(dirname "$0")/server.sh" "${1:?usage: bench/ready.sh MODEL.gguf [ROUNDS]}"
