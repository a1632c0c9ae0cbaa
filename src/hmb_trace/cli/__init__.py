# SPDX-License-Identifier: Apache-2.0
"""hmb-trace: one module per subcommand.

A module here that does not begin with an underscore is a subcommand of its name: it
defines `command`, a click.Command whose docstring is its help. It is imported only
when it is called, so that a heavy library costs only those who use it.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Sequence
from functools import cache
from types import CodeType
from typing import Any

import click

from hmb_trace import __version__
from hmb_trace.commandline import SuggestingGroup, replace_closed_files, run


@cache
def _names() -> tuple[str, ...]:
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in found if not name.startswith("_")))


class _LazyGroup(SuggestingGroup):
    """Finds subcommands in this package by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_names())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"{__name__}.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands; none of them is imported for it, since most bring numpy along."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_sentence(name)) for name in self.list_commands(ctx)])


def _first_sentence(name: str) -> str:
    """What a subcommand's help begins with, read from its compiled module."""
    spec = importlib.util.find_spec(f"{__name__}.{name}")
    loader: Any = spec and spec.loader
    functions = [
        c for c in loader.get_code(f"{__name__}.{name}").co_consts if isinstance(c, CodeType)
    ]
    text = next((c.co_consts[0] for c in functions if c.co_name == "command"), None)
    lines = (text or "").strip().split("\n\n")[0].split()
    return " ".join(lines).split(". ")[0].rstrip(".")


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hmb-trace")
def hmb_trace() -> None:
    """Look at, check and convert SSD firmware traces captured from an NVMe Host Memory Buffer.

    \b
    Examples:
      hmb-trace info capture/
      hmb-trace decode capture/ --catalog ftl.toml | less
      hmb-trace top
      eval "$(hmb-trace completion bash)"
    """


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of hmb-trace; returns the exit code."""
    replace_closed_files()
    return run(hmb_trace, "hmb-trace", args)


if __name__ == "__main__":
    sys.exit(main())
