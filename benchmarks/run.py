#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make bench: every bench_*.py beside this file, or those named.

make bench                                  all of them
make bench BENCH_ARGS="--quick collect"     one, short: a smoke test, not a measurement
BENCH_DIR=/mnt/fast make bench              where the files go (default: here)
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from measure import load  # noqa: E402 - found through the line above


def main() -> None:
    """Run the benchmarks asked for."""
    known = sorted(p.stem.removeprefix("bench_") for p in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*known, []], help=f"of {', '.join(known)}")
    parser.add_argument("--quick", action="store_true", help="small and few: does it run at all?")
    asked = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, {load()}")
    print("Compare ratios within one run. Absolute figures drift with the machine's other guests.")
    for name in asked.names or known:
        importlib.import_module(f"bench_{name}").run(asked.quick)


if __name__ == "__main__":
    main()
