# SPDX-License-Identifier: Apache-2.0
"""What the daemon does when the system refuses something: errno x step -> answer.

The one place that knows. docs/durability.md has the same as text, and
tests/integration/test_daemon_errors.py injects every errno into every step.
"""

from __future__ import annotations

import enum
import errno


class Step(enum.StrEnum):
    """What was being done."""

    OPEN = "open a segment's files"
    WRITE = "write records"
    EVENT_LOG = "write the event log or the rejects"
    RESERVE = "reserve disk blocks"
    LOCK = "lock a file"
    SYNC = "force a segment to the disk"
    SYNC_DIRECTORY = "force the directory to the disk"
    TRUNCATE = "cut off what was reserved"
    READ = "read a segment back"
    SIDECAR = "make the sidecar"
    RENAME = "rename what was sealed"
    LOOK = "look whether the files are still there"
    DELETE = "delete a segment"
    COMPRESS = "compress a segment"
    RECOVER = "seal what a dead host left"
    THREAD = "start a thread"
    CONTROL = "serve the control socket"
    METRICS = "serve metrics"
    STREAM = "write to a stream"


class Answer(enum.StrEnum):
    """What is done about it."""

    RETRY = "retry"  # with back-off; every few tries look at the situation again
    DISK_FULL = "disk-full"  # as --disk-full says; only here may anything be deleted
    NEXT_SEGMENT = "next-segment"  # seal what fits, go on in another file
    WITHOUT = "go-on-without"  # an optional call: one warning
    SYNC_FAILED = "sync-failed"  # told in the sidecar; the data is written anew
    LATER = "later"  # the capture does not need it: told, and tried again by itself
    END = "end"  # nobody is left to write for


NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
NOT_SUPPORTED = frozenset(
    {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.ENOTTY}
)
# Calls that make something faster or safer, and that some file systems do not have.
OPTIONAL = frozenset({Step.RESERVE, Step.LOCK, Step.SYNC, Step.SYNC_DIRECTORY})
# Steps that a capture does not wait for.
BESIDE = frozenset(
    {Step.DELETE, Step.COMPRESS, Step.RECOVER, Step.THREAD, Step.CONTROL, Step.METRICS}
)
# Steps that make one file longer, which another file may do in its place.
_GROWS = frozenset({Step.WRITE, Step.EVENT_LOG})
_ADVICE = frozenset({Step.RESERVE})


def answer(step: Step, code: int) -> Answer:
    """The answer to an errno at a step.

    The order matters: what is beside the capture never holds it up, and a call that is not
    supported is no trouble of the disk.
    """
    if step is Step.STREAM and code == errno.EPIPE:
        return Answer.END
    if step in BESIDE:
        return Answer.LATER
    if (step in OPTIONAL and code in NOT_SUPPORTED) or step in _ADVICE:
        return Answer.WITHOUT
    if step is Step.SYNC:
        return Answer.SYNC_FAILED
    if code in NO_SPACE:
        return Answer.DISK_FULL
    if code == errno.EFBIG and step in _GROWS:
        return Answer.NEXT_SEGMENT
    return Answer.RETRY
