#!/bin/bash
# Installs Apptainer on Debian 12 or newer, from Debian's own archive. Idempotent. Run as root.
# Usage: containers/install-apptainer.sh [apptainer_VERSION_amd64.deb]
#
# Only Debian unstable carries the package, so that one package is taken from there, with package lists of its own: the
# machine's sources stay as they are. The mirror is the one that this machine's apt already uses.
# Where glibc is older than 2.38 the package is repacked: it uses two symbols of 2.38, __isoc23_strtol and
# __isoc23_strtoul, which then come from a small library of ours. The system's glibc is left alone, dpkg owns all files.
set -euo pipefail
version=1.4.5-2
repacked_version=$version~isoc23.1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export DEBIAN_FRONTEND=noninteractive
helpers=(squashfuse fuse-overlayfs fuse2fs fuse3 e2fsprogs)

fail() { echo "install-apptainer: $*" >&2; exit 1; }
quietly() { "$@" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; fail "failed: $*"; }; }

main() {
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Version}' apptainer 2>/dev/null || true)
  case $installed in "installed $version" | "installed $repacked_version") echo "apptainer is installed"; configure; return ;; esac
  [ "$(id -u)" = 0 ] || fail "must be run as root; without root ask the administrator for the package 'apptainer'"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  chmod 755 "$work"
  quietly apt-get -qq update
  local package=${1:-}
  [ -n "$package" ] || { download; package=$(ls "$work"/apptainer_*.deb); }
  if dpkg --compare-versions "$(dpkg-query -W -f='${Version}' libc6)" lt 2.38; then
    repack "$package"
    package=$work/repacked.deb
  fi
  quietly apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confnew "$(realpath "$package")" "${helpers[@]}"
  configure
  apptainer --version
}

download() {
  local mirror options
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
  [ -n "$mirror" ] || fail "apt on this machine has no Debian mirror configured (or 'apt-get update' has never run)"
  mkdir -p "$work"/apt/lists/partial "$work"/apt/cache/archives/partial
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror sid main" >"$work/apt/sources.list"
  options=(-o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o "Dir::State::Lists=$work/apt/lists" -o "Dir::Cache=$work/apt/cache" -o APT::Sandbox::User=root)
  quietly apt-get "${options[@]}" -qq update
  (cd "$work" && quietly apt-get "${options[@]}" -qq download "apptainer=$version")
}

repack() {
  local tree=$work/tree libraries=/usr/lib/x86_64-linux-gnu/apptainer/lib file foreign
  quietly apt-get install -y -qq --no-install-recommends patchelf gcc libc6-dev binutils python3
  dpkg-deb -R "$1" "$tree"
  cat >"$work/isoc23.c" <<'C'
#include <stdlib.h>
long __isoc23_strtol(const char *s, char **end, int base) { return strtol(s, end, base); }
unsigned long __isoc23_strtoul(const char *s, char **end, int base) { return strtoul(s, end, base); }
C
  gcc -O2 -s -shared -fPIC -Wl,-soname,libisoc23.so -o "$tree$libraries/libisoc23.so" "$work/isoc23.c"
  chmod 644 "$tree$libraries/libisoc23.so"
  for file in "$tree/usr/bin/apptainer" "$tree/usr/lib/x86_64-linux-gnu/apptainer/bin/starter" "$tree$libraries/offsetpreload.so"; do
    foreign=$(nm -D "$file" | awk '/GLIBC_2\.38/ {print $2}' | grep -vE '^__isoc23_strtou?l@' || true)
    [ -z "$foreign" ] || fail "$file uses more of glibc 2.38 than expected: $foreign"
    python3 "$here/rename_symbol_version.py" "$file"
    patchelf --add-needed libisoc23.so "$file"
    patchelf --set-rpath "$libraries" "$file"
  done
  sed -i -e "s/^Version: .*/Version: $repacked_version/" -e 's/libc6 (>= 2\.38)/libc6 (>= 2.34)/' "$tree/DEBIAN/control"
  (cd "$tree" && find . -type f -not -path './DEBIAN/*' -printf '%P\0' | xargs -0 md5sum >DEBIAN/md5sums)
  quietly dpkg-deb --root-owner-group -Zgzip -z1 -b "$tree" "$work/repacked.deb"
}

configure() {
  [ "$(id -u)" = 0 ] || return 0
  # without systemd Apptainer must manage control groups itself; without udev /dev/fuse is closed to users
  [ -d /run/systemd/system ] || sed -i 's/^systemd cgroups = .*/systemd cgroups = no/' /etc/apptainer/apptainer.conf
  if [ -c /dev/fuse ]; then chmod 666 /dev/fuse; fi
}

main "$@"
