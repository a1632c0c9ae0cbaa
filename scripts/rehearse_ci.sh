#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run .ci/run, or any other command, on a clone of HEAD in a fresh Debian that has only python3, gcc,
# make and git, so that nothing installed by hand on this machine can hide a missing install step.
#
#   sudo scripts/rehearse_ci.sh [--suite bookworm] [--keep] [COMMAND ...]
#
# Needs root and debootstrap. How this machine reaches its package mirrors (apt sources, pip
# settings, certificates) is copied into the root; nothing of it is written into the checkout.
set -euo pipefail

suite=bookworm keep=
while [ $# -gt 0 ]; do
	case $1 in
	--suite)
		suite=$2
		shift 2
		;;
	--keep)
		keep=1
		shift
		;;
	--help | -h)
		sed -n '3,9s/^# \{0,1\}//p' "$0"
		exit 0
		;;
	*) break ;;
	esac
done
[ "$(id -u)" = 0 ] || { echo "rehearse_ci.sh: needs root (debootstrap, chroot)" >&2; exit 77; }
command -v debootstrap >/dev/null || { echo "rehearse_ci.sh: debootstrap is missing; apt install debootstrap" >&2; exit 66; }

here=$(cd "$(dirname "$0")/.." && pwd)
root=$(mktemp -d "${TMPDIR:-/var/tmp}/hmb-rehearsal-XXXXXX")

leave() {
	for place in dev/shm dev/pts dev sys proc; do
		mountpoint -q "$root/$place" && umount -l "$root/$place"
	done
	if [ -n "$keep" ]; then
		echo "kept: $root"
	else
		rm -rf --one-file-system "$root"
	fi
}
trap leave EXIT

copy_into() {
	for path in "$@"; do
		[ -e "$path" ] || continue
		mkdir -p "$root$(dirname "$path")"
		cp -aL --remove-destination "$path" "$root$(dirname "$path")/"
	done
}

debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" >/dev/null
copy_into /etc/apt/apt.conf.d /etc/apt/auth.conf.d /etc/pip.conf /etc/xdg/pip /etc/ssl/certs/ca-certificates.crt \
	/etc/resolv.conf /etc/hosts "${HOME}/.config/pip"
for place in proc sys dev dev/pts; do
	mount --bind "/$place" "$root/$place"
done
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
chroot "$root" apt-get update -qq
chroot "$root" apt-get install -y -qq --no-install-recommends python3 python3-venv gcc libc6-dev make git >/dev/null

git clone -q "$here" "$root/hmb-trace"
[ $# -gt 0 ] || set -- bash .ci/run
echo "== $* in a fresh $suite"
# env -i: what this shell has set by hand must not help; what it needs to reach mirrors may.
settings=$(env | grep -E '^(PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT)|SSL_CERT_(FILE|DIR)|[a-z_]*(http|https|no)_proxy|(HTTP|HTTPS|NO)_PROXY)=' || true)
mapfile -t settings <<<"$settings"
chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
	LC_ALL=C.UTF-8 CI=true ${settings[0]:+"${settings[@]}"} \
	sh -c 'cd /hmb-trace && exec "$@"' sh "$@"
