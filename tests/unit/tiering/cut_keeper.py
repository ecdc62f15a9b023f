"""A keeper for the tests of tails: names what one broker has saved, in a cut or not, and reads it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from crc32c import crc32c

from service.records.batch import iter_headers
from service.remote.format.coverage import Span, cover
from service.remote.format.cut_codec import (
    Cut,
    CutRef,
    Cuts,
    PartitionCut,
    TailRef,
    encode_cut,
    encode_cuts,
)
from service.remote.format.keys import CUT_NAME, CutKey, MetadataKey, cut_key, metadata_key, parse_key
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.tail_object import TailFooter, decode_footer
from service.remote.reading.tail_records import read_pieces
from service.tiering.cuts.saving import LostTails, SavedTails, Standing, TakenEnd
from tests.unit.tiering.world import CLUSTER, Replica, World

_METADATA = MetadataRef(metadata_key(MetadataKey(5, 1, UUID(int=5))), 5, 1, 10, 20)


class CutKeeper:
    """Cuts of a world with one broker."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cut = 1
        self.newest_id: UUID | None = None
        self.named: list[TailRef] = []
        self.rows: dict[UUID, list[PartitionCut]] = {}
        self._ids = iter(range(1000, 1 << 30))

    def save(
        self,
        *,
        ends: dict[Replica, int] | None = None,
        attempt: UUID | None = None,
        lost: Sequence[LostTails] = (),
    ) -> SavedTails:
        """Have the broker save up to the high watermarks, or up to `ends`."""
        taken = {
            (one.tip.topic_id, one.tip.partition): TakenEnd(
                one, one.leader_epoch, one.high_watermark if ends is None else ends[one]
            )
            for one in self.world.replicas
        }
        self.attempt = attempt or UUID(int=next(self._ids))
        self.taken = taken
        return self.world.do(
            self.world.manager.tails.save(self.attempt, self.newest_id, self.cut, taken, lost)
        )

    def name(self, saved: SavedTails, cluster_id: str = CLUSTER) -> None:
        """Write the cut: what was saved last is named by it."""
        new = [ref for ref in saved.tails if ref not in self.named]
        assert len(set(saved.tails)) == len(saved.tails)
        self.named += new
        self.rows = {}
        for place, one in sorted(self.taken.items()):
            standing = saved.standings[place]
            row = PartitionCut(
                one.leader_epoch, 0, one.end, one.end, standing.saved.low,
                min(standing.saved.high, standing.saved.low), standing.saved.last_epoch, 0, standing.waits,
            )  # fmt: skip
            self.rows.setdefault(place[0], []).append(row)
        cut = Cut(
            cluster_id, self.cut, 1, True, _METADATA, 5, 1, tuple(self.named),
            {topic_id: tuple(rows) for topic_id, rows in self.rows.items()},
        )  # fmt: skip
        data, key = encode_cut(cut), cut_key(CutKey(self.cut, self.attempt))
        self.world.bucket.put(key, data)
        ref = CutRef(self.cut, key, len(data), crc32c(data), 1, True, True)
        self.world.bucket.put(CUT_NAME, encode_cuts(Cuts(CLUSTER, (ref,))))
        self.newest_id, self.cut = self.attempt, self.cut + 1

    def cut_now(self, *, cluster_id: str = CLUSTER, **more: Any) -> SavedTails:
        """Save, and name it."""
        saved = self.save(**more)
        self.name(saved, cluster_id)
        return saved

    def footer(self, ref: TailRef) -> TailFooter:
        """The footer of a tail, proved."""
        data = self.world.bucket.get(ref.key, max_size=1 << 30)
        footer = decode_footer(data, len(data))
        assert (len(data), footer.position, footer.crc) == ref[1:]
        for section in footer.sections:
            body = data[section.position : section.position + section.length]
            assert crc32c(body) == section.crc32c
            headers = list(iter_headers(body))
            assert sum(one.record_count for one in headers) == section.record_count
            assert max(one.max_timestamp for one in headers) == section.max_timestamp
            assert headers[-1].partition_leader_epoch == section.last_batch_epoch
        return footer

    def spans(self, replica: Replica, refs: Sequence[TailRef] | None = None) -> list[Span]:
        """Sections of one partition in the named tails."""
        found = []
        for ref in self.named if refs is None else refs:
            footer = self.footer(ref)
            found += [
                Span(ref.key, footer.level, one)
                for one in footer.sections
                if (one.topic_id, one.partition) == (replica.tip.topic_id, replica.tip.partition)
            ]
        return found

    def read(self, replica: Replica, start: int, end: int) -> bytes:
        """Whole batches with offsets from `start` to `end` as tails have them; raises where one is
        missing."""
        covered = cover(self.spans(replica), start, end)
        assert covered.reaches == end, covered
        return b"".join(run.data for run in read_pieces(self.world.bucket, covered.pieces))

    def standing(self, saved: SavedTails, replica: Replica) -> Standing:
        return saved.standings[replica.tip.topic_id, replica.tip.partition]


def level_of(ref: TailRef) -> int:
    key: Any = parse_key(ref.key)
    return int(key.level)


def bytes_of(replica: Replica, start: int = 0, end: int | None = None) -> bytes:
    """Whole batches of the local log from `start` to `end`."""
    log, found = replica.log, bytearray()
    last = log.log_end_offset if end is None else end
    at = max(start, log.local_log_start_offset)
    while at < last:
        read = log.read(at, 1 << 30, last)
        assert read.slice is not None
        data = read.slice.read()
        for header in iter_headers(data):
            found += data[header.position : header.end]
            at = header.next_offset
    return bytes(found)
