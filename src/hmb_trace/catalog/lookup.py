# SPDX-License-Identifier: Apache-2.0
"""The catalog that a capture remembers, and whether another one fits its firmware."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from hmb_trace.catalog.model import Catalog
from hmb_trace.dumps.kinds import Kind
from hmb_trace.dumps.segments import Segment
from hmb_trace.errors import HmbTraceError

log = logging.getLogger("hmb_trace")


def remembered(segments: Iterable[Segment]) -> Catalog | None:
    """The catalog in the first sidecar or .pccx header (SPEC P7) that has one.

    Raises:
        CatalogError: it is wrong.
    """
    for segment in segments:
        if segment.kind is Kind.PCCX:
            made = _about(segment).get("catalog")
            if isinstance(made, Mapping):
                return Catalog.from_dict(made, segment.name)
        elif segment.known and segment.known.catalog and segment.known.catalog.text:
            return Catalog.parse(segment.known.catalog.text.encode(), f"{segment.name}: catalog")
    return None


def warn_if_other_build(catalog: Catalog | None, segments: Iterable[Segment]) -> None:
    """Say once that a catalog is for another firmware than the drive's was."""
    if catalog is None or not catalog.firmware_build:
        return
    for segment in segments:
        build = _firmware(segment).strip()
        if build and build != catalog.firmware_build.strip():
            log.warning(
                "catalog %s is for firmware %s, but %s was captured from firmware %s: names and "
                "fields may be wrong",
                *(catalog.name, catalog.firmware_build, segment.name, build),
            )
        if build:
            return


def _firmware(segment: Segment) -> str:
    """The firmware revision of the drive; "" where it is not known."""
    if segment.kind is Kind.PCCX:
        device = _about(segment).get("device")
        return str(device.get("firmware", "")) if isinstance(device, Mapping) else ""
    return segment.known.device.firmware if segment.known else ""


def _about(segment: Segment) -> dict[str, Any]:
    try:
        package = segment.packaged
    except HmbTraceError:
        return {}  # who reads the records says what is wrong with it
    return package.about if package else {}
