# SPDX-License-Identifier: Apache-2.0
"""Runs the daemon many times with a fault each; forked, since most of a short run is imports.

Started with tests/native/faults.c preloaded.  Reads cases from stdin, one JSON object a line
({"fault": "CALL:ERRNO:FROM:COUNT:PATTERN", "args": [...], "stderr": PATH}), and answers each
with its exit code, in order.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from cffi import FFI
from hmb_daemon import cli, daemon
from hmb_daemon.host import metrics

from hmb_trace.commandline import run

_AT_ONCE = 3
_TIMEOUT_S = 25
assert daemon and metrics  # imported now, not in every child


def child(case: dict[str, Any], faults: Any) -> int:
    """One run in a process of its own."""
    fd = os.open(case["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(fd, 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    signal.alarm(_TIMEOUT_S)
    faults.hmb_set_fault(case["fault"].encode())
    return run(cli.command, cli.PROGRAM, case["args"])


def main() -> None:
    """Serve."""
    ffi = FFI()
    ffi.cdef("void hmb_set_fault(const char *text);")
    faults: Any = ffi.dlopen(None)
    cases = [json.loads(line) for line in sys.stdin]
    codes: dict[int, int] = {}
    running: dict[int, int] = {}
    for number, case in enumerate(cases):
        while len(running) >= _AT_ONCE:
            _reap(running, codes)
        pid = os.fork()
        if pid == 0:
            os._exit(child(case, faults) & 0xFF)
        running[pid] = number
    while running:
        _reap(running, codes)
    print(json.dumps([codes[number] for number in range(len(cases))]))


def _reap(running: dict[int, int], codes: dict[int, int]) -> None:
    pid, status = os.wait()
    codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    main()
