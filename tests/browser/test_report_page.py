# SPDX-License-Identifier: Apache-2.0
"""The report in Chromium: no complaint, nothing loaded, right numbers, usable by anyone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.chromium import Chromium

from hmb_trace import testing
from hmb_trace.cli import main
from tests.conftest import require

pytestmark = pytest.mark.browser
EVIL = '<script>document.title="owned"</script>'
CATALOG = f"""
name = "test"
[[event]]
opcode = 1
name = 'read_begin'
kind = "begin"
pair = "read_end"
[[event]]
opcode = 2
name = 'read_end'
kind = "end"
[[event]]
opcode = 3
name = '{EVIL}'
format = 'say {EVIL} {{n}}'
[[event.field]]
name = "n"
type = "u64"
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    require(program, "no chromium (apt install chromium)")
    assert program is not None
    started = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on 3,000 records with a gap, made as a user would make it."""
    folder = tmp_path_factory.mktemp("report")
    seqs = [*range(1500), *range(2000, 3500)]
    (folder / "a.bin").write_bytes(
        testing.dump(
            testing.record(s, s.to_bytes(8, "little"), ts_ns=s * 1000, opcode=1 + s % 3, cpu=s % 4)
            for s in seqs
        )
    )
    (folder / "catalog.toml").write_text(CATALOG)
    out = folder / "report.html"
    catalog = str(folder / "catalog.toml")
    assert main(["report", str(folder / "a.bin"), "--catalog", catalog, "-q", "-o", str(out)]) == 0
    return out


SIZES = [(1280, 900, False), (1280, 900, True), (400, 800, False), (400, 800, True)]


@pytest.mark.parametrize(("width", "height", "dark"), SIZES)
def test_report_page_draws_without_complaint_and_loads_nothing(
    browser: Chromium, page: Path, width: int, height: int, dark: bool
) -> None:
    browser.open(page, width, height, dark=dark)
    browser.until("document.querySelectorAll('#timeline-chart svg path').length > 2")
    browser.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    browser.settle()
    assert browser.complaints == []
    assert [r for r in browser.requests if not r.startswith("data:")] == [page.as_uri()]


@pytest.mark.parametrize("width", [320, 400, 1280])
def test_report_page_never_scrolls_sideways_as_a_whole(
    browser: Chromium, page: Path, width: int
) -> None:
    browser.open(page, width, 800)
    beyond = browser.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll,nav') &&"
        "e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 120))"
    )
    assert beyond == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


def test_report_page_numbers_equal_info_json(
    browser: Chromium, page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["info", "--json", str(page.with_name("a.bin"))])
    info: dict[str, Any] = json.loads(capsys.readouterr().out)
    browser.open(page, 1280, 900)
    for key in ("records", "lost", "gaps", "bytes", "duplicates", "wrap_markers"):
        tile = f"document.querySelector('dd[data-key={key}]')"
        assert browser.evaluate(f"{tile}.dataset.value") == str(info[key])
    assert browser.evaluate("document.querySelector('dd[data-key=lost]').firstChild.data") == "500"
    rows = "[...document.querySelectorAll('tr[data-opcode]')]"
    counts = browser.evaluate(f"{rows}.map(r => +r.cells[3].dataset.sort)")
    assert sum(counts) == info["records"]


def test_report_page_opcode_named_script_stays_text(browser: Chromium, page: Path) -> None:
    browser.open(page, 1280, 900)
    assert "owned" not in browser.evaluate("document.title")
    names = browser.evaluate(
        "[...document.querySelectorAll('tr[data-opcode] td:first-child')].map(c => c.innerText)"
    )
    assert EVIL in names
    assert browser.evaluate("document.querySelectorAll('script').length") == 2
    messages = browser.evaluate("document.querySelector('#records-table tbody').innerText")
    assert f"say {EVIL} 2" in messages


def test_report_page_search_filters_and_pages(browser: Chromium, page: Path) -> None:
    browser.open(page, 1280, 900)
    said = "document.getElementById('record-count').textContent"
    total = browser.evaluate(said)
    assert "page 1 of" in total
    browser.evaluate("document.getElementById('record-forth').click()")
    assert "page 2 of" in browser.evaluate(said)
    browser.evaluate(
        "(() => { const f = document.getElementById('record-search'); f.value = '1499';"
        "f.dispatchEvent(new Event('input')); })()"
    )
    assert (
        browser.evaluate("document.querySelector('#records-table tbody tr').cells[2].innerText")
        == "1499"
    )
    assert "page 1 of 1" in browser.evaluate(said)


def test_report_page_timeline_by_keyboard(browser: Chromium, page: Path) -> None:
    browser.open(page, 1280, 900)
    browser.evaluate("document.getElementById('timeline-chart').focus()")
    browser.key("ArrowRight")
    spoken = browser.evaluate("document.getElementById('timeline-live').textContent")
    assert "/s" in spoken
    reset = "document.getElementById('timeline-reset').disabled"
    assert browser.evaluate(reset)
    browser.key("+")
    assert not browser.evaluate(reset)
    browser.key("Escape")
    assert browser.evaluate(reset)
    assert browser.complaints == []


def test_report_page_tables_sort(browser: Chromium, page: Path) -> None:
    browser.open(page, 1280, 900)
    head = "document.querySelectorAll('#cpus th')[1]"
    browser.evaluate(f"{head}.querySelector('button').click()")
    assert browser.evaluate(f"{head}.getAttribute('aria-sort')") == "descending"
    counts = browser.evaluate(
        "[...document.querySelectorAll('tr[data-cpu]')].map(r => +r.cells[1].dataset.sort)"
    )
    assert counts == sorted(counts, reverse=True)


CONTRAST = """
(() => {
  const lum = (c) => {
    const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const back = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (!/, 0\\)$|transparent/.test(c)) return c;
    }
    return "rgb(255,255,255)";
  };
  const bad = [];
  const texts = "h1,h2,h3,p,td,th,dt,dd,a,button,li,small,span,caption,summary";
  const unseen = "[hidden],.visually-hidden,.skip,:disabled";
  for (const e of document.querySelectorAll(texts)) {
    if (!e.innerText?.trim() || e.closest(unseen)) continue;
    const [a, b] = [lum(getComputedStyle(e).color), lum(back(e))].sort((p, q) => q - p);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push(`${e.tagName} ${e.innerText.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return bad;
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_report_page_contrast_is_at_least_aa(browser: Chromium, page: Path, dark: bool) -> None:
    browser.open(page, 1280, 900, dark=dark)
    assert browser.evaluate(CONTRAST) == []


def test_report_page_names_everything_that_takes_input(browser: Chromium, page: Path) -> None:
    """Every control has a name, every scrolling region can be reached by keyboard."""
    browser.open(page, 1280, 900)
    nameless = browser.evaluate(
        "[...document.querySelectorAll('button,input,select,[role=img],[role=region]')]"
        ".filter(e => !e.innerText?.trim() && !e.labels?.length && !e.getAttribute('aria-label'))"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []
    assert browser.evaluate("document.querySelectorAll('.scroll:not([tabindex])').length") == 0


def test_report_page_theme_button(browser: Chromium, page: Path) -> None:
    browser.open(page, 1280, 900)
    before = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    browser.evaluate("document.getElementById('theme').click()")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert browser.complaints == []
