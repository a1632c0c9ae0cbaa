# SPDX-License-Identifier: Apache-2.0
"""Admin commands. Each handler returns the completion's result; None: it completes later."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Protocol

from hmb_producer_sim.nvme import identify
from hmb_producer_sim.nvme.command import Command, CommandError, Status, to_guest
from hmb_producer_sim.nvme.guest import GuestMemory
from hmb_producer_sim.nvme.hmb import HostMemoryBuffer, Refused, Request
from hmb_producer_sim.nvme.namespace import Namespace
from hmb_producer_sim.nvme.pci import VECTORS
from hmb_producer_sim.nvme.queues import CompletionQueue, SubmissionQueue
from hmb_producer_sim.nvme.referee import Referee
from hmb_producer_sim.nvme.settings import HMB_UNIT, DriveSettings

MAX_IO_QUEUES = 8
MAX_ENTRIES = 1024

POWER, TEMPERATURE, QUEUES, VECTOR_CONFIG, EVENTS, HMB = 0x02, 0x04, 0x07, 0x09, 0x0B, 0x0D
# Features that are values and nothing else, with their defaults.
PLAIN_FEATURES = {
    0x01: 0,  # arbitration
    TEMPERATURE: 353,
    0x05: 0,  # error recovery
    0x06: 0,  # volatile write cache: there is none
    0x08: 0,  # interrupt coalescing: never done, so any value is honoured
    VECTOR_CONFIG: 0,
    0x0A: 0,  # write atomicity
    EVENTS: 0,
}
EHM, MR, HMNARE = 1, 2, 4


class Controls(Protocol):
    """What admin commands act on: the controller."""

    settings: DriveSettings
    guest: GuestMemory
    referee: Referee
    namespace: Namespace
    hmb: HostMemoryBuffer
    completions: dict[int, CompletionQueue]
    submissions: dict[int, SubmissionQueue]

    @property
    def entry_sizes(self) -> tuple[int, int]:
        """CC.IOSQES and CC.IOCQES."""

    def take_hmb(self, request: Request) -> None:
        """Raises Refused, BadAccess."""

    def leave_hmb(self, then: Callable[[], None]) -> None:
        """Give the buffer back, then call."""

    def update_gate(self) -> None:
        """The power state has changed."""

    def complete_later(
        self, command: Command, result: int, status: Status = Status.SUCCESS
    ) -> None:
        """Complete a command that a handler left open."""


class Admin:
    """The admin command set on a controller."""

    def __init__(self, controller: Controls) -> None:
        self._c = controller
        self.features: dict[int, int] = {}
        self.power_state = 0
        self.event_requests: list[Command] = []
        self._handlers: dict[int, Callable[[Command], int | None]] = {
            0x00: self._delete_submission,
            0x01: self._create_submission,
            0x02: self._get_log,
            0x04: self._delete_completion,
            0x05: self._create_completion,
            0x06: self._identify,
            0x08: self._abort,
            0x09: self._set_features,
            0x0A: self._get_features,
            0x0C: self._event_request,
        }
        self.reset()

    def reset(self) -> None:
        """As after a controller reset."""
        self.features = dict(PLAIN_FEATURES)
        self.power_state = 0
        self.event_requests = []

    def execute(self, command: Command) -> int | None:
        """Raises CommandError, BadAccess."""
        handler = self._handlers.get(command.opcode)
        if handler is None:
            raise CommandError(Status.INVALID_OPCODE)
        return handler(command)

    # ---- queues ----

    @staticmethod
    def _new_queue(command: Command, known: dict[int, object]) -> tuple[int, int]:
        number, size = command.dw(10) & 0xFFFF, (command.dw(10) >> 16) + 1
        if not 0 < number <= MAX_IO_QUEUES or number in known:
            raise CommandError(Status.INVALID_QID)
        if not 2 <= size <= MAX_ENTRIES:
            raise CommandError(Status.INVALID_QUEUE_SIZE)
        if not command.dw(11) & 1 or command.prp1 % 4096:  # CAP.CQR: contiguous queues
            raise CommandError(Status.INVALID_FIELD)
        return number, size

    def _create_completion(self, command: Command) -> int:
        number, size = self._new_queue(command, dict(self._c.completions))
        vector = command.dw(11) >> 16
        if vector >= VECTORS:
            raise CommandError(Status.INVALID_VECTOR)
        if self._c.entry_sizes != (6, 4):
            raise CommandError(Status.INVALID_QUEUE_SIZE)
        wanted = vector if command.dw(11) & 2 else None
        self._c.completions[number] = CompletionQueue(number, command.prp1, size, wanted)
        return 0

    def _create_submission(self, command: Command) -> int:
        number, size = self._new_queue(command, dict(self._c.submissions))
        completion = self._c.completions.get(command.dw(11) >> 16)
        if completion is None or completion.number == 0:
            raise CommandError(Status.INVALID_CQ)
        self._c.submissions[number] = SubmissionQueue(number, command.prp1, size, completion)
        return 0

    def _delete_submission(self, command: Command) -> int:
        number = command.dw(10) & 0xFFFF
        if not number or self._c.submissions.pop(number, None) is None:
            raise CommandError(Status.INVALID_QID)
        return 0

    def _delete_completion(self, command: Command) -> int:
        number = command.dw(10) & 0xFFFF
        if not number or number not in self._c.completions:
            raise CommandError(Status.INVALID_QID)
        if any(sq.completion.number == number for sq in self._c.submissions.values()):
            raise CommandError(Status.INVALID_QUEUE_DELETION)
        del self._c.completions[number]
        return 0

    # ---- identify and logs ----

    def _identify(self, command: Command) -> int:
        settings, kind = self._c.settings, command.dw(10) & 0xFF
        if kind == 0x01:
            data = identify.controller(settings)
        elif kind == 0x02:
            data = identify.namespace_list(settings, command.nsid)
        elif kind in (0x00, 0x03):
            if command.nsid not in (1, 0xFFFFFFFF) or not settings.namespace_size:
                raise CommandError(Status.INVALID_NAMESPACE)
            make = identify.namespace if kind == 0 else identify.namespace_identifiers
            data = make(settings)
        else:
            raise CommandError(Status.INVALID_FIELD)
        to_guest(command, self._c.guest, data)
        return 0

    def _log(self, page: int) -> bytes:
        if page == 0x01:
            return bytes(64)
        if page == 0x02:
            return identify.smart_log(self._c.namespace.reads, self._c.namespace.writes)
        if page == 0x03:
            return identify.firmware_log(self._c.settings)
        raise CommandError(Status.INVALID_LOG_PAGE)

    def _get_log(self, command: Command) -> int:
        size = 4 * ((command.dw(10) >> 16 | (command.dw(11) & 0xFFFF) << 16) + 1)
        at = command.dw(12) | command.dw(13) << 32
        log = self._log(command.dw(10) & 0xFF)
        if at > len(log) or at % 4 or size > 1 << 17:
            raise CommandError(Status.INVALID_FIELD)
        to_guest(command, self._c.guest, log[at : at + size].ljust(size, b"\0"))
        return 0

    # ---- features ----

    def _set_features(self, command: Command) -> int | None:
        number, value = command.dw(10) & 0xFF, command.dw(11)
        if command.dw(10) >> 31:
            raise CommandError(Status.INVALID_FIELD)  # nothing can be saved
        if number == HMB:
            return self._set_hmb(command)
        if number == POWER:
            return self._set_power(value)
        if number == QUEUES:
            if 0xFFFF in (value & 0xFFFF, value >> 16):
                raise CommandError(Status.INVALID_FIELD)
            return (MAX_IO_QUEUES - 1) << 16 | MAX_IO_QUEUES - 1
        if number not in PLAIN_FEATURES:
            raise CommandError(Status.INVALID_FIELD)
        self.features[number] = value
        return 0

    def _get_features(self, command: Command) -> int:
        number, select = command.dw(10) & 0xFF, command.dw(10) >> 8 & 7
        known = {*PLAIN_FEATURES, HMB, POWER, QUEUES}
        if number not in known or select > 3:
            raise CommandError(Status.INVALID_FIELD)
        if select == 3:  # what can be done with it: it can be changed
            return 4
        if number == QUEUES:
            return (MAX_IO_QUEUES - 1) << 16 | MAX_IO_QUEUES - 1
        if select:
            return PLAIN_FEATURES.get(number, 0)
        if number == HMB:
            return self._get_hmb(command)
        return self.power_state if number == POWER else self.features[number]

    def _set_power(self, value: int) -> int:
        if value & 0x1F >= len(identify.POWER_STATES):
            raise CommandError(Status.INVALID_FIELD)
        self.power_state = value & 0x1F
        self._c.update_gate()
        return 0

    @property
    def is_idle_state(self) -> bool:
        """A non-operational power state."""
        return identify.POWER_STATES[self.power_state][1]

    def wake(self) -> None:
        """An I/O command ends a non-operational power state."""
        if self.is_idle_state:
            self.power_state = 0
            self._c.update_gate()

    def _set_hmb(self, command: Command) -> int | None:
        value, hmb = command.dw(11), self._c.hmb
        if not value & EHM:
            if not hmb.is_enabled:
                return 0
            self._c.leave_hmb(lambda: self._c.complete_later(command, 0))
            return None
        if not self._c.settings.hmb_size:
            raise CommandError(Status.INVALID_FIELD)
        if hmb.is_enabled:
            self._c.referee.violation("HMB: enabled while it is enabled")
            raise CommandError(Status.SEQUENCE_ERROR)
        address = command.dw(13) | command.dw(14) << 32
        size = command.dw(12) * HMB_UNIT
        entries = command.dw(15)
        request = Request(size, address, entries, bool(value & MR), bool(value & HMNARE))
        try:
            self._c.take_hmb(request)
        except Refused as why:
            self._c.referee.violation(f"HMB: {why}")
            raise CommandError(Status.INVALID_FIELD) from why
        return 0

    def _get_hmb(self, command: Command) -> int:
        request, data = self._c.hmb.request, bytes(4096)
        if request is not None:
            words = (request.size // HMB_UNIT, request.list_address, request.entries)
            data = struct.pack("<IQI", *words).ljust(4096, b"\0")
        to_guest(command, self._c.guest, data)
        if request is None:
            return 0
        return EHM | (HMNARE if request.restrict else 0)

    # ---- abort and events ----

    def _abort(self, command: Command) -> int:
        queue, cid = command.dw(10) & 0xFFFF, command.dw(10) >> 16
        for waiting in self.event_requests if queue == 0 else ():
            if waiting.cid == cid:
                self.event_requests.remove(waiting)
                self._c.complete_later(waiting, 0, Status.ABORTED)
                return 0
        return 1  # everything else has completed already

    def _event_request(self, command: Command) -> None:
        if len(self.event_requests) > identify.EVENT_LIMIT:
            raise CommandError(Status.TOO_MANY_EVENT_REQUESTS)
        self.event_requests.append(command)

    def event(self, kind: int, info: int, log: int) -> None:
        """Tell the host, if it has asked."""
        if self.event_requests:
            self._c.complete_later(self.event_requests.pop(0), kind | info << 8 | log << 16)
