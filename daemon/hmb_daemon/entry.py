# SPDX-License-Identifier: Apache-2.0
"""Entry point: signals wait until somebody can answer them, then everything else is imported.

HUP, USR1 and USR2 end a process that has no handler for them, and the imports take a while.
host.signals lets them through once its handlers stand.
"""

import signal
import sys

WAITING = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Run hmb-trace-daemon."""
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITING)
    from hmb_daemon import cli  # noqa: PLC0415 - the point of this module

    sys.exit(cli.main())
