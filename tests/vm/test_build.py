# SPDX-License-Identifier: Apache-2.0
"""The module as kernel people judge it: sparse, checkpatch, other architectures, DKMS."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import suites
import vmkit

from tests.conftest import require

pytestmark = [pytest.mark.vm, pytest.mark.timeout(600)]

SHIM = vmkit.REPO / "kmod_shim"
C_FILES = sorted([*SHIM.glob("*.[ch]"), *(SHIM / "nvme-pci").glob("*.[ch]")])


def checkpatch(*arguments: str | Path, patch: str = "") -> str:
    """What checkpatch --strict has to say; nothing is best."""
    command = ["perl", vmkit.linux_source() / "scripts/checkpatch.pl", "--no-tree", "--strict"]
    # One header has to tell kernel versions apart; the project's lines are 100 long.
    command += ["--terse", "--no-summary", "--max-line-length=100", "--no-signoff"]
    command += ["--ignore=LINUX_VERSION_CODE,CONSTANT_COMPARISON"]
    result = subprocess.run(
        [*command, *arguments], input=patch, capture_output=True, text=True, check=False
    )
    return result.stdout


def test_checkpatch_is_silent(machine: None) -> None:
    assert checkpatch("-f", *C_FILES) == ""
    for path in (SHIM / "nvme-pci").glob("*.patch"):
        assert checkpatch("-", patch=path.read_text()) == "", path.name


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


@vmkit.alone
def arm64_headers() -> Path:
    """The arm64 headers, unpacked beside symlinks to the parts that all architectures share."""
    version = vmkit.kernel_version()
    tree = vmkit.package(f"linux-headers-{version}-arm64:arm64", suites.SYSTEM_ARM64)
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
    assert re.search(r"\bdmb\s+oshld", functions["hmb_region_look_locked"])
    store = next(text for name, text in functions.items() if re.search(r"\bdmb\s+osh$", text, re.M))
    assert re.search(r"cas|ldxr|lse", store), store


@pytest.mark.parametrize("series", vmkit.KERNELS)
def test_builds_unchanged_for_every_series(machine: None, series: str) -> None:
    kernel = vmkit.KERNELS[series]
    module = vmkit.build_module(kernel)
    assert vmkit.run("modinfo", "-F", "vermagic", module).split()[0] == kernel.release


def test_the_other_compiler_is_silent_too(machine: None) -> None:
    """Clang does not take the options of a kernel that gcc built: the pure parts, all warnings."""
    require(shutil.which("clang-14"), "no clang-14")
    for name in ("hmb_logic.h", "nvme-pci/hmb_carve.h"):
        command = ["clang-14", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c"]
        include = f"-I{vmkit.REPO / 'include/uapi'}"
        done = subprocess.run(
            [*command, "-Wno-unused-function", include, SHIM / name],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


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


@dataclass
class Dkms:
    """dkms with trees of its own: nothing of the machine's changes."""

    folder: Path

    def build(self, name: str, kernel: vmkit.Kernel, **env: str) -> str:
        places = ["--dkmstree", self.folder / "tree", "--sourcetree", self.folder / "src"]
        done = subprocess.run(
            ["dkms", "build", f"{name}/0.1.0", "-k", kernel.release, *places],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin", **env},
        )
        logs = [p.read_text(errors="replace") for p in self.folder.rglob("make.log")]
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs}"
        shown = vmkit.run("/usr/sbin/dkms", "status", *places)
        return "".join(line for line in shown.splitlines() if name in line)


@pytest.fixture
def dkms(machine: None, tmp_path: Path) -> Dkms:
    require(Path("/usr/sbin/dkms").exists(), "no dkms (apt install dkms)")
    (tmp_path / "tree").mkdir()
    for target, name in (("dkms-tree", "trace"), ("nvme-dkms-tree", "slice")):
        vmkit.run("make", "-C", SHIM, target, f"DEST={tmp_path / f'src/nvme-hmb-{name}-0.1.0'}")
    return Dkms(tmp_path)


def test_dkms_builds_the_module(dkms: Dkms) -> None:
    assert dkms.build("nvme-hmb-trace", vmkit.HOME).endswith("built")


def test_dkms_builds_the_patched_driver_from_the_source_package(dkms: Dkms) -> None:
    archive = dkms.folder / "linux-source-6.1.tar.xz"
    place = "--transform=s,^[.],linux-source-6.1,"
    vmkit.run("tar", "-C", vmkit.HOME.source, "-cJf", archive, place, "./Makefile", "./drivers")
    shown = dkms.build("nvme-hmb-slice", vmkit.HOME, LINUX_SOURCES=str(dkms.folder))
    assert shown.endswith("built")


@pytest.mark.parametrize(
    ("kernel", "matches"),
    [
        ("5.10.0-1-amd64", False),
        ("6.0.0-1-amd64", False),
        ("6.1.0-57-amd64", True),
        ("6.12.117+deb12-amd64", True),
        ("7.3.4+deb13-amd64", True),
        ("10.0.1", True),
    ],
)
def test_dkms_leaves_older_kernels_alone(kernel: str, matches: bool) -> None:
    """A build that fails keeps a kernel from being installed."""
    text = (SHIM / "dkms.conf").read_text()
    found = re.search(r'^BUILD_EXCLUSIVE_KERNEL="(.*)"$', text, re.M)
    assert found
    assert bool(re.match(found[1], kernel)) is matches


# ---- apply.sh ----


def apply(tree: Path, *options: str) -> tuple[int, str]:
    """Run apply.sh; its exit code and what it said."""
    done = subprocess.run(
        [SHIM / "nvme-pci/apply.sh", *options, tree], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def contents(tree: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}


@pytest.fixture(params=list(vmkit.KERNELS))
def source(machine: None, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a series' nvme driver."""
    kernel = vmkit.KERNELS[request.param]
    tree = tmp_path / "linux"
    shutil.copytree(kernel.source / "drivers/nvme/host", tree / "drivers/nvme/host")
    shutil.copy(kernel.source / "Makefile", tree)
    return tree


def version(tree: Path) -> str:
    found = re.findall(
        r"^(?:VERSION|PATCHLEVEL|SUBLEVEL) = (\d+)", (tree / "Makefile").read_text(), re.M
    )
    return ".".join(found)


def refused(tree: Path, *options: str) -> str:
    """What apply.sh says, in one line, when it leaves everything as it was."""
    before = contents(tree)
    code, said = apply(tree, *options)
    assert code == 1
    assert said.startswith("apply.sh: ")
    assert said.count("\n") == 1, said
    assert contents(tree) == before
    return said


def test_apply_patches_every_series_once(source: Path) -> None:
    assert apply(source, "--kernel", version(source)) == (0, "")
    assert not list(source.rglob("*.orig")) + list(source.rglob("*.rej"))
    assert "is patched already" in refused(source, "--kernel", version(source))
    (source / "drivers/nvme/host/hmb_slice.c").unlink()
    assert "unpack the source again" in refused(source, "--kernel", version(source))


def test_apply_refuses_before_it_touches_anything(source: Path) -> None:
    assert "the kernel is 6.1.1" in refused(source, "--kernel", "6.1.1")
    for series in ("5.10.223", "6.6.9", "6.13.1"):
        makefile = (source / "Makefile").read_text()
        for name, number in zip(
            ("VERSION", "PATCHLEVEL", "SUBLEVEL"), series.split("."), strict=True
        ):
            makefile = re.sub(rf"^{name} = .*", f"{name} = {number}", makefile, flags=re.M)
        (source / "Makefile").write_text(makefile)
        assert f"is Linux {series}, expected 6.1" in refused(source, "--kernel", "any")


def test_apply_refuses_another_driver_of_the_series(source: Path) -> None:
    """One hunk of many would not fit: none is applied."""
    host = source / "drivers/nvme/host/pci.c"
    text = host.read_text()
    host.write_text(text.replace("ret = nvme_set_host_mem(dev, enable_bits);", "ret = 0;"))
    assert "does not fit" in refused(source, "--kernel", "any")


def test_apply_refuses_what_is_no_kernel_source(machine: None, tmp_path: Path) -> None:
    assert "no such file" in refused(tmp_path)
