#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every check, all of them even when one fails; the last line says which failed.
# What is not installed is skipped with a word, and fails where CI=true.
set -u
cd "$(dirname "$0")/.." || exit
bin=.venv/bin
failed=()

check() { # check NAME COMMAND...
	local name=$1
	shift
	echo "lint: $name"
	"$@" || failed+=("$name")
}

where_installed() { # where_installed PROGRAM PACKAGE NAME COMMAND...
	local program=$1 package=$2
	shift 2
	if command -v "$program" >/dev/null; then
		check "$@"
	elif [ "${CI:-}" = true ]; then
		failed+=("$1 ($package is not installed)")
	else
		echo "lint: $1 skipped (apt install $package)"
	fi
}

mapfile -t c_files < <(git ls-files '*.[ch]')
mapfile -t shell_files < <(git grep -lI -E '^#!.*\b(ba)?sh\b' -- ':!*.md')

check ruff "$bin/ruff" check .
check "ruff format" "$bin/ruff" format --check .
check mypy "$bin/mypy"
where_installed clang-format clang-format clang-format clang-format --dry-run -Werror "${c_files[@]}"
where_installed shellcheck shellcheck shellcheck shellcheck -x -e SC2187 "${shell_files[@]}"
check licences "$bin/python" scripts/check_licences.py

if [ ${#failed[@]} -gt 0 ]; then
	printf 'lint: FAILED:'
	printf ' %s;' "${failed[@]}"
	echo
	exit 1
fi
echo "lint: all good"
