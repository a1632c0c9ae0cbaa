# SPDX-License-Identifier: Apache-2.0
"""The controller: registers, doorbells, resets, and when firmware may touch the host's memory."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hmb_producer_sim.nvme.admin import MAX_ENTRIES, MAX_IO_QUEUES, Admin
from hmb_producer_sim.nvme.command import Command, CommandError, Status
from hmb_producer_sim.nvme.guest import BadAccess, GuestMemory
from hmb_producer_sim.nvme.hmb import HostMemoryBuffer, Request
from hmb_producer_sim.nvme.identify import VERSION
from hmb_producer_sim.nvme.namespace import Namespace
from hmb_producer_sim.nvme.pci import Vectors
from hmb_producer_sim.nvme.queues import CompletionQueue, SubmissionQueue
from hmb_producer_sim.nvme.referee import Referee
from hmb_producer_sim.nvme.settings import DriveSettings
from hmb_producer_sim.nvme.tracer import Tracer
from hmb_trace.layout import RECORD_AREA_OFF

READY_TIMEOUT = 255  # CAP.TO, in 500 ms: a reset may have to wait until the ring is read
CC, CSTS, AQA, ASQ, ACQ, DOORBELLS = 0x14, 0x1C, 0x24, 0x28, 0x30, 0x1000
CC_ENABLE, CC_SHUTDOWN = 1, 3 << 14
CSTS_READY, CSTS_FATAL, CSTS_SHUTTING, CSTS_SHUT_DOWN = 1, 2, 1 << 2, 2 << 2
_TAIL = slice(0x18, 0x20)


@dataclass
class _Leaving:
    """The host takes the buffer back; it is answered once the ring is read, or time is over."""

    deadline: float
    then: list[Callable[[], None]] = field(default_factory=list)


class Controller:
    """All state that a controller reset clears, and what survives it."""

    def __init__(
        self,
        settings: DriveSettings,
        guest: GuestMemory,
        vectors: Vectors,
        tracer: Tracer,
        referee: Referee,
    ) -> None:
        self.settings = settings
        self.guest = guest
        self.referee = referee
        self.namespace = Namespace(settings.namespace_size, guest)
        self.hmb = HostMemoryBuffer(settings, guest, referee)
        self.completions: dict[int, CompletionQueue] = {}
        self.submissions: dict[int, SubmissionQueue] = {}
        self._admin = Admin(self)
        self._vectors = vectors
        self._tracer = tracer
        self._cc = self._csts = self._aqa = self._asq = self._acq = self._masked = 0
        self._leaving: _Leaving | None = None
        self._firmware_restarts = True  # at the next buffer: sequence numbers begin anew
        self._seen_restricted: bytes | None = None

    # ---- registers ----

    @property
    def entry_sizes(self) -> tuple[int, int]:
        """CC.IOSQES and CC.IOCQES."""
        return self._cc >> 16 & 15, self._cc >> 20 & 15

    def read_registers(self) -> bytes:
        """The first 64 bytes of BAR 0."""
        capabilities = (MAX_ENTRIES - 1) | 1 << 16 | READY_TIMEOUT << 24 | 1 << 37
        first = (capabilities, VERSION, self._masked, self._masked, self._cc, 0, self._csts, 0)
        return struct.pack("<QIIIIIIIIQQ", *first, self._aqa, self._asq, self._acq).ljust(64, b"\0")

    def write_register(self, at: int, data: bytes) -> None:
        """A write below the doorbells."""
        value = int.from_bytes(data, "little")
        if at == CC:
            self._write_cc(value)
        elif at in (0x0C, 0x10):  # INTMS, INTMC: without meaning under MSI-X
            self._masked = self._masked | value if at == 0x0C else self._masked & ~value
        elif AQA <= at < ACQ + 8:
            self._write_admin_queue(at, data)

    def _write_admin_queue(self, at: int, data: bytes) -> None:
        if self._cc & CC_ENABLE:
            self.referee.violation("admin queue registers written while the controller is enabled")
        image = bytearray(struct.pack("<IQQ", self._aqa, self._asq, self._acq))
        image[at - AQA : at - AQA + len(data)] = data
        self._aqa, self._asq, self._acq = struct.unpack("<IQQ", image[:20])

    def _write_cc(self, value: int) -> None:
        before, self._cc = self._cc, value
        if value & CC_ENABLE and not before & CC_ENABLE:
            self._enable()
        elif before & CC_ENABLE and not value & CC_ENABLE:
            self.leave_hmb(self._disabled)
        if value & CC_SHUTDOWN and not before & CC_SHUTDOWN:
            self._csts |= CSTS_SHUTTING
            self._freeze()
            self.leave_hmb(self._shut_down)

    def _enable(self) -> None:
        if self._leaving is not None:
            self.referee.violation("CC.EN set before CSTS.RDY was 0")
            self._end_leaving()
        sizes = (self._aqa & 0xFFF) + 1, (self._aqa >> 16 & 0xFFF) + 1
        wrong = self._asq % 4096 or self._acq % 4096 or self._cc >> 4 & 7 or self._cc >> 7 & 15
        if wrong or min(sizes) < 2 or not self.guest.is_bus_master:
            self.referee.violation(
                f"controller enabled with CC {self._cc:#x}, AQA {self._aqa:#x}, "
                f"ASQ {self._asq:#x}, ACQ {self._acq:#x}, bus master {self.guest.is_bus_master}"
            )
            self._csts = CSTS_FATAL
            return
        completion = CompletionQueue(0, self._acq, sizes[1], 0)
        self.completions = {0: completion}
        self.submissions = {0: SubmissionQueue(0, self._asq, sizes[0], completion)}
        self._csts = CSTS_READY

    def _disabled(self) -> None:
        self._forget()
        self._csts = 0

    def _shut_down(self) -> None:
        self._csts = self._csts & ~CSTS_SHUTTING | CSTS_SHUT_DOWN

    def _forget(self) -> None:
        self.completions, self.submissions = {}, {}
        self._admin.reset()

    def function_reset(self, why: str) -> None:
        """FLR or power cycle: at once, firmware starts anew."""
        self._leaving = None
        self._release_hmb()
        self._forget()
        self._cc = self._csts = self._aqa = self._asq = self._acq = 0
        self._firmware_restarts = True
        self.referee.note("reset", why)

    # ---- the buffer ----

    def take_hmb(self, request: Request) -> None:
        """Raises Refused, BadAccess."""
        self.hmb.enable(request)
        text = f"HMB of {request.size >> 20} MiB in {request.entries} descriptors"
        self.referee.note("hmb", f"{text}{', returned' if request.is_return else ''}")
        if self.hmb.slice_view is not None:
            size = self.hmb.ring_size
            self._tracer.begin(self.hmb.ring_view, size, restart=self._firmware_restarts)
            self._firmware_restarts = False
        self.update_gate()

    def leave_hmb(self, then: Callable[[], None]) -> None:
        """Firmware writes no more; once the host has read the ring, `then` answers it."""
        self._tracer.allow(False)
        if self._leaving is None:
            self._leaving = _Leaving(time.monotonic() + self.settings.drain_ns / 1e9)
        self._leaving.then.append(then)
        self.poll()

    @property
    def is_waiting(self) -> bool:
        """Call poll() soon."""
        return self._leaving is not None

    def poll(self) -> None:
        """Go on with what waits for the host."""
        waits = self._leaving
        if waits is None:
            return
        if (
            not self.hmb.is_enabled
            or self._tracer.is_drained()
            or time.monotonic() > waits.deadline
        ):
            self._end_leaving()

    def _end_leaving(self) -> None:
        waits, self._leaving = self._leaving, None
        self._release_hmb()
        for then in waits.then if waits else ():
            then()

    def _release_hmb(self) -> None:
        if not self.hmb.is_enabled:
            return
        self._tracer.allow(False)
        self._look_after_restriction()
        self.hmb.audit(self._tracer.foreign_write)
        self._tracer.leave()
        self.hmb.release()

    def lose_memory(self) -> None:
        """The client unmaps memory that the host has lent: firmware must be out of it first."""
        self.referee.note("unmap", "memory of the enabled HMB was unmapped; firmware has stopped")
        self._leaving = None
        self._release_hmb()
        self._csts |= CSTS_FATAL

    def _freeze(self) -> None:
        self._tracer.allow(False)
        if self.hmb.is_enabled and not self.is_restricted:
            self._tracer.freeze()

    @property
    def is_restricted(self) -> bool:
        """True where firmware must leave an enabled buffer alone for now."""
        request = self.hmb.request
        asked = self.settings.restrict_idle or (request is not None and request.restrict)
        return (asked and self._admin.is_idle_state) or not self.guest.is_bus_master

    def update_gate(self) -> None:
        """After anything that changes whether firmware may touch the buffer."""
        enabled = self.hmb.is_enabled and self._leaving is None
        restricted = self.is_restricted
        self._tracer.allow(enabled and not restricted)
        if enabled and restricted and self._seen_restricted is None and self.hmb.slice_view:
            self._seen_restricted = bytes(self.hmb.slice_view)
            self.referee.note("restricted", "firmware leaves the HMB alone")
        elif not restricted:
            self._look_after_restriction()

    def _look_after_restriction(self) -> None:
        """Was the ring left alone by firmware while it had to be?"""
        before, self._seen_restricted = self._seen_restricted, None
        if before is None or self.hmb.slice_view is None:
            return
        now = bytearray(self.hmb.slice_view)
        now[_TAIL] = before[_TAIL]
        if now != before and self._tracer.foreign_write() is None:
            end = RECORD_AREA_OFF + self.hmb.ring_size
            at = next(i for i in range(end) if now[i] != before[i])
            self.referee.violation(f"firmware touched the HMB in a restricted state, byte {at:#x}")

    # ---- queues ----

    def ring_doorbell(self, index: int, value: int) -> None:
        """Doorbell number `index` in BAR 0: tail of a submission queue or head of the other."""
        number, is_head = index >> 1, index & 1
        queues = self.completions if is_head else self.submissions
        queue = queues.get(number)
        if is_head and not self._cc & CC_ENABLE:
            # Linux (6.1) reaps what had completed when it disabled the controller, and says so.
            self.referee.note("doorbell", "doorbell of a completion queue after CC.EN = 0, ignored")
        elif not self._csts & CSTS_READY or number > MAX_IO_QUEUES or queue is None:
            self._bad_doorbell(f"doorbell of queue {number}, which does not exist", 0)
        elif value >= queue.size:
            self._bad_doorbell(f"doorbell of queue {number}: {value}, size {queue.size}", 1)
        elif isinstance(queue, SubmissionQueue):
            queue.tail = value
            self._run(queue)
        else:
            queue.head = value
            self._resume(queue)

    def _bad_doorbell(self, text: str, info: int) -> None:
        self.referee.violation(text)
        self._admin.event(0, info, 1)

    def _resume(self, completion: CompletionQueue) -> None:
        try:
            if completion.flush(self.guest):
                self._interrupt(completion)
        except BadAccess as error:
            self._fatal(error)
            return
        for queue in list(self.submissions.values()):
            if queue.completion is completion:
                self._run(queue)

    def _run(self, queue: SubmissionQueue) -> None:
        posted = False
        try:
            while not queue.is_empty and queue.completion.has_room:
                posted |= self._execute(queue, queue.fetch(self.guest))
        except BadAccess as error:
            self._fatal(error)
        if posted:
            self._interrupt(queue.completion)

    def _fatal(self, error: BadAccess) -> None:
        """The queues themselves cannot be reached."""
        self.referee.violation(f"a queue cannot be reached: {error}")
        self._csts |= CSTS_FATAL

    def _execute(self, queue: SubmissionQueue, command: Command) -> bool:
        """True if a completion was posted."""
        status, result = Status.SUCCESS, None
        try:
            result = self._dispatch(queue, command)
        except CommandError as error:
            status, result = error.status, 0
        except BadAccess as error:
            where = f"queue {queue.number}, opcode {command.opcode:#04x}"
            self.referee.violation(f"{where}: {error}")
            status, result = Status.DATA_TRANSFER_ERROR, 0
        if result is None or self.submissions.get(queue.number) is not queue:
            return False
        return queue.completion.post(self.guest, queue.entry(command, status, result))

    def _dispatch(self, queue: SubmissionQueue, command: Command) -> int | None:
        if queue.number == 0:
            return self._admin.execute(command)
        self._admin.wake()
        self.namespace.execute(command)
        return 0

    def complete_later(
        self, command: Command, result: int, status: Status = Status.SUCCESS
    ) -> None:
        """Complete an admin command that was answered with None."""
        queue = self.submissions.get(0)
        if queue is None:
            return
        try:
            if queue.completion.post(self.guest, queue.entry(command, status, result)):
                self._interrupt(queue.completion)
        except BadAccess as error:
            self._fatal(error)

    def _interrupt(self, completion: CompletionQueue) -> None:
        if completion.vector is not None:
            self._vectors.raise_(completion.vector)
