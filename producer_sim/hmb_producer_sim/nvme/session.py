# SPDX-License-Identifier: Apache-2.0
"""`hmb-firmware-sim --vfio-user SOCKET`: from the socket to the verdict."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from hmb_producer_sim.nvme.device import Device
from hmb_producer_sim.nvme.messages import Connection
from hmb_producer_sim.nvme.referee import Referee
from hmb_producer_sim.nvme.server import IDLE_S, Server
from hmb_producer_sim.nvme.settings import DriveSettings
from hmb_producer_sim.nvme.tracer import Tracer, Work
from hmb_producer_sim.simulator import Stop
from hmb_trace.errors import BusyError, HmbTraceError, from_os_error


@contextlib.contextmanager
def listening(path: Path, *, replace: bool) -> Iterator[socket.socket]:
    """A socket that appears ready: bound elsewhere, then renamed.

    Raises:
        BusyError: the name exists and replace is False.
        CannotCreateError, PermissionDeniedError.
    """
    if not replace and path.exists():
        raise BusyError(f"{path}: exists already; give --replace if it was left behind")
    with socket.socket(socket.AF_UNIX) as server:
        temporary = path.with_name(f"{path.name}.new")
        try:
            temporary.unlink(missing_ok=True)
            server.bind(str(temporary))
            server.listen(1)
            temporary.replace(path)
        except OSError as error:
            raise from_os_error(error, f"cannot create socket {path}", creating=True) from error
        try:
            yield server
        finally:
            path.unlink(missing_ok=True)


def _accept(server: socket.socket, stop: Stop) -> Connection | None:
    while not stop.signals:
        if select.select([server], [], [], IDLE_S)[0]:
            return Connection(server.accept()[0])
    return None


class Session:
    """One client, one run of the workload."""

    def __init__(
        self,
        drive: DriveSettings,
        work: Work,
        say: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._say = say
        self._stop = Stop()
        self._referee = Referee(complain)
        self._tracer = Tracer(work, self._stop, say)
        self._device = Device(drive, self._tracer, self._referee)

    def run(self, path: Path, *, replace: bool) -> None:
        """Serve until the client goes or a signal comes.

        Raises:
            HmbTraceError: exit 1, host or firmware broke a rule; or a file cannot be made.
        """
        with self._stop.handled(lambda: None), listening(path, replace=replace) as server:
            self._say(f"NVMe controller at {path}, waiting for QEMU (vfio-user-pci)")
            connection = _accept(server, self._stop)
            if connection is not None:
                self._serve(connection)
        ledger = self._tracer.finish()
        if ledger is None:
            self._say("firmware never traced: no host offered a slice")
        if self._referee.count:
            raise HmbTraceError(
                f"{self._referee.count} violations; the first: {self._referee.violations[0]}"
            )

    def _serve(self, connection: Connection) -> None:
        try:
            server = Server(self._device, self._referee, self._is_over)
            server.serve(connection)
        finally:
            connection.close()

    def _is_over(self) -> bool:
        return self._stop.signals > 0 or self._tracer.failure is not None
