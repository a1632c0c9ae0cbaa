# SPDX-License-Identifier: Apache-2.0
"""The TOML files behind the options, and the options as a TOML file again."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from hmb_trace.errors import ConfigError

DEFAULT_FILE = Path("/etc/hmb-trace/daemon.toml")
ENVIRONMENT_PREFIX = "HMB_TRACE"
META = ("config", "check_config", "print_config")  # options that a file cannot set
_FOR_TESTS = f"{ENVIRONMENT_PREFIX}_TEST_"
_LIST_MAX = 6


def read_files(main: Path, *, required: bool) -> dict[str, Any]:
    """A TOML file and the *.toml of its drop-in directory (daemon.d of daemon.toml), merged.

    Raises:
        ConfigError: missing though asked for, unreadable, or not TOML; names file and place.
    """
    merged: dict[str, Any] = {}
    if main.exists() or required:
        merged.update(_read_file(main))
    drop_ins = main.with_suffix(".d")
    if drop_ins.is_dir():
        for path in sorted(drop_ins.glob("*.toml")):
            merged.update(_read_file(path))
    return merged


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # tomllib: also for an integer of 5000 digits
        raise ConfigError(f"{path}: not TOML: {error}") from error
    return {key.replace("-", "_"): (path, value) for key, value in found.items()}


def known_options(command: click.Command) -> dict[str, click.Option]:
    """The options that file and environment may set, by name."""
    return {
        option.name: option
        for option in command.params
        if isinstance(option, click.Option)
        and option.name
        and option.name not in (*META, "version", "help")
    }


def hint(word: str, known: Iterable[str]) -> str:
    """What somebody may have meant, for the end of an error."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    more = f" ... ({len(names)} in all)" if len(names) > _LIST_MAX else ""
    return f"expected one of: {', '.join(names[:_LIST_MAX])}{more}"


def defaults_from(found: dict[str, Any], command: click.Command) -> dict[str, Any]:
    """click's default_map of what the files say.

    Raises:
        ConfigError: an unknown key, or a value that its option does not take.
    """
    known = known_options(command)
    defaults: dict[str, Any] = {}
    for name, (path, value) in found.items():
        key = name.replace("_", "-")
        if name not in known:
            keys = [other.replace("_", "-") for other in known]
            raise ConfigError(f"{path}: unknown key {key!r}; {hint(key, keys)}")
        if isinstance(value, dict | list):
            raise ConfigError(f"{path}: {key} is a {type(value).__name__}, expected one value")
        defaults[name] = _checked(known[name], path, key, value)
    return defaults


def _checked(option: click.Option, path: Path, key: str, value: Any) -> Any:
    if option.is_flag:
        if not isinstance(value, bool):
            raise ConfigError(f"{path}: {key} is {value!r}, expected true or false")
        return value
    if isinstance(value, bool):
        raise ConfigError(f"{path}: {key} is {value!r}, expected {option.type.name}")
    text = str(value)
    try:
        option.type.convert(text, option, None)
    except click.BadParameter as error:
        raise ConfigError(f"{path}: {key}: {error.message}") from error
    return text


def unknown_variables(environment: Mapping[str, str], command: click.Command) -> list[str]:
    """One line for each variable in the environment that sets nothing, but nearly does."""
    known = {f"{ENVIRONMENT_PREFIX}_{name.upper()}" for name in known_options(command)}
    known |= {f"{ENVIRONMENT_PREFIX}_{name.upper()}" for name in META}
    ours = [
        name
        for name in sorted(environment)
        if name.startswith(f"{ENVIRONMENT_PREFIX}_") and not name.startswith(_FOR_TESTS)
    ]
    near = {n: difflib.get_close_matches(n, known, n=1, cutoff=0.85) for n in set(ours) - known}
    return [
        f"{name} in the environment sets no option; did you mean {found[0]}?"
        for name, found in sorted(near.items())
        if found
    ]


def as_toml(values: dict[str, Any]) -> str:
    """The effective options as a file that says the same again."""
    lines = []
    for key, value in values.items():
        if value is None:
            continue
        text = str(value).lower() if isinstance(value, bool) else _quoted(str(value))
        lines.append(f"{key.replace('_', '-')} = {text}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's, but for DEL, which only TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
