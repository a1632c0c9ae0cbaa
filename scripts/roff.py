# SPDX-License-Identifier: Apache-2.0
"""Markdown to man pages: as much of it as our documents use."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.token import Token


def escape(text: str) -> str:
    """Text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in ".'" else line for line in text.split("\n"))


def title_line(name: str, section: int, date: str) -> str:
    """The .TH line."""
    coding = '.\\" -*- coding: utf-8 -*-'
    return f'{coding}\n.TH "{name.upper()}" "{section}" "{date}" "hmb\\-trace" "hmb\\-trace"\n'


def preformatted(text: str) -> str:
    """Lines kept as they are."""
    return f".sp\n.RS 2\n.nf\n{escape(text.rstrip())}\n.fi\n.RE\n"


def from_markdown(text: str) -> str:
    """The body of a man page; headings of level 2 become .SH, deeper ones .SS."""
    writer = _Writer()
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        writer.take(token)
    return "".join(writer.out)


_INDENT = ("bullet_list", "ordered_list", "blockquote")
_FIXED = {f"{name}_open": ".RS 2\n" for name in _INDENT}
_FIXED |= {f"{name}_close": ".RE\n" for name in _INDENT}


class _Writer:
    """Takes one token after the other."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self._heading = 0
        self._rows: list[list[str]] | None = None

    def take(self, token: Token) -> None:
        kind = token.type
        if kind in _FIXED:
            self.out.append(_FIXED[kind])
        elif kind.startswith("heading_"):
            self._heading = int(token.tag[1]) if kind == "heading_open" else 0
        elif kind in ("fence", "code_block"):
            self.out.append(preformatted(token.content))
        elif kind == "list_item_open":
            mark = f"{token.info}." if token.info else "\\(bu"
            self.out.append(f'.IP "{mark}" 3\n')
        elif kind == "paragraph_open" and not token.level:
            self.out.append(".PP\n")
        elif kind == "inline":
            self._inline(token)
        else:
            self._table(kind)

    def _inline(self, token: Token) -> None:
        if self._rows is not None:
            self._rows[-1].append(_plain(token))
        elif self._heading:
            self.out.append(_heading(self._heading, _plain(token)))
        else:
            self.out.append(f"{_inline(token)}\n")

    def _table(self, kind: str) -> None:
        if kind == "table_open":
            self._rows = []
        elif kind == "tr_open" and self._rows is not None:
            self._rows.append([])
        elif kind == "table_close" and self._rows is not None:
            self.out.append(_table(self._rows))
            self._rows = None


def _heading(level: int, text: str) -> str:
    if level == 1:
        return ""
    name = text.upper() if level == 2 else text
    return f'.{"SH" if level == 2 else "SS"} "{escape(name)}"\n'


def _plain(token: Token) -> str:
    return "".join(
        " " if t.type in ("softbreak", "hardbreak") else t.content for t in token.children or []
    )


_MARKS = {
    "strong_open": "\\fB",
    "strong_close": "\\fR",
    "em_open": "\\fI",
    "em_close": "\\fR",
    "softbreak": "\n",
    "hardbreak": "\n.br\n",
}


def _inline(token: Token) -> str:
    out = []
    for part in token.children or []:
        if part.type == "code_inline":
            out.append(f"\\fB{escape(part.content)}\\fR")
        elif part.type == "text":
            out.append(escape(part.content))
        else:
            out.append(_MARKS.get(part.type, ""))
    return "".join(out)


def _table(rows: list[list[str]]) -> str:
    """Narrow tables as columns; wide ones as a list of their first column."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if sum(widths) + 2 * len(widths) <= 74:
        lines = ("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows)
        return preformatted("\n".join(line.rstrip() for line in lines))
    out = []
    for row in rows[1:]:
        rest = "; ".join(
            f"{head}: {cell}" if len(row) > 2 and head else cell
            for head, cell in zip(rows[0][1:], row[1:], strict=True)
            if cell
        )
        out.append(f".TP\n\\fB{escape(row[0])}\\fR\n{escape(rest)}\n")
    return "".join(out)
