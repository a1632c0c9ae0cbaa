# SPDX-License-Identifier: Apache-2.0
"""How every command of the three programs behaves: help, mistypings, files that are wrong."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from hmb_daemon.cli import command as hmb_trace_daemon
from hmb_producer_sim.cli import hmb_firmware_sim

from hmb_trace import testing
from hmb_trace.cli import hmb_trace
from hmb_trace.commandline import run
from tests.conftest import Programs, program, require_program, wait_until

PROGRAMS: dict[str, click.Command] = {
    "hmb-trace": hmb_trace,
    "hmb-trace-daemon": hmb_trace_daemon,
    "hmb-firmware-sim": hmb_firmware_sim,
}
NOBODY = 65534
PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 16
Result = tuple[int, str, str]


def walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The words of a command and of everything below it."""
    yield words
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from walk(below, (*words, name))


COMMANDS = [words for name, top in PROGRAMS.items() for words in walk(top, (name,))]


def find(words: Sequence[str]) -> click.Command:
    found = PROGRAMS[words[0]]
    for name in words[1:]:
        assert isinstance(found, click.Group)
        below = found.get_command(click.Context(found), name)
        assert below is not None
        found = below
    return found


def call(words: Sequence[str], capfd: pytest.CaptureFixture[str]) -> Result:
    """Run a command in this process: exit code, stdout, stderr."""
    code = run(PROGRAMS[words[0]], words[0], list(words[1:]))
    out, err = capfd.readouterr()
    return code, out, err


def assert_one_line(result: Result, code: int, said: str) -> None:
    found, out, err = result
    assert (found, out, err.count("\n")) == (code, "", 1), err
    assert err.startswith(tuple(f"{name}: " for name in PROGRAMS))
    assert said in err
    assert "Traceback" not in err


# ---- help and mistypings


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_examples_and_fits_a_terminal(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    for option in ("--help", "-h"):
        code, out, err = call([*words, option], capfd)
        assert (code, err) == (0, "")
    assert out.startswith(f"Usage: {' '.join(words)}")
    assert "Example" in out
    assert f"  {' '.join(words[:2])}" in out[len("Usage: ") :]
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_mistyped_option_names_the_right_one(
    words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    options = [name for p in find(words).params for name in p.opts if len(name) > 5]
    right = next((name for name in options if name.startswith("--")), "--help")
    wrong = right[:-2] + right[-1] + right[-2]
    result = call([*words, wrong], capfd)
    assert_one_line(result, 2, f"No such option '{wrong}'")
    assert f"{right}'" in result[2]
    assert f"(see {' '.join(words)} --help)" in result[2]
    assert_one_line(call([*words, "--zzqqxx"], capfd), 2, "No such option '--zzqqxx'")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("hmb-trace", "decod"), "did you mean 'decode'?"),
        (("hmb-trace", "catalog", "chekc"), "did you mean 'check'?"),
        (("hmb-trace", "xyzzy"), "expected one of catalog, "),
        (("hmb-trace", "decode"), "FILE"),
        (("hmb-trace-daemon", "--once"), "no device: give --device PATH"),
        (("hmb-firmware-sim",), "give exactly one of --shm"),
        (("hmb-trace", "decode", "x", "--format", "xml"), "'xml'"),
    ],
)
def test_other_mistypings(
    words: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert_one_line(call(words, capfd), 2, said)


# ---- files that are wrong

# How each command reads a file: @ is the path, = the path of an output.
TOOLS = {
    name: ("hmb-trace", *words.split())
    for name, words in {
        "info": "info @",
        "verify": "verify @",
        "repair": "repair @",
        "decode": "decode @",
        "gaps": "gaps @",
        "stats": "stats @",
        "why": "why @",
        "diff": "diff @ @",
        "sql": "sql select_1 @",
        "view": "view @",
        "filter": "filter @ -o =",
        "convert": "convert @ --to csv -o =",
        "pack": "pack @ -o =",
        "report": "report @ -o =",
        "unpack": "unpack @ -o =",
        "top": "top --once @",
        "init": "catalog init @ -o =",
    }.items()
}
CATALOGS = {
    name: ("hmb-trace", *words.split())
    for name, words in {
        "check": "catalog check @",
        "import": "catalog import @",
        "decode": "decode - --catalog @",
        "report": "report - -o = --catalog @",
        "why": "why - --catalog @",
        "diff": "diff - - --catalog @",
        "pack": "pack - -o = --catalog @",
        "top": "top --once --catalog @",
        "convert": "convert - --to csv -o = --catalog @",
    }.items()
}
DAEMON = {"daemon": ("hmb-trace-daemon", "--once", "--device", "@", "--output-dir", "=")}
REPLAY = {"replay": ("hmb-firmware-sim", "--file", "=", "--replay", "@", "-q")}
WORKLOAD = {"workload": ("hmb-firmware-sim", "--file", "=", "--workload", "@", "-q")}
CONFIG = {"config": ("hmb-trace-daemon", "--check-config", "--config", "@")}
DOCTOR = {"doctor": ("hmb-trace", "doctor", "@")}
CTL = {"ctl": ("hmb-trace", "ctl", "@", "status")}


def table(*parts: tuple[dict[str, tuple[str, ...]], int]) -> list[object]:
    """(words, exit code) for each command of each part."""
    return [
        pytest.param(words, code, id=f"{words[0]} {name}")
        for commands, code in parts
        for name, words in commands.items()
    ]


def on(path: Path, words: Sequence[str]) -> list[str]:
    stand_for = {"@": str(path), "=": str(path.parent / "output"), "select_1": "select 1"}
    return [stand_for.get(word, word) for word in words]


def test_every_command_is_in_the_tables() -> None:
    names = {words[1] for words in COMMANDS if len(words) > 1 and words[0] == "hmb-trace"}
    covered = {words[1] for part in (TOOLS, CATALOGS, CTL, DOCTOR) for words in part.values()}
    assert names - covered == {"completion"}  # reads nothing


@pytest.mark.parametrize(
    ("words", "code"),
    table(
        *((TOOLS, 66), (CATALOGS, 66), (DAEMON, 66), (REPLAY, 66), (WORKLOAD, 66), (CTL, 66)),
        (CONFIG, 78),
    ),
)
def test_missing_file(
    words: tuple[str, ...], code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "missing"
    result = call(on(path, words), capfd)
    assert_one_line(result, code, "No such file")
    assert str(path) in result[2]
    assert not (tmp_path / "output").exists()


LIVE = ("repair", "unpack", "top")
DIRECTORY_AS_SET = {name: words for name, words in TOOLS.items() if name not in LIVE}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        *((words, 66, "no dump segments") for words in DIRECTORY_AS_SET.values()),
        *((words, 66, "s a directory") for words in CATALOGS.values()),
        (TOOLS["unpack"], 66, "s a directory"),
        (TOOLS["repair"], 2, "is a directory; repair takes dump files"),
        (DAEMON["daemon"], 66, "s a directory"),
        (REPLAY["replay"], 66, "s a directory"),
        (WORKLOAD["workload"], 66, "s a directory"),
        (CONFIG["config"], 78, "s a directory"),
        (CTL["ctl"], 66, "no daemon"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, tuple) else None,
)
def test_empty_directory_where_a_file_is_wanted(
    words: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    assert_one_line(call(on(path, words), capfd), code, said)


@contextmanager
def somebody_else() -> Iterator[None]:
    """As a user without rights, if we are root."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize(
    ("words", "code"),
    table(
        *((TOOLS, 77), (CATALOGS, 77), (DAEMON, 77), (REPLAY, 77), (WORKLOAD, 77), (CONFIG, 77)),
    ),
)
def test_unreadable_file(
    words: tuple[str, ...], code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "secret"
    call(on(path, words), capfd)  # whatever is imported late is imported now
    path.write_bytes(testing.dump([testing.record(0)]))
    path.chmod(0)
    with somebody_else():
        result = call(on(path, words), capfd)
    assert_one_line(result, code, "Permission denied")
    assert str(path) in result[2]


@pytest.mark.parametrize(
    ("words", "code"),
    table((TOOLS, 65), (DAEMON, 65), (REPLAY, 65), (CATALOGS, 78), (WORKLOAD, 78), (CONFIG, 78)),
)
def test_binary_of_another_kind(
    words: tuple[str, ...], code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "picture"
    path.write_bytes(PICTURE)
    result = call(on(path, words), capfd)
    assert_one_line(result, code, str(path))
    assert path.read_bytes() == PICTURE


def test_a_picture_named_zst_is_no_replay(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "picture.zst"
    path.write_bytes(PICTURE)
    assert_one_line(call(on(path, REPLAY["replay"]), capfd), 65, "damaged before byte")


@pytest.mark.parametrize(
    ("words", "code"),
    table(
        ({"unpack": TOOLS["unpack"], "top": TOOLS["top"]}, 65),
        *((DAEMON, 65), (REPLAY, 65), (CATALOGS, 78), (WORKLOAD, 78)),
    ),
)
def test_empty_file(
    words: tuple[str, ...], code: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty"
    path.touch()
    assert_one_line(call(on(path, words), capfd), code, "empty")


EMPTY_IS_A_DUMP = [name for name in TOOLS if name not in ("unpack", "top", "view")]


@pytest.mark.parametrize("name", EMPTY_IS_A_DUMP)
def test_an_empty_file_is_a_dump_without_records_r13(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty"
    path.touch()
    code, _, err = call(on(path, TOOLS[name]), capfd)
    assert code == (2 if name == "diff" else 0)  # nothing and nothing: it cannot say
    assert err.count("\n") <= 2  # what was written, and what is missing


@pytest.mark.parametrize("name", [n for n, words in TOOLS.items() if "=" in words])
def test_output_that_cannot_be_made(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.bin"
    source.write_bytes(testing.dump([testing.record(0)]))
    words = [str(tmp_path / "no" / "such") if w == "=" else w for w in TOOLS[name]]
    if name == "unpack":
        assert call(on(source, TOOLS["pack"]), capfd)[0] == 0
        source = tmp_path / "output"
    assert_one_line(call(on(source, words), capfd), 73, str(tmp_path / "no"))


# ---- pipes, Ctrl-C, colours, completion


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big.bin"
    path.write_bytes(
        testing.dump(testing.record(i, b"x" * 40, opcode=i % 5) for i in range(20_000))
    )
    return path


@pytest.mark.parametrize(
    "words",
    [["decode"], ["filter", "-o", "-"], ["convert", "--to", "csv", "-o", "-"]],
    ids=" ".join,
)
def test_a_reader_that_leaves_ends_it_quietly(words: list[str], big: Path) -> None:
    with subprocess.Popen(
        [program("hmb-trace"), words[0], str(big), *words[1:]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},  # where Python's own stdout writes in part
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.read(10)
        running.stdout.close()
        assert running.stderr.read() == b""
    assert running.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize("words", [["decode", "--follow"], ["top", "--batch"]], ids=" ".join)
def test_ctrl_c_ends_it_with_one_word(
    words: list[str], big: Path, programs: Programs, tmp_path: Path
) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    big.rename(folder / "a-000001-20260101T000000Z.bin")
    running = programs.start("hmb-trace", words[0], folder, *words[1:])
    wait_until(lambda: running.stdout, "output")
    running.signal(signal.SIGINT)
    running.expect(130)
    assert running.stderr.strip() == "hmb-trace: interrupted"  # after the line of the ^C


def on_terminal(*args: str, **env: str) -> bytes:
    """What a program writes when stdout and stderr are a terminal."""
    master, slave = pty.openpty()
    merged = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"} | env
    with subprocess.Popen(args, stdin=slave, stdout=slave, stderr=slave, env=merged) as running:
        os.close(slave)
        out = b""
        try:
            while part := os.read(master, 4096):
                out += part
        except OSError:  # the last one has closed it
            pass
        running.wait(30)
    os.close(master)
    return out


def test_no_color_and_quiet_on_a_terminal(big: Path, tmp_path: Path) -> None:
    doctor = (program("hmb-trace"), "doctor", str(big))
    assert b"\x1b[" in on_terminal(*doctor)
    assert b"\x1b[" not in on_terminal(*doctor, NO_COLOR="1")
    missing = (program("hmb-trace-daemon"), "--device", str(tmp_path / "x"), "--output-dir", ".")
    assert b"\x1b[" not in on_terminal(*missing, NO_COLOR="1")
    convert = (program("hmb-trace"), "convert", str(big), "--to", "csv", "-o", str(tmp_path / "o"))
    assert on_terminal(*convert, "--quiet") == b""


def complete(shell: str, word: str, *words: str) -> str:
    """What a shell is told when somebody presses Tab after `word`."""
    line = [words[0], *words[1:], word]
    text = " ".join(line)
    env = {"COMP_WORDS": text, "COMP_CWORD": str(len(line) - 1) if shell != "fish" else word}
    name = f"_{words[0].upper().replace('-', '_')}_COMPLETE"
    done = subprocess.run(
        [program(words[0])],
        env={**os.environ, **env, name: f"{shell}_complete"},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stderr == ""
    return done.stdout


def test_completion_of_words_and_files() -> None:
    assert "plain,decode" in complete("bash", "dec", "hmb-trace")
    assert "plain,--follow" in complete("bash", "--fo", "hmb-trace", "decode")
    assert "plain,--device" in complete("bash", "--dev", "hmb-trace-daemon")
    assert "plain,straddle" in complete("bash", "str", "hmb-firmware-sim", "--wrap")
    assert "plain,rotate" in complete("bash", "rot", "hmb-trace", "ctl")
    for shell in ("bash", "zsh", "fish"):
        assert "file" in complete(shell, "captu", "hmb-trace", "decode")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_of_all_programs(shell: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(["hmb-trace", "completion", shell], capfd)
    assert code == 0
    for name in PROGRAMS:
        assert f"_{name.upper().replace('-', '_')}_COMPLETE={shell}_complete" in out
    code, one, _ = call(["hmb-trace", "completion", shell, "--program", "hmb-firmware-sim"], capfd)
    assert code == 0
    assert "_HMB_TRACE_COMPLETE" not in one
    if shell == "bash" or shutil.which(shell):
        require_program(shell)
        subprocess.run([shell, "-n"], input=out, text=True, check=True, timeout=30)


def test_completion_needs_a_shell_it_knows(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/bin/csh")
    assert_one_line(call(["hmb-trace", "completion"], capfd), 2, "expected one of bash, zsh, fish")
    monkeypatch.setenv("SHELL", "/usr/bin/bash")
    assert call(["hmb-trace", "completion"], capfd)[0] == 0


def test_missing_extra_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import sys  # noqa: PLC0415 - to hide a module

    path = tmp_path / "a.bin"
    path.write_bytes(testing.dump([testing.record(0)]))
    hidden = [name for name in sys.modules if name.startswith("textual.")]  # of tests before
    for name in ("textual", *hidden):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("hmb_trace.view.viewer", "hmb_trace.top.app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    for words in (("view", str(path)), ("top", str(tmp_path))):
        assert_one_line(call(["hmb-trace", *words], capfd), 2, "hmb-trace[ui]")


@pytest.mark.parametrize(
    "words",
    ["info", "info --json", "verify", "repair -n", "gaps", "stats", "pack", "doctor"],
)
def test_no_control_character_of_a_file_name_reaches_the_terminal(
    tmp_path: Path, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Dumps come from others, and so do their names: said on stdout, in notes, in tables."""
    torn, whole = (tmp_path / f"x\x1b[31m\n{name}.bin" for name in ("torn", "whole"))
    records = [testing.record(0), testing.record(9)]
    whole.write_bytes(testing.dump(records))
    torn.write_bytes(testing.dump(records)[:-1])
    for files in ([torn], [whole], [whole, whole]):
        out, err = call(["hmb-trace", *words.split(), *map(str, files)], capfd)[1:]
        assert "\x1b" not in out + err
        assert "x\n" not in out + err


def test_no_control_character_of_a_catalog_reaches_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    catalog, dump = tmp_path / "c\x1b[1m.toml", tmp_path / "x.bin"
    catalog.write_text(
        'name = "n\\u001b[1m"\n[[event]]\nopcode = 0\nname = "A\\u001b[31m"\n'
        'field = [{ name = "a", type = "u64" }]\n'
    )
    dump.write_bytes(testing.dump([testing.record(0), testing.record(1)]))
    options = ["--catalog", str(catalog)]
    for words in (
        ["catalog", "check", str(catalog)],
        ["stats", str(dump), *options],
        ["decode", str(dump), *options],
        ["convert", "--to", "ctf", str(dump), "-o", str(tmp_path / "ctf"), *options],
        ["pack", str(dump), "-o", str(tmp_path / "p\x1b[1m.pccx"), *options],
        ["info", str(tmp_path / "p\x1b[1m.pccx")],
        ["verify", str(tmp_path / "p\x1b[1m.pccx")],
        ["unpack", str(tmp_path / "p\x1b[1m.pccx"), "-o", str(tmp_path / "u\x1b[1m.bin")],
    ):
        code, out, err = call(["hmb-trace", *words], capfd)
        assert code == 0, err
        assert "\x1b" not in out + err
