# SPDX-License-Identifier: Apache-2.0
"""From findings to the page: numbers to text, layers to paths, all into one template."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from hmb_trace import __version__
from hmb_trace.dumps.account import Verdict
from hmb_trace.layout import RecordFlag
from hmb_trace.query.histogram import LogHistogram
from hmb_trace.report.counters import Counter
from hmb_trace.report.gather import FileFacts, Findings, GapFacts
from hmb_trace.report.names import Names
from hmb_trace.report.sample import Kept
from hmb_trace.units import format_duration, format_size

I64 = npt.NDArray[np.int64]
STACKED = 8  # opcodes with a colour of their own in the timeline; colour 8 is all others
OPCODES_LISTED = 200
FILES_LISTED = 300
TIMELINE_SLOTS = 1024
SPARK_SLOTS = 120
REASONS_LISTED = 500
_OTHER = STACKED
_COLOURS = {
    Verdict.WHOLE: "good",
    Verdict.DAMAGED: "warn",
    Verdict.LOSSY: "bad",
    Verdict.INCOMPLETE: "bad",
    Verdict.UNVERIFIED: "grey",
}


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=False, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(grouped=grouped, duration=duration, size=format_size)
    return environment.from_string(_text("report.html.j2"))


def render(found: Findings, names: Names, title: str) -> str:
    """The whole page."""
    template = _template()
    page = _Page(found, names)
    data = page.data()
    script = _text("report.js")
    return template.render(
        title=title,
        version=__version__,
        made=_utc(datetime.datetime.now(datetime.UTC).timestamp()),
        css=Markup(_text("report.css")),
        js=Markup(script),
        js_hash=_hash(script),
        data=data,
        data_json=Markup(script_json(data)),
        **page.context(data),
    )


def _hash(script: str) -> str:
    """What a content-security policy calls the one script that may run."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def script_json(data: object) -> str:
    """JSON that can stand inside <script>: nothing in it can end the element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def grouped(value: int | None) -> str:
    """1234567 -> 1,234,567."""
    return "-" if value is None else f"{value:,}"


def duration(nanoseconds: float) -> str:
    """Nanoseconds for people: 1.5 µs."""
    return format_duration(nanoseconds).replace("us", "µs")


def spark_path(counts: Sequence[int] | I64) -> str:
    """An SVG path in a 120 x 22 box."""
    if len(counts) > SPARK_SLOTS // 4:
        counts = counts[:-1]  # the last slot is not over: it would look like a fall
    peak = max((int(c) for c in counts), default=0)
    if peak == 0 or len(counts) < 2:
        return ""
    step = SPARK_SLOTS / (len(counts) - 1)
    points = (f"{i * step:.1f},{21 - 20 * int(c) / peak:.1f}" for i, c in enumerate(counts))
    return "M" + "L".join(points)


class _Page:
    def __init__(self, found: Findings, names: Names) -> None:
        self.found = found
        self.names = names
        self.records = int(found.walker.records)
        order = np.argsort(-found.opcode_records, kind="stable")
        self.ranking: list[int] = order[: np.count_nonzero(found.opcode_records)].tolist()
        self.colours = {op: min(i, _OTHER) for i, op in enumerate(self.ranking[:STACKED])}

    # ---- what the script draws ----

    def data(self) -> dict[str, Any]:
        """Everything that the page's script reads."""
        latencies = self.found.latencies
        histograms = {"payload": self._histogram(self.found.payload, "B", 0)}
        histograms["interval"] = self._histogram(self.found.interval, "ns", 2)
        heats = {}
        for i, pair in enumerate(latencies.pairs()):
            if pair.histogram.count:
                histograms[f"pair-{i}"] = self._histogram(pair.histogram, "ns", 0)
                heats[f"pair-{i}"] = pair.heat(self.found.grid)
        account = self.found.account.as_dict()
        account["reasons"] = account["reasons"][:REASONS_LISTED]
        return {
            "account": account,
            "timeline": self._timeline(),
            "histograms": {k: h for k, h in histograms.items() if h["buckets"]},
            "heats": heats,
            "counters": [counter.drawn(self.found.grid) for counter in self.found.counters.seen()],
            "sample": {"rows": [self._row(kept) for kept in self.found.sampler.rows()]},
        }

    def _timeline(self) -> dict[str, Any] | None:
        grid = self.found.grid
        if not self.records:
            return None
        history = grid.read("opcode", TIMELINE_SLOTS)
        rows = {op: row for row, op in enumerate(self.found.opcodes.known)}
        stacked = [op for op in self.colours if op in rows]
        ops = [
            {
                "name": self.names.opcode(op),
                "colour": self.colours[op],
                "counts": history[rows[op]].tolist(),
            }
            for op in stacked
        ]
        others = history.sum(axis=0) - sum(history[rows[op]] for op in stacked)
        if others.any():
            ops.append({"name": "all others", "colour": _OTHER, "counts": others.tolist()})
        return {
            "lead_ns": (self.found.first_shown_ns or 0) - grid.start_ns,
            "end_ns": self.found.last_shown_ns + 1 - grid.start_ns,
            "width_ns": grid.width_ns * grid.merge_factor(TIMELINE_SLOTS),
            "records": grid.read("records", TIMELINE_SLOTS)[0].tolist(),
            "bytes": grid.read("bytes", TIMELINE_SLOTS)[0].tolist(),
            "lost": grid.read("lost", TIMELINE_SLOTS)[0].tolist(),
            "bands": self._bands(),
            "marks": [(mark.shown_ns - grid.start_ns, mark.text) for mark in self.found.marks],
            "ops": ops,
        }

    def _bands(self) -> list[tuple[int, int]]:
        """Times between which records are missing, where that is long enough to be seen."""
        start, width = self.found.grid.start_ns, self.found.grid.width_ns
        return [
            (gap.before_ns - start, gap.shown_ns - start)
            for gap in self.found.gaps
            if gap.place.lost != 0 and gap.shown_ns - gap.before_ns > 2 * width
        ]

    @staticmethod
    def _histogram(histogram: LogHistogram, unit: str, colour: int) -> dict[str, Any]:
        marks = [(f"p{q * 100:g}", histogram.quantile(q)) for q in (0.5, 0.99)]
        buckets = histogram.coarse()
        peak = max((n for _, _, n in buckets), default=0)
        return {
            "buckets": buckets,
            "unit": unit,
            "colour": colour,
            "marks": marks if histogram.minimum != histogram.maximum else [],
            "log": peak > 1000,
        }

    def _row(self, kept: Kept) -> list[Any]:
        flags = RecordFlag(kept.flags & 3).name or ""
        unknown = kept.flags & ~3
        return [
            self._relative(kept.shown_ns),
            str(kept.ts_ns),  # text: beyond 2^53 a JavaScript number would round
            kept.seq,
            self.names.opcode(kept.opcode),
            kept.cpu,
            " ".join(filter(None, [flags, f"0x{unknown:02x}" if unknown else ""])),
            len(kept.payload),
            self.names.message(kept),
            int(kept.after_gap),
        ]

    def _relative(self, shown_ns: int) -> str:
        return f"+{(shown_ns - (self.found.first_shown_ns or 0)) / 1e9:.9f} s"

    # ---- what the template writes ----

    def context(self, data: dict[str, Any]) -> dict[str, Any]:
        """Everything else that the template names."""
        opcodes = [self._opcode(op) for op in self.ranking[:OPCODES_LISTED]]
        return {
            "account": self._account(),
            "badges": self._badges(),
            "subtitle": self._subtitle(),
            "alerts": self.found.alerts[:20],
            "tiles": self._tiles(),
            "timeline": self._timeline_words(data["timeline"]),
            "pairs": [p.words() | {"id": i} for i, p in enumerate(self.found.latencies.pairs())],
            "counters": [_counter_words(counter) for counter in self.found.counters.seen()],
            "catalog": self.names.catalogued,
            "opcodes": {
                "rows": opcodes,
                "total": len(self.ranking),
                "top": max((o["share"] for o in opcodes), default=1),
            },
            "cpus": self._cpus(),
            "distributions": self._distributions(data["histograms"]),
            "gaps": {"rows": self._gaps(), "total": self.found.account.gaps},
            "reasons": self._reasons(),
            "pieces": [(self._relative(m.shown_ns), m.text) for m in self.found.marks],
            "episodes": [e for f in self.found.files for e in _episodes(f)][:200],
            "collected": self._counters(),
            "facts": self._facts(),
            "files": {
                "rows": [_file_row(f) for f in self.found.files[:FILES_LISTED]],
                "total": len(self.found.files),
            },
            "sample_note": self._sample_note(data["sample"]["rows"]),
        }

    def _account(self) -> dict[str, Any]:
        w, account = self.found.walker, self.found.account
        return {
            "records": self.records,
            "gaps": account.gaps,
            "lost": account.lost,
            "verdict": str(account.verdict),
            "line": account.line(),
            "begins": account.begins,
            "first_seq": w.first_seq,
            "last_seq": w.last_record_seq,
        }

    def _reasons(self) -> list[dict[str, Any]]:
        return [
            {
                "kind": reason.kind,
                "count": "unknown" if reason.count is None else grouped(reason.count),
                "file": _short(reason.file or ""),
                "offset": "-" if reason.offset is None else grouped(reason.offset),
                "ts_ns": "-" if reason.fw_ns is None else reason.fw_ns,
                "host": _utc(reason.host_ns / 1e9) if reason.host_ns else "-",
                "text": reason.text,
            }
            for reason in self.found.account.reasons[:REASONS_LISTED]
        ]

    @property
    def elapsed_ns(self) -> int:
        """Between first and last record on the time axis."""
        return self.found.elapsed_ns

    def _badges(self) -> list[dict[str, str]]:
        """The verdict, in the colours that it has everywhere."""
        account = self.found.account
        sign = {"good": "✓", "warn": "!", "bad": "✗", "grey": "?"}
        kind = _COLOURS[account.verdict]
        return [{"kind": kind, "text": f"{sign[kind]} {account.line()}"}]

    def _subtitle(self) -> list[str]:
        found = self.found
        files = len(found.files)
        out = [f"{files} file{'s' if files != 1 else ''}", format_size(found.bytes)]
        cars = [f.sidecar for f in found.files if f.sidecar]
        if cars:
            out.append(f"from {cars[0].device.path}")
            out.append(f"captured {_utc(cars[0].started_ns / 1e9)}")
        epochs, steps = len(found.account.epochs), len(found.account.clock_steps)
        if epochs > 1:
            out.append(f"{epochs} epochs, shown one after the other")
        if steps:
            out.append(f"{steps} clock step{'s' if steps > 1 else ''}, left out of the time axis")
        if found.account.begins:
            out.append(found.account.begins)
        return out

    def _tiles(self) -> list[dict[str, Any]]:
        found, w = self.found, self.found.walker
        rate = self.records / self.elapsed_ns * 1e9 if self.elapsed_ns else 0
        speed = found.bytes / self.elapsed_ns * 1e9 if self.elapsed_ns else 0
        peak = self._peak()
        seq = f"seq {w.first_seq} to {w.last_record_seq}" if self.records else "no record"
        account = found.account
        lost_note = f"in {grouped(account.gaps)} gap{'s' if account.gaps != 1 else ''}"
        if account.rejected_records:
            lost_note = f"{grouped(account.rejected_records)} more are in the rejects"
        lost = grouped(account.lost) if account.lost_exact else f"≥ {grouped(account.lost)}"
        bad = account.verdict in (Verdict.LOSSY, Verdict.INCOMPLETE)
        return [
            _tile("records", "Records", grouped(self.records), seq, raw=self.records),
            _tile("lost", "Lost", lost, lost_note,
                  kind="bad" if bad else _COLOURS[account.verdict], raw=account.lost),
            _tile("duration", "Duration", duration(self.elapsed_ns), "firmware clock",
                  raw=self.elapsed_ns),
            _tile("rate", "Mean rate", f"{_si(rate)}/s", f"peak {_si(peak)}/s"),
            _tile("bytes", "Bytes", format_size(found.bytes), f"{_si(speed)}B/s", raw=found.bytes),
            _tile("gaps", "Gaps", grouped(account.gaps), "in the sequence numbers",
                  raw=account.gaps),
            _tile("duplicates", "Duplicates", grouped(w.duplicates),
                  f"{grouped(w.sequence_resets)} sequence resets", raw=int(w.duplicates)),
            _tile("wrap_markers", "Wrap markers", grouped(w.wrap_markers),
                  f"{grouped(w.truncated)} truncated payloads", raw=int(w.wrap_markers)),
        ]  # fmt: skip

    def _peak(self) -> float:
        if not self.records:
            return 0.0
        return float(self.found.grid.read("records").max()) / self.found.grid.width_ns * 1e9

    def _timeline_words(self, timeline: dict[str, Any] | None) -> dict[str, Any] | None:
        if timeline is None:
            return None
        rate = self.records / max(self.elapsed_ns, 1) * 1e9
        lost = self.found.account.lost
        losses = f", {grouped(lost)} lost (hatched)" if lost else ""
        words = (
            f"{grouped(self.records)} records over {duration(self.elapsed_ns)}: "
            f"{_si(rate)}/s on average, {_si(self._peak())}/s at most{losses}."
        )
        return {"summary": words, "ops": timeline["ops"]}

    def _opcode(self, opcode: int) -> dict[str, Any]:
        found = self.found
        records = int(found.opcode_records[opcode])
        size = int(found.opcode_bytes[opcode])
        row = {op: i for i, op in enumerate(found.opcodes.known)}.get(opcode)
        history = found.grid.read("opcode", SPARK_SLOTS)
        return {
            "opcode": opcode,
            "name": self.names.opcode(opcode),
            "kind": self.names.kind(opcode),
            "colour": self.colours.get(opcode),
            "records": records,
            "share": records / self.records,
            "bytes": size,
            "mean_payload": int(found.opcode_payload[opcode]) / records,
            "spark": "" if row is None else spark_path(history[row]),
        }

    def _cpus(self) -> list[dict[str, Any]]:
        found = self.found
        if not self.records:
            return []
        history = found.grid.read("cpu", SPARK_SLOTS)
        rows = {cpu: i for i, cpu in enumerate(found.cpus.known)}
        out = []
        for cpu, counts in sorted(found.cpu_opcode.items()):
            records = int(counts.sum())
            out.append(
                {
                    "cpu": cpu,
                    "records": records,
                    "share": records / self.records,
                    "bytes": int(found.cpu_bytes[cpu]),
                    "busiest": self.names.opcode(int(counts.argmax())),
                    "spark": spark_path(history[rows[cpu]]) if cpu in rows else "",
                }
            )
        return out

    def _distributions(self, histograms: dict[str, Any]) -> list[dict[str, str]]:
        payload, interval = self.found.payload, self.found.interval
        out = []
        if "payload" in histograms:
            words = f"{payload.minimum} to {payload.maximum} B, {payload.mean:.1f} B on average."
            if payload.minimum == payload.maximum:
                words = f"{payload.minimum} B, all of them."
            out.append({"id": "payload", "title": "Payload length", "summary": words})
        if "interval" in histograms:
            words = (
                f"Half within {duration(interval.quantile(0.5))}, "
                f"99 % within {duration(interval.quantile(0.99))}, "
                f"the longest pause {duration(interval.maximum)}."
            )
            if self.found.backwards:
                words += f" {grouped(self.found.backwards)} times the clock went back."
            out.append({"id": "interval", "title": "Time between records", "summary": words})
        return out

    def _gaps(self) -> list[dict[str, Any]]:
        return [self._gap(gap) for gap in self.found.gaps]

    def _gap(self, gap: GapFacts) -> dict[str, Any]:
        place = gap.place
        return {
            "time": self._relative(gap.shown_ns),
            "ts_ns": "-" if place.ts_ns is None else place.ts_ns,
            "seq_before": "-" if place.seq_before is None else place.seq_before,
            "seq_after": "-" if place.seq_after is None else place.seq_after,
            "lost": "unknown" if place.lost is None else grouped(place.lost),
            "lost_sort": place.lost or 0,
            "rejected": place.rejected,
            "file": _short(place.file),
            "offset": place.offset,
            "cause": place.kind,
        }

    def _counters(self) -> list[tuple[str, int]]:
        total: dict[str, int] = {}
        for car in (f.sidecar for f in self.found.files):
            for name, value in (car.counters if car else {}).items():
                total[name] = total.get(name, 0) + value
        return [(name.replace("_", " "), value) for name, value in total.items()]

    def _facts(self) -> list[tuple[str, str]]:
        cars = [f.sidecar for f in self.found.files if f.sidecar]
        if not cars:
            return []
        first, last = cars[0], cars[-1]
        drive = first.device
        facts = [
            ("Device", drive.path),
            ("Drive", " ".join(filter(None, [drive.model, drive.serial, drive.firmware]))),
            ("Ring", format_size(first.ring_size) if first.ring_size else ""),
            ("Label", first.label),
            ("Captured (UTC)", f"{_utc(first.started_ns / 1e9)} to {_utc(last.sealed_ns / 1e9)}"),
        ]
        return [(name, value) for name, value in facts if value]

    def _sample_note(self, rows: list[Any]) -> str:
        if len(rows) == self.records:
            return f"All {grouped(self.records)} records."
        return (
            f"{grouped(len(rows))} of {grouped(self.records)} records: both ends, both sides of "
            "the gaps, the first of every opcode, and a sample at even distances. "
            "'hmb-trace decode' and 'hmb-trace sql' show all of them."
        )


def _tile(
    key: str, label: str, value: str, small: str = "", *, kind: str = "", raw: int | None = None
) -> dict[str, Any]:
    return {
        "key": key, "label": label, "value": value, "small": small, "kind": kind, "raw": raw
    }  # fmt: skip


def _counter_words(counter: Counter) -> dict[str, str]:
    unit = f" {counter.field.unit}" if counter.field.unit else ""
    low, mean, high = (
        f"{value:,.6g}{unit}"
        for value in (counter.minimum, counter.total / counter.count, counter.maximum)
    )
    words = f"{grouped(counter.count)} values from {low} to {high}, {mean} on average."
    return {"name": counter.name, "summary": words}


def _episodes(file: FileFacts) -> list[dict[str, Any]]:
    if not file.sidecar:
        return []
    return [
        {
            "host": _utc(e.host_ns / 1e9),
            "file": _short(file.name),
            "before": "-" if e.last_seq_before is None else e.last_seq_before,
            "after": "-" if e.first_seq_after is None else e.first_seq_after,
            "lost": "unknown (at least 1)" if e.lost is None else grouped(e.lost),
        }
        for e in file.sidecar.episodes
    ]


def _file_row(file: FileFacts) -> dict[str, Any]:
    car = file.sidecar
    return {
        "name": _short(file.name),
        "records": file.records,
        "bytes": file.bytes,
        "lost": file.lost,
        "first_seq": "-" if file.first_seq is None else file.first_seq,
        "last_seq": "-" if file.last_seq is None else file.last_seq,
        "epoch": car.epoch if car else "-",
        "started": _utc(car.started_ns / 1e9) if car else "-",
        "cause": car.cause if car else "-",
        "xxh3": car.xxh3 if car else "-",
    }


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _utc(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def _si(value: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g} "


def _text(name: str) -> str:
    text = resources.files("hmb_trace.report").joinpath("templates", name)
    return text.read_text(encoding="utf-8")
