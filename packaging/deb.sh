#!/bin/sh
# Makes build/sluice_VERSION_ARCH.deb from build/plain/sluice with dpkg-deb alone: program, configuration, units, documentation.
#   packaging/deb.sh VERSION
set -eu
cd "$(dirname "$0")/.."
version=${1:?version}
command -v dpkg-deb >/dev/null || { echo "deb.sh: dpkg-deb is not here; on Debian it is in the package dpkg" >&2; exit 3; }
arch=$(dpkg --print-architecture)
root=build/deb
rm -rf "$root"
mkdir -p "$root/DEBIAN" "$root/lib/systemd/system" "$root/usr/share/doc/sluice"
install -D -m 755 build/plain/sluice "$root/usr/bin/sluice"
install -D -m 640 conf/gateway.conf "$root/etc/sluice/gateway.conf"
install -D -m 644 conf/engine.conf "$root/etc/sluice/engine.conf"
install -m 644 packaging/sluice-engine.service packaging/sluice-gateway.service "$root/lib/systemd/system/"
install -m 644 README.md docs/*.md "$root/usr/share/doc/sluice/"
install -m 644 LICENSE "$root/usr/share/doc/sluice/copyright"
# What the program is linked with, as installed on this machine.
depends=$(ldd build/plain/sluice | awk '/=> \// { print $3 }' | while read -r lib; do
    dpkg -S "$(readlink -f "$lib")" 2>/dev/null || dpkg -S "$lib" 2>/dev/null || dpkg -S "/usr$lib" 2>/dev/null || true
done | sed 's/:.*//' | sort -u | paste -sd, - | sed 's/,/, /g')
[ -n "$depends" ] || { echo "deb.sh: the libraries of the program belong to no package" >&2; exit 3; }
cat > "$root/DEBIAN/control" <<CONTROL
Package: sluice
Version: $version
Architecture: $arch
Section: net
Priority: optional
Maintainer: the Sluice authors <sluice@localhost>
Depends: $depends
Installed-Size: $(du -sk "$root" | cut -f1)
Description: serves language models that are larger than the machine
 A TLS gateway that speaks the OpenAI and Anthropic APIs, and an engine that
 runs models from their published files.
CONTROL
printf '/etc/sluice/gateway.conf\n/etc/sluice/engine.conf\n' > "$root/DEBIAN/conffiles"
cat > "$root/DEBIAN/postinst" <<'POST'
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    getent passwd sluice >/dev/null || useradd --system --home-dir /var/lib/sluice --no-create-home --shell /usr/sbin/nologin sluice
    chgrp sluice /etc/sluice/gateway.conf
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
    # An upgrade of a running gateway: the new program takes the sockets over, streams go on.
    [ -z "$2" ] || [ ! -d /run/systemd/system ] || ! systemctl is-active --quiet sluice-gateway || systemctl kill -s USR2 --kill-whom=main sluice-gateway
fi
POST
cat > "$root/DEBIAN/prerm" <<'PRE'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now sluice-gateway sluice-engine || true
fi
PRE
chmod 755 "$root/DEBIAN/postinst" "$root/DEBIAN/prerm"
dpkg-deb --root-owner-group --build "$root" "build/sluice_${version}_${arch}.deb"
