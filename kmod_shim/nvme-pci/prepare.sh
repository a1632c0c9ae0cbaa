#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# prepare.sh KERNELVER HEADERS: for dkms, unpack and patch the nvme driver of that very kernel.
# Looks for the linux-source package of its series; refuses when that has another version.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kernelver=${1:?usage: prepare.sh KERNELVER HEADERS}
series=$(echo "$kernelver" | sed 's/^\([0-9]*\.[0-9]*\).*/\1/')
archive=${LINUX_SOURCES:-/usr/src}/linux-source-$series.tar.xz
refuse() { echo "prepare.sh: $*" >&2; exit 1; }

[ -f "$archive" ] || refuse "$archive: no such file; apt install linux-source-$series"
# 6.1.0-57-amd64 does not tell 6.1.192: the package of its headers does.
version=$(dpkg-query -W -f '${Version}' "linux-headers-$kernelver" 2>/dev/null) ||
	version=${kernelver%%-*}
rm -rf "$here/linux"
mkdir "$here/linux"
tar -C "$here/linux" --strip-components=1 --wildcards --no-wildcards-match-slash -xJf "$archive" \
	'*/Makefile' '*/drivers/nvme/host'
"$here/apply.sh" --kernel "$version" "$here/linux"
