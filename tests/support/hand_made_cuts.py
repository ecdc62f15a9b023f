"""Cuts and tails made by the codecs alone, without a cluster that takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final
from uuid import UUID

from crc32c import crc32c

from service.records.batch import iter_headers, stamp
from service.records.builder import BatchBuilder
from service.remote.format.cut_codec import Cut, PartitionCut, TailRef, encode_cut
from service.remote.format.keys import CLUSTER_KEY, CutKey, TailKey, cut_key, tail_key
from service.remote.format.manifest_codec import ClusterFile, encode_cluster
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.tail_object import TRAILER, TailSection, encode_footer
from service.remote.stores.store import ObjectStore

Place = tuple[UUID, int]
NUMBER: Final = 9
START_MS: Final = 1_700_000_000_000


def batch(base_offset: int, values: Sequence[bytes], leader_epoch: int, **producer: int) -> bytes:
    """Return a batch as it is in a log; `producer` are fields of `BatchBuilder`."""
    builder = BatchBuilder(**producer)  # type: ignore[arg-type]
    for number, value in enumerate(values):
        builder.add(START_MS + base_offset + number, None, value)
    data = builder.build()
    stamp(data, 0, base_offset, leader_epoch)
    return bytes(data)


class HandMadeCut:
    """A cut of which each call of `tail` writes one tail."""

    def __init__(self, store: ObjectStore, cluster_id: str, number: int = NUMBER, *, life: int = 0) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self._number = number
        self._life = life
        self._nodes = count(1)
        self.tails: list[TailRef] = []

    def own_the_prefix(self) -> None:
        """Write `cluster.json`."""
        self._store.put(CLUSTER_KEY, encode_cluster(ClusterFile(self._cluster_id)))

    def tail(
        self, records: Mapping[Place, bytes], *, level: int = 0, ends: Mapping[Place, int] | None = None
    ) -> str:
        """Write a tail with a section for each partition; return its key. A section ends where `ends` says,
        else behind its last batch."""
        sections, body = [], b""
        for place in sorted(records):
            data = records[place]
            headers = list(iter_headers(data))
            sections.append(
                TailSection(
                    *place,
                    headers[-1].partition_leader_epoch,
                    headers[0].base_offset,
                    (ends or {}).get(place, headers[-1].last_offset + 1),
                    len(body),
                    len(data),
                    crc32c(data),
                    sum(one.record_count for one in headers),
                    max(one.max_timestamp for one in headers),
                    headers[-1].partition_leader_epoch,
                )
            )
            body += data
        footer = encode_footer(self._cluster_id, self._number, level, sections, None)
        node = next(self._nodes)
        key = tail_key(TailKey(self._number, level, node, UUID(int=node)))
        self._store.put(key, body + footer)
        crc = TRAILER.unpack_from(footer, len(footer) - TRAILER.size)[1]
        self.tails.append(TailRef(key, len(body) + len(footer), len(body), crc))
        return key

    def write(self, topics: Mapping[UUID, tuple[PartitionCut, ...]] | None = None) -> str:
        """Write the cut's document; return its key. `topics`: where partitions end, none without it."""
        metadata = MetadataRef(
            f"metadata/{64:020d}-{3:010d}-{UUID(int=7)}.checkpoint", 64, 3, 3702, 77, self._life
        )
        cut = Cut(
            self._cluster_id, self._number, START_MS, True, metadata, 80, 3, tuple(self.tails), topics or {}
        )
        key = cut_key(CutKey(self._number, UUID(int=self._number)))
        self._store.put(key, encode_cut(cut))
        return key
