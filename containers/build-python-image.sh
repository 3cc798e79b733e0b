#!/bin/sh
# Makes the Python task image as a folder, without any container registry: debootstrap from this machine's own Debian mirror.
# Usage (as root): containers/build-python-image.sh [FOLDER]
#   FOLDER     default: ${XDG_CACHE_HOME:-~/.cache}/rlhpc/images/python, where rlhpc looks for it
#   PACKAGES   environment variable: what the image contains besides Debian's minimum
# A folder that is already there is left alone; remove it to build anew. For a file: apptainer build FILE.sif FOLDER
set -eu
target=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/rlhpc/images/python}
packages=${PACKAGES:-python3,python3-pytest,git,patch,make,gcc,libc6-dev}
if [ -e "$target" ]; then echo "image is already there: $target"; exit 0; fi
if [ "$(id -u)" != 0 ]; then
  echo "building an image with debootstrap needs root; elsewhere: apptainer build --sandbox $target containers/python.def" >&2
  exit 1
fi
command -v debootstrap >/dev/null || {
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
}
. /etc/os-release
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | head -n 1)
[ -n "$mirror" ] || { echo "apt on this machine has no Debian mirror configured" >&2; exit 1; }

mkdir -p "$(dirname "$target")"
building=$(mktemp -d "$target.building.XXXXXX")
trap 'rm -rf "$building"' EXIT
chmod 755 "$building"
debootstrap --variant=minbase --include="$packages" "$VERSION_CODENAME" "$building" "$mirror" >"$building.log" 2>&1 || {
  echo "debootstrap failed:" >&2; tail -n 20 "$building.log" >&2; rm -f "$building.log"; exit 1
}
rm -f "$building.log"
# nothing in a sandbox installs packages or reads manuals
rm -rf "$building"/var/cache/apt "$building"/var/lib/apt/lists "$building"/var/log/* "$building"/usr/share/doc \
  "$building"/usr/share/man "$building"/usr/share/locale "$building"/debootstrap "$building"/etc/apt/sources.list
# debootstrap copies these from the machine it runs on
echo sandbox >"$building/etc/hostname"
: >"$building/etc/resolv.conf"
mkdir -p "$building"/workspace
mv -T "$building" "$target" || [ -d "$target" ]  # another build may have been faster
echo "image: $target ($(du -sm "$target" | cut -f1) MB)"
