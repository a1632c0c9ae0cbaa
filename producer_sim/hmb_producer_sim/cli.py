# SPDX-License-Identifier: Apache-2.0
"""hmb-firmware-sim: the command line."""

from __future__ import annotations

import contextlib
import functools
import mmap
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import click

from hmb_producer_sim import ledger as ledgers
from hmb_producer_sim import region as regions
from hmb_producer_sim import workload as workloads
from hmb_producer_sim.engine import Engine, Settings
from hmb_producer_sim.faults import ARGUMENTS
from hmb_producer_sim.faults import parse as parse_fault
from hmb_producer_sim.region import Region
from hmb_producer_sim.simulator import Plan, Simulator, Stop
from hmb_producer_sim.workload import Workload
from hmb_trace import __version__
from hmb_trace.commandline import DURATION, RATE, SIZE, fail, run
from hmb_trace.dumps.kinds import RECORD_MAGIC_BYTES, describe_magic
from hmb_trace.errors import InvalidDataError, UsageError, from_os_error
from hmb_trace.layout import RECORD_MAX_PAYLOAD
from hmb_trace.units import format_size, parse_rate

PROGRAM = "hmb-firmware-sim"
DEFAULT_RING_SIZE = 2 << 20
BY_CLOCK = "clock"
_U32, _U64 = (1 << 32) - 1, (1 << 64) - 1
_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?\Z")


class _Integer(click.ParamType[Any]):
    """A whole number within a range, also as 0x... or 10M."""

    name = "integer"

    def __init__(self, most: int) -> None:
        self._most = most

    @staticmethod
    def _parse(text: str) -> int:
        try:
            return int(text, 0)
        except ValueError:
            pass
        try:
            return parse_rate(text) or 0
        except UsageError:
            return -1

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = value if isinstance(value, int) else self._parse(str(value))
        if not 0 <= number <= self._most:
            self.fail(
                f"found {value!r}, expected a whole number from 0 to {self._most}", param, ctx
            )
        return number


class _Rate(click.ParamType[Any]):
    """Records per second, None for max, or "clock"."""

    name = "n/s|max|clock"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == BY_CLOCK else RATE.convert(value, param, ctx)


class _Fault(click.ParamType[Any]):
    """KIND[:ARGUMENT][@N]."""

    name = "kind[@n]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return parse_fault(value) if isinstance(value, str) else value


class _Range(click.ParamType[Any]):
    """MIN..MAX bytes of payload."""

    name = "min..max"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = _RANGE.match(value) if isinstance(value, str) else None
        if match is None:
            self.fail(f"found {value!r}, expected MIN..MAX bytes such as 0..64", param, ctx)
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high <= RECORD_MAX_PAYLOAD:
            self.fail(
                f"found {value!r}, expected MIN <= MAX <= {RECORD_MAX_PAYLOAD} bytes", param, ctx
            )
        return low, high


@dataclass(frozen=True)
class _Target:
    shm: str | None
    file: Path | None
    device: Path | None
    ring_size: int | None
    keep: bool
    replace: bool
    mode: str

    def open(self) -> Region:
        if sum(one is not None for one in (self.shm, self.file, self.device)) != 1:
            raise UsageError(
                "give exactly one of --shm /NAME, --file PATH, --device PATH and --vfio-user SOCKET"
            )
        if self.device is not None:
            return regions.attach_device(self.device, self.ring_size)
        path = regions.shm_path(self.shm) if self.shm is not None else self.file
        assert path is not None
        return regions.create(
            path,
            self.ring_size or DEFAULT_RING_SIZE,
            ephemeral=self.shm is not None,
            replace=self.replace,
            mode=int(self.mode, 8),
        )


class _Progress:
    """A line on a terminal that says how it goes; silence elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self._shown = sys.stderr.isatty() and not quiet
        self._next = 0.0

    def __call__(self, stats: dict[str, int]) -> None:
        now = time.monotonic()
        if not self._shown or now < self._next:
            return
        self._next = now + 0.25
        state = "  waiting for room" if stats["blocked"] else ""
        unread = format_size(stats["head"] - stats["tail"] & _U64)
        click.echo(
            f"\r\033[K{stats['produced']:,} records  {stats['drops']:,} dropped  "
            f"{unread} unread{state}",
            nl=False,
            err=True,
        )

    def clear(self) -> None:
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        click.echo(f"{PROGRAM}: {text}", err=True)


def _summary(ledger: dict[str, Any]) -> str:
    seconds = ledger["elapsed_s"] or 1e-9
    rate = ledger["produced"] / seconds
    parts = [
        f"{ledger['records']:,} records ({format_size(ledger['bytes'])}) in {seconds:.2f} s, "
        f"{rate:,.0f}/s",
        f"{ledger['dropped'] + ledger['dropped_unseen']:,} dropped",
    ]
    return ", ".join(parts)


def _tell_faults(quiet: bool, faults: list[dict[str, Any]]) -> None:
    for fault in faults:
        if fault["injected"]:
            where = f"seq {fault['seq']}, cursor {fault['cursor']:#x}, record {fault['at']}"
            moved = f" (asked {fault['asked']}; {fault['moved']})" if "moved" in fault else ""
            _say(quiet, f"fault {fault['kind']} at {where}{moved}")
        else:
            _say(quiet, f"fault {fault['kind']} did not happen: {fault['reason']}")


def _decompressed(dump: BinaryIO, path: Path) -> bytes:
    from hmb_trace.dumps.zstd import FrameReader  # noqa: PLC0415 - only for compressed dumps

    frames = FrameReader(dump)
    data = b"".join(iter(lambda: frames.read(1 << 20), b""))
    if frames.fault:
        raise InvalidDataError(f"{path}: {frames.fault}")
    return data


@contextlib.contextmanager
def _replayed(path: Path | None) -> Iterator[memoryview | None]:
    """The bytes of a dump; .zst is unpacked into memory."""
    if path is None:
        yield None
        return
    try:
        with path.open("rb") as dump:
            if path.suffix == ".zst":
                yield memoryview(_decompressed(dump, path))
                return
            head = dump.read(4)
            if head and head != RECORD_MAGIC_BYTES:
                raise InvalidDataError(
                    f"{path}: found {describe_magic(head)}, expected a dump ('RECT')"
                )
            if not head:
                raise InvalidDataError(f"{path}: found an empty dump, expected records to replay")
            with mmap.mmap(dump.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                view = memoryview(mapped)
                try:
                    yield view
                finally:
                    view.release()
    except OSError as error:
        raise from_os_error(error, f"cannot open {path}") from error


def _engine_settings(options: dict[str, Any], ring_size: int, workload: Workload) -> Settings:
    rate = options["rate"] if options["rate_given"] else workload.rate
    return Settings(
        ring_size=ring_size,
        rate=None if rate == BY_CLOCK else rate,
        by_clock=rate == BY_CLOCK,
        seed=options["seed"],
        start_seq=options["start_seq"] or 0,
        start_cursor=options["start_cursor"],
        start_ts_ns=options["start_time"],
        block=options["on_full"] == "block",
        wrap=options["wrap"],
        drops_keep_seq=options["drops_keep_seq"],
        hash=options["ledger_hash"] != "none",
        real_clock=options["clock"] == "host",
        keep_log=any(fault.kind.startswith("reset") for fault in options["fault"]),
        keep_unknown_flags=options["expect_unknown_flags"] == "keep",
        renumber=options["start_seq"] is not None,
    )


def _about(options: dict[str, Any], settings: Settings, workload: Workload) -> dict[str, Any]:
    return {
        "ring_size": settings.ring_size,
        "workload": workload.name,
        "seed": settings.seed,
        "start_seq": settings.start_seq,
        "start_cursor": settings.start_cursor,
        "rate": BY_CLOCK if settings.by_clock else settings.rate,
        "wrap": settings.wrap,
        "on_full": options["on_full"],
        "drops_keep_seq": settings.drops_keep_seq,
        "clock": options["clock"],
        "simulator": __version__,
    }


def _linger(options: dict[str, Any]) -> int | None:
    """Memory that goes away with us waits for its reader; what stays need not."""
    given: int | None = options["linger"]
    if given is not None:
        return given
    return None if options["shm"] is not None and not options["keep"] else 0


def _await_consumer(region: Region, stop: Stop, patience_ns: int) -> bool:
    """Wait until a consumer has attached: True, or False when patience is over."""
    end = time.monotonic_ns() + patience_ns
    while region.consumer() is None:
        if stop.signals or time.monotonic_ns() >= end:
            return False
        time.sleep(0.005)
    return True


def _simulate(
    engine: Engine, region: Region, plan: Plan, *, quiet: bool, await_ns: int | None
) -> None:
    stop = Stop()
    progress = _Progress(quiet)
    simulator = Simulator(engine, plan, stop, progress)
    with stop.handled(engine.stop):
        region.publish()
        _say(quiet, f"ring of {format_size(region.ring_size)} at {region.path}")
        if await_ns is not None and not _await_consumer(region, stop, await_ns):
            _say(quiet, "no consumer came, starting without one")
        ledger = simulator.run()
        progress.clear()
        _say(quiet, _summary(ledger))
        _tell_faults(quiet, ledger["faults"])
        if plan.linger_ns != 0 and not engine.is_drained():
            _say(quiet, "waiting until a consumer has read the rest (Ctrl-C to leave)")
        if not simulator.drain() and plan.linger_ns != 0:
            stats = engine.stats()
            _say(quiet, f"left with {stats['head'] - stats['tail'] & _U64} bytes unread")


def _drive_settings(options: dict[str, Any]) -> Any:
    from hmb_producer_sim.nvme.settings import HMB_UNIT, DriveSettings  # noqa: PLC0415 - numpy

    for name in ("hmb_size", "hmb_min", "hmb_min_descriptor", "namespace_size"):
        if options[name] % HMB_UNIT:
            text = f"found {options[name]} bytes, expected a multiple of {HMB_UNIT}"
            raise UsageError(f"--{name.replace('_', '-')}: {text}")
    if options["hmb_min"] > options["hmb_size"]:
        raise UsageError("--hmb-min: more than --hmb-size")
    if options["ring_size"] is not None:
        regions.check_ring_size(options["ring_size"])
    names = ("serial", "model", "hmb_size", "hmb_min", "hmb_min_descriptor", "hmb_max_descriptors")
    same = {
        name: options[name] for name in (*names, "namespace_size", "ring_size", "restrict_idle")
    }
    return DriveSettings(**same, firmware=options["firmware_revision"], drain_ns=options["drain"])


def _run_drive(options: dict[str, Any]) -> None:
    """The simulator as an NVMe controller."""
    from hmb_producer_sim.nvme.session import Session  # noqa: PLC0415 - needs numpy
    from hmb_producer_sim.nvme.tracer import Work  # noqa: PLC0415 - only here

    if options["fault"]:
        raise UsageError("--fault: not with --vfio-user; resets are the host's there")
    _check(options)
    drive = _drive_settings(options)
    workload = workloads.load(options["workload"], options["payload"])
    with _replayed(options["replay"]) as replay:
        settings = _engine_settings(options, DEFAULT_RING_SIZE, workload)
        settings = replace(settings, keep_log=True, start_cursor=0)
        plan = Plan(
            count=options["count"],
            duration_ns=options["duration"],
            freeze_at_end=options["freeze_at_end"],
            ledger=options["ledger"],
            hashed=settings.hash,
            about=_about(options, settings, workload),
        )
        say = functools.partial(_say, options["quiet"])
        work = Work(settings, workload, replay, plan)
        session = Session(drive, work, say, functools.partial(fail, PROGRAM))
        session.run(options["vfio_user"], replace=options["replace"])


def _check(options: dict[str, Any]) -> None:
    if options["start_cursor"] % 8:
        raise UsageError(
            f"--start-cursor: found {options['start_cursor']}, expected a multiple of 8"
        )
    if options["replay"] is not None and options["payload"] is not None:
        raise UsageError("--payload: a replay has the payloads of its dump")
    if options["ledger"] is not None:
        ledgers.check(options["ledger"])


def _run(target: _Target, options: dict[str, Any]) -> None:
    _check(options)
    workload = workloads.load(options["workload"], options["payload"])
    with (
        _replayed(options["replay"]) as replay,
        regions.cleaned(target.open(), keep=options["keep"]) as region,
    ):
        settings = _engine_settings(options, region.ring_size, workload)
        engine = Engine(region.memory, settings, workload, replay)
        try:
            plan = Plan(
                count=options["count"],
                duration_ns=options["duration"],
                freeze_at_end=options["freeze_at_end"],
                linger_ns=_linger(options),
                ledger=options["ledger"],
                hashed=settings.hash,
                faults=options["fault"],
                about=_about(options, settings, workload),
            )
            _simulate(
                engine,
                region,
                plan,
                quiet=options["quiet"],
                await_ns=options["await_consumer"],
            )
        finally:
            engine.close()


def _print_catalog(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        click.echo((workloads.DIRECTORY / f"{value}.toml").read_text(encoding="utf-8"), nl=False)
        ctx.exit(0)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--shm", metavar="/NAME", help="POSIX shared memory to make the ring in.")
@click.option("--file", type=click.Path(path_type=Path), help="Plain file to make the ring in.")
@click.option(
    "--device",
    type=click.Path(path_type=Path),
    help="Existing memory to write the ring to: a PCI resource file, a character device.",
)
@click.option(
    "--vfio-user",
    type=click.Path(path_type=Path),
    metavar="SOCKET",
    help="Be an NVMe drive for QEMU (10.1 or later), tracing into the Host Memory Buffer.",
)
@click.option(
    "--hmb-size", type=SIZE, default="64MiB", show_default=True, help="Drive: preferred HMB."
)
@click.option("--hmb-min", type=SIZE, default="0", show_default=True, help="Drive: least HMB.")
@click.option(
    "--hmb-min-descriptor",
    type=SIZE,
    default="0",
    show_default=True,
    help="Drive: least size of a piece of the HMB (HMMINDS).",
)
@click.option(
    "--hmb-max-descriptors",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Drive: most pieces of the HMB (HMMAXD), 0: any number.",
)
@click.option("--serial", default="HMBTRACE0001", show_default=True, help="Drive: serial number.")
@click.option(
    "--model", default="hmb-firmware-sim NVMe", show_default=True, help="Drive: model number."
)
@click.option(
    "--firmware-revision", default=__version__, show_default=True, help="Drive: firmware revision."
)
@click.option(
    "--namespace-size", type=SIZE, default="16MiB", show_default=True, help="Drive: in memory."
)
@click.option(
    "--restrict-idle",
    is_flag=True,
    help="Drive: leave the HMB alone in non-operational power states, also without HMNARE.",
)
@click.option(
    "--drain",
    type=DURATION,
    default="200ms",
    show_default=True,
    help="Drive: how long a reset or disable waits until the host has read the ring.",
)
@click.option(
    "--ring-size",
    type=SIZE,
    help="Record area, a power of two.  [default: 2MiB; of a drive: what fits]",
)
@click.option(
    "--rate",
    type=_Rate(),
    help="Records per second; max; or clock: when the firmware clock (of the workload, of the "
    "dump) says so.  [default: the workload's]",
)
@click.option("--count", type=_Integer(_U64), help="Records to produce.  [default: no end]")
@click.option("--duration", type=DURATION, help="How long to produce.  [default: no end]")
@click.option(
    "--payload", type=_Range(), help="Payload bytes, MIN..MAX.  [default: the workload's]"
)
@click.option(
    "--workload",
    default="uniform",
    show_default=True,
    metavar="ftl|uniform|burst|FILE.toml",
    help="What is traced.",
)
@click.option("--replay", type=click.Path(path_type=Path), help="Records of this dump instead.")
@click.option(
    "--seed", type=_Integer(_U64), default=1, show_default=True, help="Same seed, same records."
)
@click.option("--start-seq", type=_Integer(_U32), help="First sequence number.  [default: 0]")
@click.option(
    "--start-cursor", type=_Integer(_U64), default=0, show_default=True, help="First head."
)
@click.option(
    "--start-time", type=DURATION, default="1s", show_default=True, help="First firmware time."
)
@click.option(
    "--clock",
    type=click.Choice(["virtual", "host"]),
    default="virtual",
    show_default=True,
    help="ts_ns: reproducible, or the host's monotonic clock.",
)
@click.option("--on-full", type=click.Choice(["drop", "block"]), default="drop", show_default=True)
@click.option("--drops-keep-seq", is_flag=True, help="Drops leave no gap in seq.")
@click.option(
    "--wrap",
    type=click.Choice(["marker", "straddle", "seq-marker"]),
    default="marker",
    show_default=True,
    help="What firmware does at the end of a lap.",
)
@click.option(
    "--fault",
    type=_Fault(),
    multiple=True,
    help="Do it wrong before record N, by default in the middle; may be repeated. Kinds: "
    + ", ".join(ARGUMENTS)
    + ".",
)
@click.option("--freeze-at-end", is_flag=True, help="Set FROZEN after the last record.")
@click.option("--ledger", type=click.Path(path_type=Path), help="Account of what was written.")
@click.option(
    "--ledger-hash", type=click.Choice(["fnv64", "none"]), default="fnv64", show_default=True
)
@click.option(
    "--expect-unknown-flags",
    type=click.Choice(["reject", "keep"]),
    default="reject",
    show_default=True,
    help="The consumer's --unknown-flags, for the ledger.",
)
@click.option(
    "--linger",
    type=DURATION,
    help="Longest wait for a consumer at the end.  [default: none; --shm without --keep: no bound]",
)
@click.option(
    "--await-consumer",
    type=DURATION,
    help="Start when a consumer has attached, at the latest after this time.",
)
@click.option("--keep", is_flag=True, help="Leave the shared memory behind.")
@click.option("--replace", is_flag=True, help="Take over a name that exists.")
@click.option(
    "--mode",
    type=click.Choice(["600", "660", "666"]),
    default="600",
    show_default=True,
    help="Permissions of the ring.",
)
@click.option("--quiet", "-q", is_flag=True, help="Say nothing but errors.")
@click.option(
    "--print-catalog",
    type=click.Choice(workloads.BUILT_IN),
    expose_value=False,
    is_eager=True,
    callback=_print_catalog,
    help="Print the event catalog of a built-in workload.",
)
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def hmb_firmware_sim(ctx: click.Context, /, **options: Any) -> None:
    """SSD firmware in a process: writes trace records into a ring in shared memory.

    \b
    Examples:
      hmb-firmware-sim --shm /hmb0 --workload ftl --rate 200k/s --duration 10s --ledger run.json
      hmb-firmware-sim --file ring.bin --ring-size 4KiB --count 50 --payload 0..64
      hmb-firmware-sim --shm /hmb0 --rate max --count 10M --on-full block --freeze-at-end
      hmb-firmware-sim --vfio-user /run/drive.sock --workload ftl --rate 20k/s

    The ring is complete before its name appears. TERM and INT end the workload in order.
    """
    options["rate_given"] = (
        ctx.get_parameter_source("rate") is not click.core.ParameterSource.DEFAULT
    )
    if options["vfio_user"] is not None:
        if any(options[name] is not None for name in ("shm", "file", "device")):
            raise UsageError(
                "--vfio-user: the host gives the memory; leave --shm, --file, --device"
            )
        _run_drive(options)
        return
    target = _Target(
        *(options[key] for key in ("shm", "file", "device", "ring_size", "keep", "replace", "mode"))
    )
    _run(target, options)


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of hmb-firmware-sim; returns the exit code."""
    return run(hmb_firmware_sim, PROGRAM, args)


if __name__ == "__main__":
    sys.exit(main())
