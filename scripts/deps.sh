#!/bin/sh
# Installs what is missing of the named sets: run, gpu, test, fuzz, clients. Debian 12/13; as root or with sudo.
# Where it cannot install, it prints the one command that would, and fails.
set -eu
want=""
for set in "$@"; do
    case $set in
    run) want="$want gcc make pkg-config libc6-dev libevent-dev libssl-dev libpcre2-dev libutf8proc-dev liburing-dev ca-certificates curl python3 python3-pip" ;;
    gpu) want="$want libvulkan-dev glslc spirv-tools" ;; # to build Vulkan in; without them the rest builds as it is
    test) want="$want check openssl python3 libvulkan-dev glslc spirv-tools mesa-vulkan-drivers vulkan-validationlayers" ;;
    fuzz) want="$want clang libclang-rt-dev" ;;
    clients) want="$want python3 python3-venv" ;;
    browser) want="$want chromium fonts-dejavu-core" ;;
    *) echo "deps.sh: unknown set '$set' (run gpu test fuzz clients browser)" >&2; exit 2 ;;
    esac
done
command -v dpkg-query >/dev/null 2>&1 || { echo "deps: this is not Debian; needed:$want" >&2; exit 0; }
missing=""
for p in $want; do
    if [ "$p" = libclang-rt-dev ]; then # named after the version of clang
        v=$(dpkg-query -W -f='${Depends}' clang 2>/dev/null | grep -o 'clang-[0-9]*' | head -n 1 || true)
        [ -n "$v" ] || v=$(apt-cache depends clang 2>/dev/null | grep -o 'clang-[0-9]*' | head -n 1 || true)
        p="libclang-rt-${v#clang-}-dev"
        [ "$p" != libclang-rt--dev ] || continue
    fi
    [ "$p" != python3-pip ] || ! python3 -m pip --version >/dev/null 2>&1 || continue # one of another kind will do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $p"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ]; then sudo=""; elif command -v sudo >/dev/null 2>&1; then sudo="sudo"; else
    echo "deps: missing packages; as root: apt-get install -y$missing" >&2; exit 1
fi
echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# shellcheck disable=SC2086
if ! { $sudo apt-get install -y -qq --no-install-recommends $missing >"$log" 2>&1 ||
       { $sudo apt-get update -qq >>"$log" 2>&1 && $sudo apt-get install -y -qq --no-install-recommends $missing >>"$log" 2>&1; }; }; then
    tail -n 20 "$log" >&2; rm -f "$log"
    echo "deps: could not install; try: apt-get update && apt-get install -y$missing" >&2; exit 1
fi
rm -f "$log"
