# SPDX-License-Identifier: Apache-2.0
"""The module as kernel people judge it: sparse, checkpatch, other architectures, DKMS."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import vmkit

from tests.conftest import require

pytestmark = [pytest.mark.vm, pytest.mark.timeout(240)]

SHIM = vmkit.REPO / "kmod_shim"
C_FILES = sorted([*SHIM.glob("*.[ch]"), *(SHIM / "nvme-pci").glob("*.[ch]")])


def checkpatch(*arguments: str | Path) -> str:
    """What checkpatch --strict has to say; nothing is best."""
    command = ["perl", vmkit.linux_source() / "scripts/checkpatch.pl", "--no-tree", "--strict"]
    # One header has to tell kernel versions apart; the project's lines are 100 long.
    command += ["--terse", "--no-summary", "--max-line-length=100", "--no-signoff"]
    command += ["--ignore=LINUX_VERSION_CODE,CONSTANT_COMPARISON"]
    result = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    return result.stdout


def test_checkpatch_is_silent(machine: None) -> None:
    assert checkpatch("-f", *C_FILES) == ""
    assert checkpatch(*(SHIM / "nvme-pci").glob("*.patch")) == ""


def test_checkpatch_would_speak(machine: None, tmp_path: Path) -> None:
    bad = tmp_path / "bad.c"
    bad.write_text("// SPDX-License-Identifier: GPL-2.0\nint f( void ) { return(0); }\n")
    assert checkpatch("-f", bad)


def test_sparse_is_silent(machine: None) -> None:
    require(shutil.which("sparse"), "no sparse (apt install sparse)")
    folder = vmkit.module_sources("sparse")
    text = vmkit.kbuild(folder, None, "C=2", "CF=-D__CHECK_ENDIAN__ -Wsparse-error")
    assert text.count("  CHECK ") >= len(list(SHIM.glob("*.c")))
    assert not re.search(r"warning|error", text), text


def arm64_headers() -> Path:
    """The arm64 headers, unpacked beside symlinks to the parts that all architectures share."""
    version = vmkit.kernel_version()
    lists = vmkit.CACHE / "apt-arm64"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    options = ("-o", f"Dir::State::lists={lists}")
    options += ("-o", "APT::Architectures::=amd64", "-o", "APT::Architectures::=arm64")
    tree = vmkit.package(f"linux-headers-{version}-arm64:arm64", options=options)
    headers = tree / f"usr/src/linux-headers-{version}-arm64"
    for name in ("scripts", "tools"):
        link = headers / name
        link.unlink(missing_ok=True)
        link.symlink_to(f"/usr/lib/linux-kbuild-6.1/{name}")
    return headers


def test_arm64_builds_with_dma_barriers_in_place(machine: None) -> None:
    cross = "aarch64-linux-gnu-"
    require(shutil.which(f"{cross}gcc"), "no arm64 compiler (apt install gcc-aarch64-linux-gnu)")
    folder = vmkit.module_sources("arm64")
    vmkit.kbuild(folder, arm64_headers(), "ARCH=arm64", f"CROSS_COMPILE={cross}")
    code = vmkit.run(f"{cross}objdump", "-d", "--no-show-raw-insn", folder / "nvme_hmb_trace.ko")
    functions = dict(re.findall(r"<(\w+)>:\n((?:.+\n)+)", code))
    # Acquire of head, and the full barrier before the store of tail; outer shareable, for DMA.
    assert re.search(r"\bdmb\s+oshld", functions["hmb_region_look"])
    store = next(text for name, text in functions.items() if re.search(r"\bdmb\s+osh$", text, re.M))
    assert re.search(r"cas|ldxr|lse", store), store


def newest_headers() -> Path:
    """The newest headers that Debian offers for this release (backports), unpacked only."""
    targets = vmkit.run(
        *("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME) $(COMPONENT)"),
        "Created-By: Packages",
    )
    found = re.search(r"^(\S+/debian/?) (\w+) main$", targets, re.M)
    require(found, "no Debian archive among the apt sources")
    assert found
    folder = vmkit.CACHE / "backports"
    (folder / "lists/partial").mkdir(parents=True, exist_ok=True)
    (folder / "sources.list").write_text(f"deb {found[1]} {found[2]}-backports main\n")
    options = ("-o", f"Dir::State::lists={folder}/lists", "-o", "Dir::Etc::sourceparts=/dev/null")
    options += ("-o", f"Dir::Etc::sourcelist={folder}/sources.list")
    vmkit.run("apt-get", *options, "update")
    names = vmkit.run("apt-cache", *options, "search", "--names-only", r"^linux-headers-.*-amd64$")
    versions = [
        match[1]
        for match in re.finditer(r"^linux-headers-(\d+\.[\d.]+\S*)-amd64 ", names, re.M)
        if not re.search(r"cloud|rt|^6\.1\.", match[1])
    ]
    newest = max(versions, key=lambda version: [int(n) for n in re.findall(r"\d+", version)])
    for part in (f"linux-headers-{newest}-common", f"linux-kbuild-{newest}"):
        common = vmkit.package(part, options=options)
        (folder / part).unlink(missing_ok=True)
        (folder / part).symlink_to(common)
    tree = vmkit.package(f"linux-headers-{newest}-amd64", options=options)
    headers = tree / f"usr/src/linux-headers-{newest}-amd64"
    shared = folder / f"linux-headers-{newest}-common/usr/src/linux-headers-{newest}-common"
    (headers / "Makefile").write_text(f"include {shared}/Makefile\n")
    for name in ("scripts", "tools"):
        (headers / name).unlink(missing_ok=True)
        kbuild = folder / f"linux-kbuild-{newest}/usr/lib/linux-kbuild-{newest}"
        (headers / name).symlink_to(kbuild / name)
        if not (shared / name).exists():
            (shared / name).unlink(missing_ok=True)
            (shared / name).symlink_to(kbuild / name)
    return headers


def test_builds_unchanged_on_the_newest_headers(machine: None) -> None:
    folder = vmkit.module_sources("newest")
    headers = newest_headers()
    vmkit.kbuild(folder, headers, "CONFIG_DEBUG_INFO_BTF_MODULES=")
    magic = vmkit.run("modinfo", "-F", "vermagic", folder / "nvme_hmb_trace.ko")
    assert magic.split()[0] in str(headers)
    assert not magic.startswith("6.1.")


def test_dkms_tree_is_whole(machine: None, tmp_path: Path) -> None:
    """What `make dkms-tree` lays out builds by itself, with the commands of dkms.conf."""
    tree = tmp_path / "nvme-hmb-trace-0.1.0"
    vmkit.run("make", "-C", SHIM, "dkms-tree", f"DEST={tree}")
    settings = dict(re.findall(r'^(\w+)(?:\[0\])?="(.*)"$', (tree / "dkms.conf").read_text(), re.M))
    command = settings["MAKE"].replace("${kernelver}", f"{vmkit.kernel_version()}-amd64")
    command = command.replace("${kernel_source_dir}", str(vmkit.headers()))
    vmkit.run("sh", "-c", command, cwd=tree)
    assert (tree / f"{settings['BUILT_MODULE_NAME']}.ko").exists()
    assert settings["PACKAGE_VERSION"] in tree.name


def test_apply_refuses_what_it_cannot_patch(machine: None, tmp_path: Path) -> None:
    apply = SHIM / "nvme-pci/apply.sh"
    result = subprocess.run([apply, tmp_path], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "no such file" in result.stderr
