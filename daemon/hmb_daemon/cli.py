# SPDX-License-Identifier: Apache-2.0
"""hmb-trace-daemon: the command line, made from the fields of Settings."""

from __future__ import annotations

import enum
import os
import sys
import typing
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from hmb_daemon import config
from hmb_daemon.settings import OPTIONS, Option, Settings
from hmb_trace import __version__
from hmb_trace.commandline import Parsed, run
from hmb_trace.errors import ConfigError, UsageError

PROGRAM = "hmb-trace-daemon"
_PREFIX = config.ENVIRONMENT_PREFIX
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
        if not isinstance(param, click.Option) or not param.name or param.name in config.META:
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


# -- options from the fields of Settings


def _single_type(hint: Any) -> Any:
    """T of `T | None`."""
    return next((t for t in typing.get_args(hint) if t is not type(None)), hint)


class _Choice(click.Choice[str]):
    """A choice whose value is the member of an enumeration."""

    def __init__(self, kind: type[enum.StrEnum]) -> None:
        super().__init__([member.value for member in kind])
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self._kind(super().convert(value, param, ctx))


def _click_type(name: str, kind: Any, option: Option) -> Any:
    if option.parse is not None:
        return Parsed(option.metavar or name, option.parse)
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return _Choice(kind)
    return _PATH if kind is Path else str


def _click_option(name: str, kind: Any, option: Option) -> click.Option:
    flag = f"--{name.replace('_', '-')}"
    if kind is bool:
        return click.Option([flag], is_flag=True, help=option.help)
    return click.Option(
        [flag],
        type=_click_type(name, kind, option),
        metavar=option.metavar or None,
        default=option.default,
        show_default=option.default is not None,
        help=option.help,
    )


def _options_of_settings(function: Callable[..., Any]) -> click.Command:
    """Add an option for every field of Settings, in their order, before those added above it."""
    assert isinstance(function, click.Command)
    hints = typing.get_type_hints(Settings)
    made = [
        _click_option(field.name, _single_type(hints[field.name]), OPTIONS[field.name])
        for field in fields(Settings)
    ]
    function.params[1:1] = made
    return function


@_options_of_settings
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
    Signals: TERM and INT drain, seal and exit (a second one does not wait for the disk, a third
    one not for the ring); HUP reloads the configuration; USR1 seals and begins a new segment;
    USR2 writes a snapshot.

    Every option can stand in the environment (HMB_TRACE_OUTPUT_DIR) and in the
    configuration file (output-dir = "..."); the command line wins, then the environment.
    Sizes take KiB, MiB, GiB; times ms, s, m, h, d.
    """
    meta = {name: options.pop(name) for name in config.META}
    if meta["print_config"]:
        _print_config(ctx)
        return 0
    if meta["check_config"]:
        return _check(options)
    if not options["device"]:
        raise UsageError("no device: give --device PATH")
    settings = Settings(**options)
    settings.check()
    from hmb_daemon.daemon import Daemon  # noqa: PLC0415 - --help need not load the daemon

    return Daemon(settings, reload=_reloader(sys.argv[1:])).run()


def _check(options: dict[str, Any]) -> int:
    """What a start would refuse, short of touching ring and spool.

    Raises:
        ConfigError: naming the first thing that is wrong.
    """
    from hmb_daemon.checks import problems  # noqa: PLC0415 - as in command()

    found = [
        *problems(Settings(**options)),
        *config.unknown_variables(os.environ, command),
    ]
    if found:
        raise ConfigError(found[0])
    click.echo("configuration is good")
    return 0


def _reloader(args: list[str]) -> Callable[[], Settings]:
    """Read everything again as at the start: what HUP asks for."""

    def reload() -> Settings:
        with command.make_context(PROGRAM, list(args)) as ctx:
            options = {k: v for k, v in ctx.params.items() if k not in config.META}
            settings = Settings(**options)
            settings.check()
            return settings

    return reload


def main() -> int:
    """Run the command; the exit code."""
    return run(command, PROGRAM)
