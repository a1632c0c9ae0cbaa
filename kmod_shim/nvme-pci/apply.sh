#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# apply.sh LINUX: let the nvme driver of a kernel tree carve trace slices.
# LINUX is the top of an unpacked linux-source-6.1, or any tree with drivers/nvme/host.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
host=${1:?usage: apply.sh LINUX}/drivers/nvme/host
[ -f "$host/pci.c" ] || { echo "apply.sh: $host/pci.c: no such file" >&2; exit 1; }
if [ -f "$host/hmb_slice.c" ]; then
	echo "apply.sh: $1 is patched already" >&2
	exit 1
fi
patch -d "$1" -p1 --forward <"$here/0001-nvme-pci-trace-slice.patch"
for file in hmb_carve.h hmb_slice.h hmb_slice.c nvme_hmb_client.h; do
	cp "$here/$file" "$host/"
done
