"""Which of the batches that a leader sent may be appended: judged by their headers, before any is. [P]

Apache Kafka 4.3 ``UnifiedLog.appendAsFollower`` (``analyzeAndValidateRecords``), KAFKA-18723.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from service.base.types import NO_LEADER_EPOCH, NO_OFFSET
from service.records.batch import LOG_OVERHEAD, size_at
from service.records.kernel_status import Status
from service.records.scan import BatchScan

_RUN_BYTES: Final = 512 << 10
"""that are checked and written in one go, about so much"""


class Header(Protocol):
    """Of one batch; `records.batch.BatchHeader` is one."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def partition_leader_epoch(self) -> int: ...


class Fit(NamedTuple):
    """The first `taken` batches follow on the log, which ends at `end_offset` with them. `why` tells what is
    wrong with the next one; it and all behind it are not taken."""

    taken: int
    end_offset: int
    latest_epoch: int
    why: str = ""
    begins_at: int = NO_OFFSET
    """The log begins here, below its start: that lies within the leader's first batch."""


def fit_run(
    run: BatchScan,
    *,
    start_offset: int,
    end_offset: int,
    latest_epoch: int,
    leader_epoch: int,
    may_lack: bool,
) -> Fit:
    """As `fit`, for batches that stand in columns; their offsets rise, as `scan_batches` has found."""
    bases, lasts, epochs = run.base_offsets, run.last_offsets, run.leader_epochs
    if (
        bases
        and bases[0] == end_offset
        and sum(lasts) - sum(bases) + len(bases) == lasts[-1] + 1 - end_offset
        and latest_epoch <= epochs[0] <= leader_epoch
        and epochs[0] != NO_LEADER_EPOCH
        and epochs.count(epochs[0]) == len(epochs)
    ):
        return Fit(len(bases), lasts[-1] + 1, epochs[0])
    return fit(
        (Row(base, last + 1, epoch) for base, last, epoch in zip(bases, lasts, epochs, strict=True)),
        start_offset=start_offset,
        end_offset=end_offset,
        latest_epoch=latest_epoch,
        leader_epoch=leader_epoch,
        may_lack=may_lack,
    )


class Row(NamedTuple):
    """A batch as `fit` looks at it."""

    base_offset: int
    next_offset: int
    partition_leader_epoch: int


def fit(
    headers: Iterable[Header],
    *,
    start_offset: int,
    end_offset: int,
    latest_epoch: int,
    leader_epoch: int,
    may_lack: bool,
) -> Fit:
    """Judge batches that were fetched in `leader_epoch` from `end_offset`, where our log ends, its last
    record being of `latest_epoch`. `may_lack`: the topic is or was compacted, so offsets may be missing.
    `start_offset`: nobody is served below it, neither by us nor by the leader. Where that is all that we
    have, the log begins anew with the leader's first batch, should its start lie within that.

    A batch of a later epoch was written after the leader of the fetch had lost its leadership, and after a
    truncation that we know nothing of.
    """
    taken, end, epoch, begins_at = 0, end_offset, latest_epoch, NO_OFFSET
    for header in headers:
        base, later = header.base_offset, header.next_offset
        if not taken and 0 <= base < end <= start_offset < later:
            begins_at = end = base
        if base < end or later <= base:
            return Fit(taken, end, epoch, f"offsets {base} to {later} at {end}", begins_at)
        if base > end and not may_lack:
            return Fit(taken, end, epoch, f"offset {base} at {end}", begins_at)
        its_epoch = header.partition_leader_epoch
        if its_epoch > leader_epoch:
            why = f"epoch {its_epoch} at {base}, fetched in {leader_epoch}"
            return Fit(taken, end, epoch, why, begins_at)
        if its_epoch < epoch or (its_epoch == NO_LEADER_EPOCH and taken):
            return Fit(taken, end, epoch, f"epoch {its_epoch} at {base}, after {epoch}", begins_at)
        taken, end, epoch = taken + 1, later, its_epoch
    return Fit(taken, end, epoch, "", begins_at)


def end_of_run(view: memoryview, position: int, batches: int) -> int:
    """Where the bytes end that are looked at next: so many batches like the first, or that one alone;
    `position` where no whole batch is left. `CorruptionError` where none can begin there."""
    left = len(view) - position
    if left < LOG_OVERHEAD:
        return position
    size = size_at(view, position)
    wanted = max(size, min(_RUN_BYTES, size * batches))
    return position + min(wanted, left) if size <= left else position


def first_of(run: BatchScan, count: int) -> BatchScan:
    """The first batches of a run."""
    end = run.positions[count - 1] + run.sizes[count - 1]
    return BatchScan(Status.OK, end, *(column[:count] for column in run[2:]))
