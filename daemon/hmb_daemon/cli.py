# SPDX-License-Identifier: Apache-2.0
"""hmb-trace-daemon: the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hmb_daemon import config
from hmb_trace import __version__
from hmb_trace.commandline import DURATION, SIZE, run
from hmb_trace.errors import ConfigError, UsageError

PROGRAM = "hmb-trace-daemon"
_PREFIX = "HMB_TRACE"  # of the environment
_META = ("config", "check_config", "print_config")
# Whether it may be read shows when it is opened: that error has an exit code of its own (77).
_PATH = click.Path(path_type=Path, readable=False)


def _load_config(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Before all other options: what the files say becomes their defaults."""
    path = value or config.DEFAULT_FILE
    found = config.read_files(path, required=value is not None)
    ctx.default_map = config.defaults_from(found, ctx.command)
    return value


def _raw_value(ctx: click.Context, param: click.Parameter) -> Any:
    """A parameter's value as a person would write it, for --print-config."""
    assert param.name is not None
    source = ctx.get_parameter_source(param.name)
    if source is click.core.ParameterSource.COMMANDLINE:
        return ctx.meta["raw"].get(param.name, ctx.params[param.name])
    raw, _ = param.consume_value(ctx, {})
    return raw


def _print_config(ctx: click.Context) -> None:
    values = {}
    for param in ctx.command.params:
        if not isinstance(param, click.Option) or not param.name or param.name in _META:
            continue
        if not param.is_eager and ctx.params[param.name] is not None:
            values[param.name] = _raw_value(ctx, param)
    click.echo(config.as_toml(values), nl=False)


class _Command(click.Command):
    """Remembers the text of the arguments, so that --print-config can say it again."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        raw, _, _ = parser.parse_args(list(args))
        ctx.meta["raw"] = raw
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if _from_environment(ctx, error.param):
                assert error.param is not None
                name = f"{_PREFIX}_{error.param.name}".upper()
                raise ConfigError(f"{name} in the environment: {error.message}") from error
            raise


def _from_environment(ctx: click.Context, param: click.Parameter | None) -> bool:
    if param is None or param.name is None:
        return False
    return ctx.get_parameter_source(param.name) is click.core.ParameterSource.ENVIRONMENT


@click.command(
    cls=_Command,
    context_settings={"auto_envvar_prefix": _PREFIX, "help_option_names": ["-h", "--help"]},
)
@click.option(
    "--config",
    type=_PATH,
    is_eager=True,
    callback=_load_config,
    help="TOML file instead of /etc/hmb-trace/daemon.toml (and its drop-ins in daemon.d/*.toml).",
)
@click.option("--device", metavar="PATH", help="Device node, ring file or shm:/NAME.")
@click.option(
    "--output-dir",
    type=_PATH,
    metavar="DIR",
    help="Directory of the dump set; made when missing.",
)
@click.option("--output", metavar="FILE|-", help="One dump file instead of a set; - is stdout.")
@click.option(
    "--wait",
    is_flag=True,
    help="Where there is no ring yet, wait for one instead of exit 65 or 66.",
)
@click.option("--once", is_flag=True, help="Drain what is there, seal, exit.")
@click.option("--duration", type=DURATION, help="Stop after so long.")
@click.option(
    "--rotate-size",
    type=config.ROTATE_SIZE,
    default="1GiB",
    show_default=True,
    help="New segment after so much, at least 64KiB; 0: never.",
)
@click.option(
    "--rotate-interval", type=DURATION, default="0", help="New segment after so long; 0: never."
)
@click.option(
    "--max-total-size", type=SIZE, default="0", help="Delete the oldest sealed segments beyond it."
)
@click.option("--max-age", type=DURATION, default="0", help="Delete sealed segments older than it.")
@click.option(
    "--compress",
    type=config.COMPRESS,
    default="none",
    help="Compress sealed segments: zstd[:LEVEL].",
)
@click.option("--spool-size", type=SIZE, help="Default: RAM/32, between 64MiB and 1GiB.")
@click.option(
    "--spool-dir",
    type=_PATH,
    help="A directory in a tmpfs; default: the service's runtime directory or /dev/shm.",
)
@click.option(
    "--fsync", type=config.FSYNC, default="1s", show_default=True, metavar="never|seal|TIME|always"
)
@click.option(
    "--io",
    type=click.Choice(["auto", "direct", "buffered"]),
    default="auto",
    show_default=True,
    help="Direct I/O keeps the page cache out of it; auto: where the file system takes it.",
)
@click.option(
    "--disk-full", type=click.Choice(["pause", "drop-oldest"]), default="pause", show_default=True
)
@click.option("--on-frozen", type=click.Choice(["wait", "exit"]), default="wait", show_default=True)
@click.option(
    "--on-corrupt", type=click.Choice(["resync", "stop"]), default="resync", show_default=True
)
@click.option(
    "--unknown-flags", type=click.Choice(["reject", "keep"]), default="reject", show_default=True
)
@click.option(
    "--latency", type=DURATION, default="2ms", show_default=True, help="Longest wait while active."
)
@click.option(
    "--peak-rate",
    type=config.PEAK_RATE,
    default="1GB/s",
    show_default=True,
    help="What firmware can emit: waits never take longer than half a ring at this rate.",
)
@click.option(
    "--mode",
    type=click.Choice(["stream", "snapshot"]),
    default="stream",
    show_default=True,
    help="snapshot: a flight recorder that writes only on USR2, on control or at the end.",
)
@click.option("--metrics", metavar="[HOST]:PORT", help="Prometheus endpoint (extra: fleet).")
@click.option("--control", type=_PATH, help="Unix socket for hmb-trace ctl.")
@click.option("--label", help="First part of segment names; default: from the device.")
@click.option("--log-format", type=click.Choice(["auto", "console", "json"]), default="auto")
@click.option("--log-level", type=click.Choice(config.LOG_LEVELS), default="info")
@click.option("--check-config", is_flag=True, help="Say whether options and files are good; exit.")
@click.option("--print-config", is_flag=True, help="Print what is in force as TOML; exit.")
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Drain an SSD's trace ring into dump files, without ever losing silently.

    \b
    Examples:
      hmb-trace-daemon --device /dev/nvme0-hmbtrace --output-dir /var/lib/hmb-trace
      hmb-trace-daemon --device shm:/ring --output-dir dumps --once
      hmb-trace-daemon --device shm:/ring --output - | hmb-trace decode -

    \b
    Signals: TERM and INT drain, seal and exit; HUP reloads the configuration;
    USR1 seals and begins a new segment; USR2 writes a snapshot.

    Every option can stand in the environment (HMB_TRACE_OUTPUT_DIR) and in the
    configuration file (output-dir = "..."); the command line wins, then the environment.
    """
    meta = {name: options.pop(name) for name in _META}
    if meta["print_config"]:
        _print_config(ctx)
        return 0
    if not options["device"] and not meta["check_config"]:
        raise UsageError("no device: give --device PATH")
    settings = config.Settings(**options)
    if meta["check_config"]:
        return _check(settings)
    settings.check()
    from hmb_daemon.control import Daemon  # noqa: PLC0415 - --help need not load the daemon

    return Daemon(settings, reload=_reloader(sys.argv[1:])).run()


def _check(settings: config.Settings) -> int:
    try:
        if settings.output_dir is not None or settings.output is not None:
            settings.check()
    except UsageError as error:
        raise ConfigError(str(error)) from error
    click.echo("configuration is good")
    return 0


def _reloader(args: list[str]) -> Any:
    """Read everything again as at the start: what HUP asks for."""

    def reload() -> config.Settings:
        with command.make_context(PROGRAM, list(args)) as ctx:
            options = {k: v for k, v in ctx.params.items() if k not in _META}
            settings = config.Settings(**options)
            settings.check()
            return settings

    return reload


def main() -> None:
    """Entry point."""
    sys.exit(run(command, PROGRAM))
