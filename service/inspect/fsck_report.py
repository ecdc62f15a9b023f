"""The report of `fsck`: counts, errors, orphans; as text and as JSON. [P]"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

_SUMS: Final = (
    "segments",
    "rewritten",
    "batches",
    "records",
    "checked_bytes",
    "error_count",
    "orphan_count",
    "orphan_bytes",
)
MAX_LISTED: Final = 10_000
"""Most errors, and most orphans, that are listed; more are only counted."""


class FsckFinding(NamedTuple):
    """An error or a note: the object or prefix, and what is wrong."""

    where: str
    what: str


class OrphanObject(NamedTuple):
    """An object that no published manifest names. Not an error: the sweeper deletes it after its grace."""

    key: str
    size_bytes: int


@dataclass(slots=True)
class UnknownTopic:
    """Objects of a topic that `topics.json` does not name: it was deleted, or the rest of it was lost."""

    topic_id: str
    objects: int = 0
    size_bytes: int = 0


@dataclass(slots=True)
class CutsReport:
    """The report of `CUT`: the number of cuts that it keeps, its newest one, and the tails they name.

    `complete` is the number of the newest complete cut, None without one.
    """

    kept: int
    newest: int
    newest_ms: int
    complete: int | None
    tails: int = 0
    tail_bytes: int = 0


@dataclass(slots=True)
class PartitionReport:
    """The report of one published chain. `end_offset` is exclusive; `last_epoch` is the leader epoch of its
    last batch, -1 without one."""

    topic: str
    topic_id: str
    partition: int
    version: int
    start_offset: int
    end_offset: int
    segments: int = 0
    records: int = 0
    size_bytes: int = 0
    errors: int = 0
    last_epoch: int = -1


@dataclass(slots=True)
class FsckReport:
    """The report of a bucket, or one topic of it. `notes` are neither errors nor orphans; `cuts` is None
    where no cut was ever written; `rewritten` are those of the `segments` that a rewrite made, `erasures`
    the orders to erase keys."""

    deep: bool
    cluster_id: str | None = None
    partitions: list[PartitionReport] = field(default_factory=list)
    segments: int = 0
    rewritten: int = 0
    batches: int = 0
    records: int = 0
    checked_bytes: int = 0
    erasures: int = 0
    errors: list[FsckFinding] = field(default_factory=list)
    error_count: int = 0
    orphans: list[OrphanObject] = field(default_factory=list)
    orphan_count: int = 0
    orphan_bytes: int = 0
    unknown_topics: dict[str, UnknownTopic] = field(default_factory=dict)
    notes: list[FsckFinding] = field(default_factory=list)
    cuts: CutsReport | None = None

    @property
    def is_clean(self) -> bool:
        return self.error_count == 0

    @property
    def exit_code(self) -> int:
        """0 when nothing is wrong, 1 otherwise. Orphans and notes are not wrong."""
        return 0 if self.is_clean else 1

    def error(self, where: str, what: str) -> None:
        self.error_count += 1
        if len(self.errors) < MAX_LISTED:
            self.errors.append(FsckFinding(where, what))

    def no_errors_below(self, prefix: str) -> None:
        """Take back the errors of objects below `prefix`, which are being deleted."""
        left = [one for one in self.errors if not one.where.startswith(prefix)]
        self.error_count -= len(self.errors) - len(left)
        self.errors = left

    def note(self, where: str, what: str) -> None:
        """Add what is worth a line and is no error; beyond `MAX_LISTED` notes it is dropped."""
        if len(self.notes) < MAX_LISTED:
            self.notes.append(FsckFinding(where, what))

    def orphan(self, key: str, size_bytes: int) -> None:
        self.orphan_count += 1
        self.orphan_bytes += size_bytes
        if len(self.orphans) < MAX_LISTED:
            self.orphans.append(OrphanObject(key, size_bytes))

    def no_orphan(self, orphan: OrphanObject) -> None:
        """Take back an orphan."""
        self.orphans.remove(orphan)
        self.orphan_count -= 1
        self.orphan_bytes -= orphan.size_bytes

    def unknown(self, topic_id: str, size_bytes: int) -> None:
        found = self.unknown_topics.setdefault(topic_id, UnknownTopic(topic_id))
        found.objects += 1
        found.size_bytes += size_bytes

    def add(self, other: FsckReport) -> None:
        """Add the report of a part of the bucket."""
        self.partitions += other.partitions
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in (
            (self.errors, other.errors),
            (self.orphans, other.orphans),
            (self.notes, other.notes),
        ):
            mine += theirs[: MAX_LISTED - len(mine)]  # type: ignore[operator]

    def as_json(self) -> str:
        """Format everything as one JSON object."""
        document: dict[str, Any] = {
            "clean": self.is_clean,
            "deep": self.deep,
            "cluster_id": self.cluster_id,
            "segments": self.segments,
            "rewritten": self.rewritten,
            "batches": self.batches,
            "records": self.records,
            "checked_bytes": self.checked_bytes,
            "error_count": self.error_count,
            "orphan_count": self.orphan_count,
            "orphan_bytes": self.orphan_bytes,
            "partitions": [
                {name: getattr(one, name) for name in PartitionReport.__slots__} for one in self.partitions
            ],
            "cuts": None if self.cuts is None else asdict(self.cuts),
            "erasures": self.erasures,
            "errors": [one._asdict() for one in self.errors],
            "unknown_topics": [
                {name: getattr(one, name) for name in UnknownTopic.__slots__}
                for one in self.unknown_topics.values()
            ],
            "orphans": [one._asdict() for one in self.orphans],
            "notes": [one._asdict() for one in self.notes],
        }
        return json.dumps(document, indent=2, ensure_ascii=False)

    def as_text(self) -> str:
        """Format a line per partition, error and note, and the sums."""
        lines = [
            f"{one.topic}-{one.partition}: offsets {one.start_offset} to {one.end_offset - 1}, "
            f"{one.segments} segments, {one.records} records, {one.size_bytes} bytes, manifest {one.version}"
            if one.segments
            else f"{one.topic}-{one.partition}: empty, manifest {one.version}"
            for one in self.partitions
        ]
        if (cuts := self.cuts) is not None:
            complete = "none is complete" if cuts.complete is None else f"{cuts.complete} is complete"
            lines.append(
                f"cuts: {cuts.kept} kept, the newest is {cuts.newest}, {complete}; "
                f"{cuts.tails} tails of {cuts.tail_bytes} bytes"
            )
        if self.rewritten:
            lines.append(f"rewritten: {self.rewritten} segments")
        if self.erasures:
            lines.append(f"erasures: {self.erasures} orders to erase keys")
        lines += [f"note: {where}: {what}" for where, what in self.notes]
        lines += [
            f"unknown topic: {one.topic_id}: {one.objects} objects of {one.size_bytes} bytes that "
            f"topics.json does not account for"
            for one in self.unknown_topics.values()
        ]
        lines += [f"orphan: {key} ({size} bytes)" for key, size in self.orphans]
        lines += [f"ERROR: {where}: {what}" for where, what in self.errors]
        depth = "every batch" if self.deep else "footers only; filters of keys are not proved"
        lines.append(
            f"cluster {self.cluster_id}: {len(self.partitions)} partitions, {self.segments} segments, "
            f"{self.records} records, {self.checked_bytes} bytes read ({depth}); "
            f"{self.orphan_count} orphans of {self.orphan_bytes} bytes"
        )
        lines.append("clean" if self.is_clean else f"{self.error_count} errors")
        return "\n".join(lines)
