#!/bin/sh
# System packages that rlhpc needs on a machine without Apptainer: bubblewrap (sandboxes) and python3 (inside them).
# As root on Debian they are installed; otherwise one line says what to install. Idempotent.
set -eu
missing=""
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
[ -x /usr/bin/python3 ] || missing="$missing python3"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  export DEBIAN_FRONTEND=noninteractive
  echo "installing system packages:$missing"
  apt-get update -qq
  # shellcheck disable=SC2086  # a list of package names
  apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1
else
  echo "rlhpc needs these system packages; ask an administrator for:$missing   (Debian: sudo apt-get install$missing)" >&2
  command -v apptainer >/dev/null 2>&1 || exit 1
fi
