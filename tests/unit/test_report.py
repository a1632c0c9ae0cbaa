# SPDX-License-Identifier: Apache-2.0
"""hmb-trace report: the page's numbers, its safety, its size, its manners."""

from __future__ import annotations

import html.parser
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from hmb_trace import testing
from hmb_trace.catalog.model import Catalog
from hmb_trace.cli import main
from hmb_trace.dumps import sidecar
from hmb_trace.dumps.dump import open_dump
from hmb_trace.layout import RecordFlag
from hmb_trace.report.gather import Gatherer
from hmb_trace.report.page import script_json


class Page(html.parser.HTMLParser):
    """Tiles by key, the embedded data, and everything that could load something."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tiles: dict[str, str] = {}
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)
        data = self.text.split('id="report-data">')[1].split("</script>")[0]
        self.data: dict[str, Any] = json.loads(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        if found.get("data-key") and found.get("data-value") is not None:
            self.tiles[str(found["data-key"])] = str(found["data-value"])
        self.links += [str(v) for k, v in attrs if k in {"src", "href", "srcset", "action"}]


def report(tmp_path: Path, *args: object, code: int = 0) -> Page:
    out = tmp_path / "report.html"
    assert main(["report", *map(str, args), "-q", "-o", str(out)]) == code
    return Page(out)


def info(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    main(["info", "--json", str(path)])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def records(seqs: list[int], **fields: Any) -> bytes:
    return testing.dump(
        testing.record(s, b"payload!", ts_ns=1000 * i, opcode=i % 3, cpu=i % 2, **fields)
        for i, s in enumerate(seqs)
    )


def test_report_numbers_equal_info_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = tmp_path / "a.bin"
    marker = testing.marker(41, ts_ns=5)
    dump.write_bytes(records([1, 2, 2, 9, 8, 30]) + marker + records([41, 42, 50]))
    expected, page = info(dump, capsys), report(tmp_path, dump)
    for key in ("records", "lost", "bytes", "gaps", "duplicates", "wrap_markers"):
        assert page.tiles[key] == str(expected[key]), key
    assert sum(page.data["timeline"]["records"]) == expected["records"]
    assert sum(page.data["timeline"]["bytes"]) == expected["bytes"] - 32
    assert sum(page.data["timeline"]["lost"]) == expected["lost"]
    assert sum(sum(op["counts"]) for op in page.data["timeline"]["ops"]) == expected["records"]


def test_report_loads_nothing_from_outside(tmp_path: Path) -> None:
    dump = tmp_path / "a.bin"
    dump.write_bytes(records([1, 2, 3]))
    page = report(tmp_path, dump)
    assert all(link.startswith(("#", "data:")) for link in page.links), page.links
    assert not {"iframe", "img", "object", "embed"} & set(page.tags)
    assert "default-src 'none'" in page.text
    assert "://" not in page.text.replace("http://www.w3.org/2000/svg", "")


def test_report_script_json_cannot_end_its_element() -> None:
    text = script_json({"</script><script>alert(1)</script>": "&\u2028"})
    assert "<" not in text
    assert "&" not in text
    assert json.loads(text) == {"</script><script>alert(1)</script>": "&\u2028"}


def test_report_subtracts_rejects_that_the_sidecar_knows_r12(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "dev-000001-20260101T000000Z.bin"
    dump.write_bytes(records([1, 2, 8, 9]))
    gap = sidecar.Gap(offset=80, seq_before=2, seq_after=8, lost=3, rejected=2, cause="damage")
    side = sidecar.Sidecar(
        segment=dump.name,
        number=1,
        label="dev",
        device=sidecar.Device(path="/dev/x", model="<b>Drive</b>"),
        gaps=1,
        lost=3,
        gap_list=[gap],
        episodes=[sidecar.Episode(host_ns=10**18, offset=80, last_seq_before=2)],
        complete=False,
    )
    sidecar.sidecar_path(dump).write_bytes(side.encode())
    expected, page = info(dump, capsys), report(tmp_path, tmp_path)
    assert page.tiles["lost"] == str(expected["lost"]) == "3"
    assert sum(page.data["timeline"]["lost"]) == 3
    assert "overflow-unknown" in page.text
    assert "unknown (at least 1)" in page.text
    assert "incomplete" in page.text
    assert "&lt;b&gt;Drive&lt;/b&gt;" in page.text
    assert "<b>Drive" not in page.text


def test_report_of_a_torn_dump_says_where_r13(tmp_path: Path) -> None:
    dump = tmp_path / "a.bin"
    dump.write_bytes(records([1, 2, 3])[:-5])
    page = report(tmp_path, dump)
    assert page.tiles["records"] == "2"
    assert "at byte 80" in page.text
    assert "incomplete" in page.text


def test_report_of_an_empty_dump(tmp_path: Path) -> None:
    dump = tmp_path / "a.bin"
    dump.write_bytes(b"")
    page = report(tmp_path, dump)
    assert page.tiles["records"] == "0"
    assert page.data["timeline"] is None


def test_report_keeps_epochs_apart_on_the_time_axis(tmp_path: Path) -> None:
    for number, epoch in ((1, 0), (2, 1)):
        dump = tmp_path / f"dev-{number:06d}-20260101T000000Z.bin"
        dump.write_bytes(records([1, 2, 3, 4]))
        side = sidecar.Sidecar(
            segment=dump.name, number=number, label="dev", epoch=epoch,
            device=sidecar.Device(path="/dev/x"),
        )  # fmt: skip
        sidecar.sidecar_path(dump).write_bytes(side.encode())
    page = report(tmp_path, tmp_path)
    assert page.tiles["duration"] == str(2 * 3000 + 1)
    assert "2 epochs" in page.text


def test_report_extremes_of_every_field(tmp_path: Path) -> None:
    dump = tmp_path / "a.bin"
    big = {"opcode": 0xFFFF, "cpu": 255, "flags": RecordFlag.TRUNCATED}
    dump.write_bytes(
        testing.record(0xFFFFFFFF, bytes(4064), ts_ns=2**64 - 1, **big)
        + testing.record(0, b"", ts_ns=0)
    )
    page = report(tmp_path, dump)
    assert page.tiles["records"] == "2"
    assert str(2**64 - 1) in page.text
    assert {row[5] for row in page.data["sample"]["rows"]} == {"TRUNCATED", ""}


def test_report_stays_small(tmp_path: Path) -> None:
    """Gaps everywhere and many opcodes: every list of the page is at its limit."""
    head = struct.Struct("<IIQHBBHHQ")
    dump = tmp_path / "a.bin"
    dump.write_bytes(
        b"".join(
            head.pack(0x54434552, 2 * i, i * i, i % 5000, i % 256, 0, 64, 0, 0) + bytes(64)
            for i in range(60_000)
        )
    )
    page = report(tmp_path, dump)
    assert page.tiles["lost"] == str(59_999)
    assert len(page.text.encode()) < 5_000_000


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (lambda p: None, 66, "No such file"),
        (lambda p: p.write_bytes(b"\x7fELF" + bytes(60)), 65, "magic"),
        (lambda p: p.mkdir(), 66, "no dump segments"),
    ],
)
def test_report_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, code: int, words: str
) -> None:
    path = tmp_path / "input"
    make(path)
    assert main(["report", str(path), "-o", str(tmp_path / "r.html")]) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


def test_report_output_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = tmp_path / "a.bin"
    dump.write_bytes(records([1]))
    assert main(["report", str(dump), "-o", str(tmp_path / "no" / "r.html")]) == 73
    assert main(["report", str(dump), "-o", str(tmp_path)]) == 73
    assert capsys.readouterr().err.count("\n") == 2


CATALOG = """
name = "t"
[[event]]
opcode = 1
name = "nand_begin"
kind = "begin"
pair = "nand_end"
key = "tag"
[[event.field]]
name = "tag"
type = "u32"
[[event]]
opcode = 2
name = "nand_end"
kind = "end"
[[event.field]]
name = "tag"
type = "u32"
[[event]]
opcode = 3
name = "flush"
kind = "complete"
duration = "took"
duration_unit = "us"
format = "flush took {took}"
[[event.field]]
name = "took"
type = "u32"
"""


def paired_dump(pairs: list[tuple[int, int, int]], took: list[int]) -> bytes:
    """(tag, begin, end) of each pair; end 0: no end, begin 0: no begin."""
    found = [(begin, 1, tag) for tag, begin, _ in pairs if begin]
    found += [(end, 2, tag) for tag, _, end in pairs if end]
    found += [(10_000 + i, 3, value) for i, value in enumerate(took)]
    return testing.dump(
        testing.record(seq, value.to_bytes(4, "little"), ts_ns=ts, opcode=opcode)
        for seq, (ts, opcode, value) in enumerate(sorted(found))
    )


def test_report_latencies_against_plain_python(tmp_path: Path) -> None:
    pairs = [(tag, 10 + tag, 10 + tag + tag * tag) for tag in range(1, 40)]
    pairs += [(100, 7, 0), (101, 0, 8), (102, 0, 9)]
    (tmp_path / "a.bin").write_bytes(paired_dump(pairs, [5, 7]))
    (tmp_path / "c.toml").write_text(CATALOG)

    catalog = Catalog.load(tmp_path / "c.toml")
    nand, flush = Gatherer(open_dump(tmp_path / "a.bin"), catalog).run().latencies.pairs()
    spans = sorted(end - begin for _, begin, end in pairs if begin and end)
    words = nand.words()
    assert (nand.name, words["count"]) == ("nand", len(spans))
    assert words["spread"][0] == spans[0]
    assert words["spread"][-1] == spans[-1]
    assert spans[19] <= words["spread"][2] <= spans[19] * 129 / 128 + 1
    assert (words["unmatched_begins"], words["unmatched_ends"]) == (1, 2)
    slow = words["slowest"]
    assert [s.duration for s in slow] == sorted(spans, reverse=True)[:20]
    assert (slow[0].key, slow[0].ts_ns) == ("tag=39", 49)
    assert (flush.histogram.minimum, flush.histogram.maximum) == (5000, 7000)


def test_report_names_and_messages_come_from_the_catalog(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(paired_dump([(1, 5, 9)], [77]))
    (tmp_path / "c.toml").write_text(CATALOG)
    page = report(tmp_path, tmp_path / "a.bin", "--catalog", tmp_path / "c.toml")
    assert [(row[3], row[7]) for row in page.data["sample"]["rows"]] == [
        ("nand_begin", "tag=1"),
        ("nand_end", "tag=1"),
        ("flush", "flush took 77"),
    ]
    assert {op["name"] for op in page.data["timeline"]["ops"]} == {
        "nand_begin",
        "nand_end",
        "flush",
    }


def test_report_counters_over_time(tmp_path: Path) -> None:
    values = [3, 5, 0, 250]
    (tmp_path / "a.bin").write_bytes(
        testing.dump(
            testing.record(i, bytes([value]), ts_ns=i * 1000, opcode=9)
            for i, value in enumerate(values)
        )
        + testing.record(4, b"", ts_ns=4000, opcode=9)  # too short to hold the value
    )
    (tmp_path / "c.toml").write_text(
        'name = "t"\n[[event]]\nopcode = 9\nname = "depth"\nkind = "counter"\nvalue = "n"\n'
        '[[event.field]]\nname = "n"\ntype = "u8"\nunit = "commands"\n'
    )
    page = report(tmp_path, tmp_path / "a.bin", "--catalog", tmp_path / "c.toml")
    (counter,) = page.data["counters"]
    assert (counter["name"], counter["unit"]) == ("depth", "commands")
    assert counter["mean"] == [3, 5, 0, 250, None]
    assert "4 values from 0 commands to 250 commands, 64.5 commands on average." in page.text


def test_a_dump_whose_name_is_not_utf8_has_a_report(tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"\xff.bin")
    source.write_bytes(b"")
    output = tmp_path / "report.html"
    assert main(["report", "-o", str(output), str(source)]) == 0
    assert "\\udcff" in output.read_text(encoding="utf-8")
