"""Cuts and tails in any store, made by hand, for readers of the bucket."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.records.scan import scan_batches
from service.remote.format.cut_codec import (
    Cut,
    CutRef,
    Cuts,
    PartitionCut,
    TailRef,
    encode_cut,
    encode_cuts,
)
from service.remote.format.keys import CutKey, MetadataKey, TailKey, cut_key, metadata_key, tail_key
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.stamp import Stamp
from service.remote.format.tail_object import TailSection, decode_footer, encode_footer
from service.remote.stores.store import ObjectStore

SNAPSHOT = (
    Path(__file__).parents[1] / "golden/metadata/kafka-4.3.1/00000000000000000064-0000000003.checkpoint"
)
METADATA_END = 64
"""of that snapshot; its epoch is 3"""
AT_MS = 1_700_000_100_000


class Saved(NamedTuple):
    """Whole batches of one partition, to be one section; offsets are those of the batches, unless given."""

    topic_id: UUID
    partition: int
    batches: bytes
    leader_epoch: int = 0
    first: int | None = None
    end: int | None = None


def section_of(saved: Saved, position: int) -> TailSection:
    """Return the section's row."""
    found = scan_batches(saved.batches)
    assert found.end == len(saved.batches), found.status
    return TailSection(
        saved.topic_id,
        saved.partition,
        saved.leader_epoch,
        found.base_offsets[0] if saved.first is None else saved.first,
        found.last_offsets[-1] + 1 if saved.end is None else saved.end,
        position,
        len(saved.batches),
        crc32c(saved.batches),
        sum(found.record_counts),
        max(found.max_timestamps),
        max(found.leader_epochs[-1], 0),
    )


def row(end: int, **changes: Any) -> PartitionCut:
    """Return a partition that was cut at `end`, all of it saved and decided."""
    given = {"start": 0, "stable": end, "saved": end, "saved_high": 0, "waits": False, **changes}
    return PartitionCut(
        leader_epoch=given.get("leader_epoch", 0),
        start=given["start"],
        end=end,
        stable=given["stable"],
        saved=given["saved"],
        saved_high=given["saved_high"],
        last_epoch=given.get("last_epoch", 0),
        version=given.get("version", 0),
        waits=given["waits"],
    )


@dataclass
class CutWriter:
    """Cuts of one cluster: each is written with its document, and `CUT` anew."""

    store: ObjectStore
    cluster_id: str = "c-1"
    stamp: Stamp | None = None
    kept: list[CutRef] = field(default_factory=list)
    seed: int = 3
    metadata: MetadataRef | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def new_uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128))

    def tail(self, sections: Iterable[Saved], *, cut: int = 1, level: int = 0, node: int = 1) -> TailRef:
        """Write a tail, its sections in order."""
        rows: list[TailSection] = []
        data = b""
        for saved in sorted(sections, key=lambda one: (one.topic_id, one.partition)):
            rows.append(section_of(saved, len(data)))
            data += saved.batches
        footer = encode_footer(self.cluster_id, cut, level, rows, self.stamp)
        key = tail_key(TailKey(cut, level, node, self.new_uuid()))
        self.store.put(key, data + footer)
        size = len(data) + len(footer)
        return TailRef(key, size, len(data), decode_footer(footer, size).crc)

    def snapshot(self) -> MetadataRef:
        """Write the metadata's snapshot that cuts name, once."""
        if self.metadata is None:
            data = SNAPSHOT.read_bytes()
            key = metadata_key(MetadataKey(METADATA_END, 3, self.new_uuid()))
            self.store.put(key, data)
            self.metadata = MetadataRef(key, METADATA_END, 3, len(data), crc32c(data))
        return self.metadata

    def cut(
        self,
        topics: Mapping[UUID, Sequence[PartitionCut]],
        tails: Iterable[TailRef],
        *,
        number: int = 1,
        is_exact: bool = True,
        is_complete: bool = True,
        at_ms: int = AT_MS,
        metadata_end: int | None = None,
        follows: int | None = None,
    ) -> Cut:
        """Write a cut and the `CUT` that names it as the newest."""
        metadata = self.snapshot()
        cut = Cut(
            self.cluster_id,
            number,
            at_ms,
            is_exact,
            metadata,
            metadata.end_offset if metadata_end is None else metadata_end,
            metadata.epoch,
            tuple(tails),
            {topic_id: tuple(rows) for topic_id, rows in topics.items()},
            self.stamp,
            follows,
        )
        data = encode_cut(cut)
        key = cut_key(CutKey(number, self.new_uuid()))
        self.store.put(key, data)
        self.kept.append(CutRef(number, key, len(data), crc32c(data), at_ms, is_exact, is_complete))
        self.publish()
        return cut

    def publish(self) -> None:
        """Write `CUT` as `kept` is now."""
        self.store.put("CUT", encode_cuts(Cuts(self.cluster_id, tuple(self.kept), (), self.stamp)))
