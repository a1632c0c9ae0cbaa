# SPDX-License-Identifier: Apache-2.0
"""Names of segments: <label>-<nnnnnn>-<UTC start>.bin; the number orders them."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
import unicodedata
from dataclasses import dataclass
from pathlib import Path

BIN = ".bin"
PART = ".part"
EVENTS_PART = ".events.part"
REJECTS_PART = ".rejects.part"
REJECTS = ".rejects"
SIDECAR = ".json"
ZST = ".bin.zst"
_UNSAFE = re.compile(r"[^\w.+@-]+")  # letters and digits of any script are good
_LABEL_BYTES = 100
_HASH_DIGITS = 6


def clean_label(text: str) -> str:
    """A label that is good in a file name: not empty, not hidden, no option.

    One that had to be changed ends in a hash, so that no two labels become the same.
    """
    plain = unicodedata.normalize("NFC", text)
    clean = _UNSAFE.sub("_", plain).strip("._-")
    short = clean.encode()[:_LABEL_BYTES].decode(errors="ignore")
    if short == plain:
        return short
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:_HASH_DIGITS]
    return f"{short or 'trace'}-{digest}"


def label_of_device(device: str) -> str:
    """nvme0 of /dev/nvme0-hmbtrace; the file's name otherwise."""
    name = device.rsplit("/", 1)[-1].removeprefix("shm:")
    return clean_label(name.removesuffix("-hmbtrace"))


def segment_name(label: str, number: int, started_ns: int) -> str:
    """The name without suffix."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started_ns // 10**9))
    return f"{label}-{number:06d}-{stamp}"


@dataclass(frozen=True, slots=True, order=True)
class Found:
    """A segment seen in a directory."""

    number: int
    name: str
    suffix: str


def scan(directory: Path, label: str) -> list[Found]:
    """Segments of this label, in order of their numbers; .bin, .bin.zst and .bin.part."""
    pattern = re.compile(
        rf"({re.escape(label)}-(\d{{6,}})-\d{{8}}T\d{{6}}Z)(\.bin|\.bin\.zst|\.bin\.part)\Z"
    )
    matches = (pattern.match(entry.name) for entry in directory.iterdir())
    return sorted(Found(int(m[2]), m[1], m[3]) for m in matches if m)


def is_plain(directory: Path, name: str) -> bool:
    """Whether a name leads to a regular file of this user, and to that through no link."""
    try:
        found = (directory / name).lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()


def next_number(directory: Path, label: str) -> int:
    """One more than the highest number in use; 1 in an empty directory."""
    return max((found.number for found in scan(directory, label)), default=0) + 1
