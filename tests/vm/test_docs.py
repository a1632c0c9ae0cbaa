# SPDX-License-Identifier: Apache-2.0
"""docs/hardware.md is what people type: its commands are run in the guest, word for word."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import vmkit

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]

DOCUMENT = vmkit.REPO / "docs/hardware.md"
IN_GUEST = "in the guest"
PROGRAMS = ("hmb-trace", "hmb-trace-daemon", "hmb-firmware-sim")


def blocks() -> list[tuple[str, str]]:
    """Every block of commands, with what the comment above says of running it."""
    found = re.findall(
        r"(?:<!-- run: (.+?) -->\n)?^```(\w*)\n(.*?)^```$", DOCUMENT.read_text(), re.M | re.S
    )
    return [(how, text) for how, language, text in found if language != "text"]


def commands() -> list[str]:
    """Those for the guest, one a line, in the order of the document."""
    return [
        line
        for how, text in blocks()
        if how == IN_GUEST
        for line in text.replace("\\\n", " ").splitlines()
    ]


def test_every_block_says_whether_a_test_runs_it() -> None:
    for how, text in blocks():
        assert how == IN_GUEST or how.startswith("no, "), f"no comment above: {text}"
    assert len(commands()) > 15


@pytest.fixture(scope="module")
def guest(module: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[vmkit.Guest]:
    """A guest as a machine on which dkms has installed the module, and make deb the programs."""
    vmkit.package("udev")
    vmkit.precompile()
    state = tmp_path_factory.mktemp("docs")
    with vmkit.Guest(mode="systemd", exchange=state, memory="1G") as guest:
        guest.check(f"cp {module} .")
        guest.check(f"install -D {module} /lib/modules/$(uname -r)/updates/{module.name}")
        guest.check("/sbin/depmod", 120)
        for name in PROGRAMS:
            guest.check(f"ln -sf $PWD/.venv/bin/{name} /usr/bin/{name}")
        yield guest
    shutil.rmtree(state, ignore_errors=True)


def test_the_commands_work_word_for_word(guest: vmkit.Guest) -> None:
    said = {}
    for line in commands():
        # Not by the guest's own shell: that one has tools of these names built in.
        said[line] = guest.check(f"bash -c {shlex.quote(line)}", 240)
        if line.startswith("modprobe nvme_hmb_trace"):
            guest.wait("systemctl is-active --quiet hmb-trace-daemon@nvme0")
    assert said["modinfo -F signer nvme_hmb_trace.ko"].strip() == "hmb-trace modules"
    assert re.search(r"records\D+20,?000", said["hmb-trace info /var/lib/hmb-trace/nvme0"])
    assert "drains it" in said["hmb-trace doctor /dev/nvme0-hmbtrace"]
    assert guest.splats() == []
