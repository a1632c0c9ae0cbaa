# SPDX-License-Identifier: Apache-2.0
"""The units as systemd judges them, and the promises that the rest of the project relies on."""

from __future__ import annotations

import configparser
import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

import pytest
from hmb_daemon.collecting import collector as capture
from hmb_daemon.host import sysio
from hmb_daemon.writing.sink import PREFERRED_NICE

from tests.conftest import require

FOLDER = Path(__file__).parents[2] / "systemd"
UNIT = FOLDER / "hmb-trace-daemon@.service"
EXPOSURE_LIMIT = 1.5


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    require(shutil.which("systemd-analyze"), "no systemd-analyze (apt install systemd)")
    command = ["systemd-analyze", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def installed(folder: Path, *drop_ins: str) -> Path:
    """The unit as on a system that has the daemon, with drop-ins."""
    text = UNIT.read_text().replace(
        "/usr/bin/hmb-trace-daemon", shutil.which("true") or "/bin/true"
    )
    instance = folder / "hmb-trace-daemon@nvme0.service"
    instance.write_text(text)
    for name in drop_ins:
        target = folder / f"{instance.name}.d"
        target.mkdir(exist_ok=True)
        shutil.copy(FOLDER / name, target)
    return instance


def settings() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        key, separator, value = line.partition("=")
        if separator and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize(
    "drop_ins", [(), ("realtime.conf",), ("metrics.conf",), ("collector.conf",)]
)
def test_verify_is_silent(tmp_path: Path, drop_ins: tuple[str, ...]) -> None:
    result = analyze("verify", installed(tmp_path, *drop_ins))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_verify_would_speak(tmp_path: Path) -> None:
    unit = installed(tmp_path)
    unit.write_text(unit.read_text().replace("[Service]", "[Service]\nNoSuchSetting=1"))
    assert "NoSuchSetting" in analyze("verify", unit).stderr


def test_exposure_is_at_most_1_5(tmp_path: Path) -> None:
    result = analyze("security", "--offline=true", "--no-pager", installed(tmp_path))
    found = re.search(r"Overall exposure level.*: ([\d.]+)", result.stdout)
    assert found, result.stderr
    assert float(found[1]) <= EXPOSURE_LIMIT


def test_device_stays_reachable_under_the_hardening() -> None:
    found = settings()
    assert "PrivateDevices" not in found
    assert found["DeviceAllow"] == ["char-hmbtrace rw"]
    rule = (FOLDER / "99-hmb-trace.rules").read_text()
    assert f'GROUP="{found["Group"][0]}"' in rule
    assert 'MODE="0660"' in rule


def test_spool_survives_the_daemon_and_configuration_errors_are_final() -> None:
    found = settings()
    assert found["RuntimeDirectoryPreserve"] == ["yes"]
    assert found["Restart"] == ["on-failure"]
    assert "78" in found["RestartPreventExitStatus"][0].split()
    assert {"65", "66", "69"}.isdisjoint(found["RestartPreventExitStatus"][0].split())


def test_threads_may_take_the_places_they_want() -> None:
    found = settings()
    assert found["SystemCallFilter"][-2:] == ["~@privileged @resources", "setpriority"]
    assert int(found["LimitNICE"][0]) == min(capture.COLLECTOR_NICE, PREFERRED_NICE)


def test_real_time_is_for_the_collector_alone() -> None:
    """The class is no property of the service: every thread would inherit it."""
    drop_in = (FOLDER / "realtime.conf").read_text()
    assert "CPUSchedulingPolicy" not in drop_in
    assert f"LimitRTPRIO={sysio.REAL_TIME_PRIORITY}\n" in drop_in
    assert "SystemCallFilter=sched_setscheduler\n" in drop_in


def test_real_time_thread_asks_only_where_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    def note(tid: int, policy: int, parameter: os.sched_param) -> None:
        asked.append((policy, parameter.sched_priority))

    monkeypatch.setattr(os, "sched_setscheduler", note)
    for allowed, expected in ((0, []), (4, [(os.SCHED_FIFO, 4)]), (99, [(os.SCHED_FIFO, 10)])):
        asked.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _what, a=allowed: (a, a))
        sysio.real_time_thread()
        assert asked == expected


def test_names_fit_each_other() -> None:
    """udev rule, unit and module speak of the same device and the same class."""
    rule = (FOLDER / "99-hmb-trace.rules").read_text()
    region = (FOLDER.parent / "kmod_shim/hmb_region.c").read_text()
    assert 'SUBSYSTEM=="hmbtrace"' in rule
    assert '.name = "hmbtrace"' in region
    assert '"hmbtrace")' in region  # what /proc/devices says, for DeviceAllow
    assert "DEVICE_ATTR_RO(instance)" in region
    assert "hmb-trace-daemon@nvme$attr{instance}.service" in rule
    assert settings()["ExecStart"] == ["/usr/bin/hmb-trace-daemon --wait --device /dev/%i-hmbtrace"]
    assert settings()["BindsTo"] == [r"dev-%i\x2dhmbtrace.device"]


def test_user_exists_wherever_it_is_named() -> None:
    sysusers = (FOLDER / "hmb-trace.sysusers.conf").read_text()
    user = settings()["User"][0]
    assert re.search(rf"^u {user} ", sysusers, re.MULTILINE)
    lines = (FOLDER / "hmb-trace.tmpfiles.conf").read_text().splitlines()
    paths = [line.split() for line in lines if line and not line.startswith("#")]
    assert ["d", "/var/lib/hmb-trace", "0750", user, user, "-"] in paths


def collector_unit(folder: Path) -> Path:
    text = (FOLDER / "hmb-trace-collector@.service").read_text()
    unit = folder / "hmb-trace-collector@nvme0.service"
    true = shutil.which("true") or "/bin/true"
    unit.write_text(text.replace("/usr/bin/hmb-trace-collector", true))
    return unit


def test_the_collector_s_unit_is_whole_and_shut(tmp_path: Path) -> None:
    result = analyze("verify", collector_unit(tmp_path))
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    said = analyze("security", "--offline=true", "--no-pager", collector_unit(tmp_path)).stdout
    found = re.search(r"Overall exposure level.*: ([\d.]+)", said)
    assert found
    assert float(found[1]) <= EXPOSURE_LIMIT


def test_both_units_share_one_spool_and_a_restart_of_one_leaves_the_other() -> None:
    text = (FOLDER / "hmb-trace-collector@.service").read_text()
    assert settings()["RuntimeDirectory"] == ["hmb-trace/%i"]
    assert "--spool-dir %t/hmb-trace/%i" in text
    assert "\nRestart=always\n" in text
    drop_in = (FOLDER / "collector.conf").read_text()
    assert "Wants=hmb-trace-collector@%i.service" in drop_in  # no PartOf=, no BindsTo= either way
    assert "hmb-trace-daemon@%i" not in text


@pytest.mark.parametrize("name", ["realtime.conf", "metrics.conf"])
def test_drop_ins_are_well_formed(name: str) -> None:
    parser = configparser.ConfigParser(strict=False)
    parser.read(FOLDER / name)
    assert parser.sections() == ["Service"]


def test_no_drop_in_gives_every_drive_the_same_port() -> None:
    """Two instances of the template cannot listen on one port."""
    text = (FOLDER / "metrics.conf").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert not [line for line in lines if "HMB_TRACE_METRICS" in line]
    assert (
        "EnvironmentFile=-/etc/hmb-trace/%i.env"
        in (FOLDER / "hmb-trace-daemon@.service").read_text()
    )
