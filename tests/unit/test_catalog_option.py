# SPDX-License-Identifier: Apache-2.0
"""One --catalog: the same option everywhere, and the catalog that a capture remembers."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from hmb_trace import testing
from hmb_trace.cli import hmb_trace as group
from hmb_trace.cli import main
from hmb_trace.cli._options import CATALOG
from hmb_trace.dumps.sidecar import CatalogCopy, Device, Sidecar, sidecar_path

_TOML = 'name = "own"\nfirmware_build = "FW2"\n[[event]]\nopcode = 1\nname = "{}"\n'
COMMANDS = (
    *("decode", "filter", "stats", "why", "diff", "sql", "view", "convert", "pack", "report"),
    "top",
)


def test_every_catalog_option_is_the_same_object() -> None:
    @CATALOG
    @click.command()
    def one(catalog_path: str | None) -> None:
        """Nothing."""

    expected = one.params[0].to_info_dict()
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        found = [p for p in command.params if "--catalog" in p.opts]
        assert [p.to_info_dict() for p in found] == [expected], name
        assert found[0].envvar == "HMB_TRACE_CATALOG"
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        has = any("--catalog" in p.opts for p in command.params) if command else False
        assert has == (name in COMMANDS), name


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    path = tmp_path / "dev-000001-20260101T000000Z.bin"
    path.write_bytes(testing.record(0, opcode=1))
    sidecar = Sidecar(
        segment=path.name,
        number=1,
        label="dev",
        device=Device(path="x", firmware="FW1 "),
        bytes=32,
        records=1,
        first_seq=0,
        last_seq=0,
        first_ts_ns=0,
        last_ts_ns=0,
        catalog=CatalogCopy(name="own", text=_TOML.format("remembered")),
    )
    sidecar_path(path).write_bytes(sidecar.encode())
    return path


def _names(capfd: pytest.CaptureFixture[str], *args: str) -> tuple[str, str]:
    assert main(["decode", "--format", "jsonl", *args]) == 0
    found = capfd.readouterr()
    return json.loads(found.out)["name"], found.err


def test_option_then_environment_then_sidecar_then_none(
    capture: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("option", "environment"):
        (tmp_path / f"{name}.toml").write_text(_TOML.format(name))
    assert _names(capfd, str(capture))[0] == "remembered"
    assert _names(capfd, str(tmp_path))[0] == "remembered"
    assert main(["pack", "-e", "bincode", "-q", str(capture), "-o", str(tmp_path / "e.pccx")]) == 0
    monkeypatch.setenv("HMB_TRACE_CATALOG", str(tmp_path / "environment.toml"))
    assert _names(capfd, str(capture))[0] == "environment"
    option = str(tmp_path / "option.toml")
    assert _names(capfd, str(capture), "--catalog", option)[0] == "option"
    monkeypatch.delenv("HMB_TRACE_CATALOG")
    sidecar_path(capture).unlink()
    assert _names(capfd, str(capture))[0] == "0x0001"


def test_a_catalog_of_another_firmware_is_told_once(
    capture: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "c.toml"
    other.write_text(_TOML.format("x"))
    _, err = _names(capfd, str(capture), "--catalog", str(other))
    assert err.count("\n") == 1
    assert "is for firmware FW2, but" in err
    assert "from firmware FW1" in err
    other.write_text(_TOML.format("x").replace("FW2", "FW1"))
    assert _names(capfd, str(capture), "--catalog", str(other))[1] == ""
