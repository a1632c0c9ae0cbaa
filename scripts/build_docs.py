#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make docs: man pages from the programs' own help and from docs/, and docs/ as HTML."""

from __future__ import annotations

import argparse
import datetime
import html
import importlib
import inspect
import os
import re
from pathlib import Path

import click
from markdown_it import MarkdownIt
from roff import escape, from_markdown, preformatted, title_line

ROOT = Path(__file__).resolve().parents[1]
# Which document becomes which page: (name, section, one line about it).
PAGES = {
    "format.md": ("hmb-trace-format", 5, "ring, record and dump formats"),
    "catalog.md": ("hmb-trace-catalog", 5, "what firmware's opcodes mean"),
    "concepts.md": ("hmb-trace-concepts", 7, "the words, from the ring to the report"),
    "durability.md": ("hmb-trace-durability", 7, "what a capture survives, and what it does not"),
    "analysis.md": ("hmb-trace-analysis", 7, "looking at captures"),
    "hardware.md": ("hmb-trace-hardware", 7, "capturing from a real drive"),
}
EXIT_STATUS = """0 fine; 1 a problem in the data; 2 usage; 65 not a valid ring, dump or .pccx;
66 no such device or file; 69 device busy; 73 cannot create output; 74 I/O error; 76 ABI version
too new; 77 permission; 78 bad configuration; 130 ended by Ctrl-C; 141 the reader of the output
went away."""
CONFIG_INTRO = """
## Files
- /etc/hmb-trace/daemon.toml
- /etc/hmb-trace/daemon.d/*.toml, read after it in the order of their names

## Description
TOML, one key for each option of hmb-trace-daemon(8), without the two hyphens. What is read later
wins; `HMB_TRACE_*` in the environment wins over the files, and the command line over both.
Sizes, times and rates are strings with units, as on the command line. Keys marked (reload) are
taken over by a running daemon on SIGHUP.

`hmb-trace-daemon --check-config` tests the files, `--print-config` prints what is in force.

## Keys
"""
CONFIG_EXAMPLE = """output-dir = "/srv/traces"
rotate-size = "4GiB"
max-age = "14d"
compress = "zstd:3"
"""
_NO_KEY = {"config", "check_config", "print_config", "version", "help"}
STYLE = """
:root { color-scheme: light dark; }
body { max-width: 54rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.6 system-ui, sans-serif; }
pre, code { font-family: ui-monospace, monospace; font-size: .9em; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid #8886; border-radius: 6px; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { border: 1px solid #8886; padding: .3rem .6rem; text-align: left; vertical-align: top; }
"""


def _date() -> str:
    """Of the release, for reproducible pages."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.datetime.now(datetime.UTC)
    if epoch:
        moment = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
    return moment.strftime("%Y-%m-%d")


def commands() -> dict[str, tuple[click.Command, int]]:
    """Every command of ours with its section of the manual."""
    tools = importlib.import_module("hmb_trace.cli").hmb_trace
    context = click.Context(tools, info_name="hmb-trace")
    found: dict[str, tuple[click.Command, int]] = {
        "hmb-trace": (tools, 1),
        "hmb-trace-daemon": (importlib.import_module("hmb_daemon.cli").command, 8),
        "hmb-firmware-sim": (
            importlib.import_module("hmb_producer_sim.cli").hmb_firmware_sim,
            1,
        ),
    }
    for name in tools.list_commands(context):
        command = tools.get_command(context, name)
        assert command is not None
        found[f"hmb-trace-{name}"] = (command, 1)
    return found


def command_page(name: str, command: click.Command, section: int, others: list[str]) -> str:
    """A man page from a command's help."""
    shown = name.replace("hmb-trace-", "hmb-trace ", 1) if section == 1 else name
    context = click.Context(command, info_name=shown, terminal_width=78, max_content_width=78)
    summary = command.get_short_help_str(200).rstrip(".")
    usage = " ".join([shown, *command.collect_usage_pieces(context)])
    out = [title_line(name, section, _date())]
    out.append(f".SH NAME\n{escape(name)} \\- {escape(summary)}\n")
    out.append(f".SH SYNOPSIS\n\\fB{escape(usage)}\\fR\n.SH DESCRIPTION\n")
    out += _help_text("\n".join(filter(None, [command.help, command.epilog])))
    out.append(f".SH OPTIONS\n{_options(command, context)}")
    if isinstance(command, click.Group):
        out.append(".SH COMMANDS\n")
        out += _subcommands(command, context, whole=name != "hmb-trace")
    more = ROOT / "docs" / "man" / f"{name}.md"
    if more.exists():
        out.append(from_markdown(more.read_text(encoding="utf-8")))
    out.append(f'.SH "EXIT STATUS"\n{escape(" ".join(EXIT_STATUS.split()))}\n')
    out.append(f'.SH "SEE ALSO"\n{escape(", ".join(o for o in others if o != name))}\n')
    return "".join(out)


def _options(command: click.Command, context: click.Context) -> str:
    options = (p for p in command.get_params(context) if isinstance(p, click.Option))
    records = [option.get_help_record(context) for option in options]
    return "".join(f".TP\n\\fB{escape(r[0])}\\fR\n{escape(r[1])}\n" for r in records if r)


def _subcommands(group: click.Group, context: click.Context, *, whole: bool) -> list[str]:
    """One line for each, or all that its help says where it has no page of its own."""
    out = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not whole:
            line = command.get_short_help_str(200)
            out.append(f".TP\n\\fB{escape(name)}\\fR\n{escape(line)}\n")
            continue
        below = click.Context(command, info_name=name, parent=context)
        usage = " ".join([below.command_path, *command.collect_usage_pieces(below)])
        out.append(f'.SS "{escape(usage)}"\n')
        out += _help_text(command.help or "")
        out.append(_options(command, below))
    return out


def config_page(command: click.Command, reloadable: frozenset[str], others: list[str]) -> str:
    """hmb-trace-daemon.toml(5): the keys are the daemon's own options."""
    context = click.Context(command, info_name="hmb-trace-daemon")
    out = [title_line("hmb-trace-daemon.toml", 5, _date())]
    out.append(".SH NAME\nhmb\\-trace\\-daemon.toml \\- configuration of the capture daemon\n")
    out.append(from_markdown(CONFIG_INTRO))
    for option in command.get_params(context):
        if isinstance(option, click.Option) and option.name and option.name not in _NO_KEY:
            record = option.get_help_record(context)
            key = option.name.replace("_", "-")
            text = record[1] if record else ""
            mark = " (reload)" if option.name in reloadable else ""
            kind = (
                "true or false"
                if option.is_flag
                else (record[0].split(" ", 1)[1] if record else "")
            )
            out.append(f".TP\n\\fB{escape(key)}\\fR = {escape(kind)}{mark}\n{escape(text)}\n")
    out.append(f".SH EXAMPLE\n{preformatted(CONFIG_EXAMPLE)}")
    out.append(f'.SH "SEE ALSO"\n{escape(", ".join(others))}\n')
    return "".join(out)


def _help_text(text: str) -> list[str]:
    """Paragraphs; those that click keeps as they are (\\b) stay as they are."""
    out = []
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        kept = part.lstrip().startswith("\b")
        body = part.replace("\b\n", "").replace("\b", "").strip("\n")
        out.append(preformatted(body) if kept else f".PP\n{escape(' '.join(body.split()))}\n")
    return out


def write_manual(target: Path) -> int:
    """All man pages below target (man1, man5 ...); how many."""
    found = commands()
    programs = list(found)[:3]  # the pages of single tools are found from hmb-trace(1)
    others = [f"{name}({found[name][1]})" for name in programs] + ["hmb-trace-daemon.toml(5)"]
    documents = {f: page for f, page in PAGES.items() if (ROOT / "docs" / f).exists()}
    others += [f"{name}({section})" for name, section, _ in documents.values()]
    pages = {
        (name, section): command_page(name, command, section, others)
        for name, (command, section) in found.items()
    }
    for file, (name, section, about) in documents.items():
        body = from_markdown((ROOT / "docs" / file).read_text(encoding="utf-8"))
        head = title_line(name, section, _date())
        pages[name, section] = (
            f"{head}.SH NAME\n{escape(name)} \\- {escape(about)}\n.SH DESCRIPTION\n{body}"
        )
    reloadable = importlib.import_module("hmb_daemon.settings").RELOADABLE
    daemon = found["hmb-trace-daemon"][0]
    pages["hmb-trace-daemon.toml", 5] = config_page(daemon, reloadable, others)
    for (name, section), text in pages.items():
        folder = target / f"man{section}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.{section}").write_text(text, encoding="utf-8")
    return len(pages)


def write_html(target: Path) -> int:
    """README, ARCHITECTURE and docs/ as HTML; how many."""
    target.mkdir(parents=True, exist_ok=True)
    sources = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
    for source in sources:
        body = MarkdownIt("commonmark").enable("table").render(source.read_text(encoding="utf-8"))
        body = re.sub(r'href="(?:docs/)?([\w-]+)\.md', r'href="\1.html', body)
        title = html.escape(source.stem)
        text = (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}</style><body>{body}</body></html>\n"
        )
        (target / f"{source.stem}.html").write_text(text, encoding="utf-8")
    return len(sources)


def main() -> None:
    """Write the documentation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--man", type=Path, help="man pages alone, below this directory")
    asked = parser.parse_args()
    if asked.man:
        write_manual(asked.man)
        return
    out = ROOT / "build" / "docs"
    pages, files = write_manual(out / "man"), write_html(out / "html")
    print(f"{pages} man pages: man -M {out / 'man'} hmb-trace")
    print(f"{files} HTML pages: {out / 'html'}")


if __name__ == "__main__":
    main()
