# SPDX-License-Identifier: Apache-2.0
"""hmb-trace completion."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from hmb_trace.commandline import complete_variable
from hmb_trace.errors import UsageError

PROGRAMS = ("hmb-trace", "hmb-trace-daemon", "hmb-firmware-sim")
_SHELLS: dict[str, type[ShellComplete]] = {
    "bash": BashComplete,
    "zsh": ZshComplete,
    "fish": FishComplete,
}


@click.command()
@click.argument("shell", required=False, type=click.Choice(list(_SHELLS)))
@click.option("--program", type=click.Choice(PROGRAMS), help="Of one program alone, for packages.")
def command(shell: str | None, program: str | None) -> None:
    """Print the completion script of a shell, for all three programs. Default: your shell.

    \b
    Examples:
      eval "$(hmb-trace completion bash)"        # in ~/.bashrc
      eval "$(hmb-trace completion zsh)"         # in ~/.zshrc, after compinit
      hmb-trace completion fish > ~/.config/fish/conf.d/hmb-trace.fish
    """
    chosen = _SHELLS[shell or _own_shell()]
    for name in [program] if program else PROGRAMS:
        # The command itself is not asked for anything: the script calls the program.
        made = chosen(click.Command(name), {}, name, complete_variable(name))
        click.echo(made.source_template % made.source_vars())


def _own_shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise UsageError(
            f"completion: SHELL is {name!r}, expected one of {', '.join(_SHELLS)}; name the shell"
        )
    return name
