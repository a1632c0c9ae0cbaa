# SPDX-License-Identifier: Apache-2.0
"""A comparison as one HTML page: findings with the blocks they rest on, drawn without scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hmb_trace.compare.findings import Comparison, Finding

_WIDTH, _HEIGHT, _MIDDLE = 300.0, 48.0, 10.0


def render(found: Comparison, base: Sequence[str], new: Sequence[str]) -> str:
    """The page's text."""
    from jinja2 import Environment, PackageLoader  # noqa: PLC0415 - only pages need it

    environment = Environment(
        loader=PackageLoader("hmb_trace.compare"), autoescape=True, trim_blocks=True
    )
    rows = [(finding, chart(finding)) for finding in found.findings]
    template = environment.get_template("diff.html.j2")
    return template.render(found=found, rows=rows, base=base, new=new, width=_WIDTH, height=_HEIGHT)


def chart(finding: Finding) -> dict[str, Any] | None:
    """Two lines, base left and new right, on one scale; None where there is nothing to draw."""
    values = [v for side in finding.series for v in side if math.isfinite(v)]
    if len(values) < 2:
        return None
    low, high = min(values), max(values)
    span = (high - low) or 1.0
    half = (_WIDTH - _MIDDLE) / 2
    lines = []
    for side, left in zip(finding.series, (0.0, half + _MIDDLE), strict=True):
        step = half / max(1, len(side) - 1)
        lines.append(
            [
                (left + i * step, _HEIGHT - 2 - (v - low) / span * (_HEIGHT - 4))
                for i, v in enumerate(side)
                if math.isfinite(v)
            ]
        )
    return {"lines": [_points(line) for line in lines], "low": low, "high": high, "middle": half}


def _points(line: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
