"""Checks of fetched batches by their headers, before a follower appends any of them. [P]

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
"""approximate bytes that are checked and written in one go"""


class Header(Protocol):
    """Header of one batch; `records.batch.BatchHeader` is one."""

    @property
    def base_offset(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def partition_leader_epoch(self) -> int: ...


class AppendablePrefix(NamedTuple):
    """The first `accepted` batches follow on the log, which ends at `end_offset` with them. `why` is the
    reason why the next batch, and so all after it, cannot be appended."""

    accepted: int
    end_offset: int
    latest_epoch: int
    why: str = ""
    begins_at: int = NO_OFFSET
    """Restart the log at this offset, below its start: the start lies within the leader's first batch."""


def appendable_prefix_of_run(
    run: BatchScan,
    *,
    start_offset: int,
    end_offset: int,
    latest_epoch: int,
    leader_epoch: int,
    may_lack: bool,
) -> AppendablePrefix:
    """Return what `appendable_prefix` does, for batches in columns. Their offsets rise: `scan_batches` has
    checked that."""
    bases, lasts, epochs = run.base_offsets, run.last_offsets, run.leader_epochs
    if (
        bases
        and bases[0] == end_offset
        and sum(lasts) - sum(bases) + len(bases) == lasts[-1] + 1 - end_offset
        and latest_epoch <= epochs[0] <= leader_epoch
        and epochs[0] != NO_LEADER_EPOCH
        and epochs.count(epochs[0]) == len(epochs)
    ):
        return AppendablePrefix(len(bases), lasts[-1] + 1, epochs[0])
    return appendable_prefix(
        (Row(base, last + 1, epoch) for base, last, epoch in zip(bases, lasts, epochs, strict=True)),
        start_offset=start_offset,
        end_offset=end_offset,
        latest_epoch=latest_epoch,
        leader_epoch=leader_epoch,
        may_lack=may_lack,
    )


class Row(NamedTuple):
    """Header of a batch that was read from columns."""

    base_offset: int
    next_offset: int
    partition_leader_epoch: int


def appendable_prefix(
    headers: Iterable[Header],
    *,
    start_offset: int,
    end_offset: int,
    latest_epoch: int,
    leader_epoch: int,
    may_lack: bool,
) -> AppendablePrefix:
    """Return how many of the batches can be appended at `end_offset`, where our log ends; its last record is
    of `latest_epoch`, and the batches were fetched in `leader_epoch`.

    `may_lack`: the topic is or was compacted, so offsets may be missing. `start_offset`: neither this replica
    nor the leader serves records below it. Where our log has records below it only, the log restarts at the
    leader's first batch if `start_offset` lies within that batch.

    A batch of an epoch after `leader_epoch` is refused: it was written after the fetch's leader had lost its
    leadership, and after a truncation that this replica does not know of.
    """
    accepted, end, epoch, begins_at = 0, end_offset, latest_epoch, NO_OFFSET
    for header in headers:
        base, later = header.base_offset, header.next_offset
        if not accepted and 0 <= base < end <= start_offset < later:
            begins_at = end = base
        if base < end or later <= base:
            return AppendablePrefix(accepted, end, epoch, f"offsets {base} to {later} at {end}", begins_at)
        if base > end and not may_lack:
            return AppendablePrefix(accepted, end, epoch, f"offset {base} at {end}", begins_at)
        its_epoch = header.partition_leader_epoch
        if its_epoch > leader_epoch:
            why = f"epoch {its_epoch} at {base}, fetched in {leader_epoch}"
            return AppendablePrefix(accepted, end, epoch, why, begins_at)
        if its_epoch < epoch or (its_epoch == NO_LEADER_EPOCH and accepted):
            return AppendablePrefix(
                accepted, end, epoch, f"epoch {its_epoch} at {base}, after {epoch}", begins_at
            )
        accepted, end, epoch = accepted + 1, later, its_epoch
    return AppendablePrefix(accepted, end, epoch, "", begins_at)


def end_of_run(view: memoryview, position: int, batches: int) -> int:
    """Return the end of the bytes to scan next: `batches` times the size of the first batch, or that batch
    alone. Returns `position` where no whole batch is left. `CorruptionError` where no batch can begin there.
    """
    left = len(view) - position
    if left < LOG_OVERHEAD:
        return position
    size = size_at(view, position)
    wanted = max(size, min(_RUN_BYTES, size * batches))
    return position + min(wanted, left) if size <= left else position


def first_of(run: BatchScan, count: int) -> BatchScan:
    """Return the first `count` batches of a run."""
    end = run.positions[count - 1] + run.sizes[count - 1]
    return BatchScan(Status.OK, end, *(column[:count] for column in run[2:]))
