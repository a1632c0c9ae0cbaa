#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# apply.sh [--kernel VERSION] LINUX: let the nvme driver of a kernel tree carve trace slices.
#
# LINUX    the top of an unpacked linux-source package
# VERSION  of the kernel that the driver is for, such as 6.1.192 (default: the running one);
#          "any": do not compare. A driver beside a core of another version corrupts memory.
# Refuses, with one line and exit 1, before it touches anything.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
refuse() { echo "apply.sh: $*" >&2; exit 1; }

# "Debian 6.1.192-3" in uname -v; kernels that are not Debian's have it in uname -r.
running() {
	version=$(uname -v | sed -n 's/.*Debian \([0-9.]*\).*/\1/p')
	echo "${version:-$(uname -r | sed 's/[^0-9.].*//')}"
}

kernel=
if [ "${1:-}" = --kernel ]; then
	kernel=${2:?usage: apply.sh [--kernel VERSION] LINUX}
	shift 2
fi
tree=${1:?usage: apply.sh [--kernel VERSION] LINUX}
host=$tree/drivers/nvme/host
[ -f "$host/pci.c" ] || refuse "$host/pci.c: no such file; give the top of an unpacked kernel source"
[ -f "$tree/Makefile" ] || refuse "$tree/Makefile: no such file; it tells the version of the source"
[ ! -e "$host/hmb_slice.c" ] || refuse "$tree is patched already"
grep -q trace_drives "$host/pci.c" && refuse "$host/pci.c is patched already, but hmb_slice.c is gone; unpack the source again"
command -v patch >/dev/null || refuse "no patch program: apt install patch"

number() { sed -n "s/^$1 = *//p" "$tree/Makefile" | head -n 1; }
source=$(number VERSION).$(number PATCHLEVEL).$(number SUBLEVEL)
case $source in
6.1.*) series=6.1 ;;
6.12.*) series=6.12 ;;
7.*) series=7 ;;
*) refuse "$tree is Linux $source, expected 6.1, 6.12 or 7.x: there is no patch for another series" ;;
esac
kernel=${kernel:-$(running)}
case $kernel in
any | "$source" | "$source"[-.+~]*) ;;
*) refuse "$tree is Linux $source, the kernel is $kernel; install the linux-source package of the kernel's version, or boot the newer kernel first" ;;
esac

try() { patch -d "$tree" -p1 --forward --fuzz=0 --force --silent "$@" <"$here/nvme-pci-$series.patch" >/dev/null 2>&1; }
try --dry-run || refuse "nvme-pci-$series.patch does not fit $tree (Linux $source): its nvme driver has changed, nothing was touched"
try
for file in hmb_carve.h hmb_slice.h hmb_slice.c nvme_hmb_client.h; do
	cp "$here/$file" "$host/"
done
