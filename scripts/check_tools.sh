#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Says plainly what is missing before anything is built.
set -u
python=${PYTHON:-python3}
missing=()

need() { # need PACKAGE WHY
	missing+=("$1")
	echo "missing: $2 (Debian: apt install $1)" >&2
}

if ! command -v "$python" >/dev/null; then
	need python3 "$python"
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
	echo "missing: Python 3.11 or newer; $python is $("$python" -V 2>&1). Try make PYTHON=python3.11" >&2
	missing+=(python3)
elif ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
	need python3-venv "Python's venv module"
fi
compiler=${CC:-gcc}
if ! command -v "${compiler%% *}" >/dev/null; then
	need gcc "a C compiler ($compiler)"
elif ! echo '#include <stdint.h>
#include <sys/mman.h>
#include <linux/ioctl.h>' | ${compiler} -E -xc - >/dev/null 2>&1; then
	need libc6-dev "the C library's and kernel's headers"
fi
[ ${#missing[@]} -eq 0 ]
