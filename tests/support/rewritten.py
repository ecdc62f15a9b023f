"""Runs of a published chain written anew, merged or with records erased, as objects, manifest and HEAD.

A second implementation, batch by batch and record by record, of what a broker's rewrites leave in a bucket.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.records.batch import BatchHeader, iter_headers
from service.records.compaction import LastBatches, filling_batch
from service.records.decode import Record, iter_records
from service.records.erasure import ErasureCopier, ErasureKeys
from service.records.scan import scan_batches
from service.remote.format.keys import HeadKey, head_key
from service.remote.format.manifest import Child, Manifest, ManifestPage, PageRef, SegmentEntry, live_segments
from service.remote.format.manifest_codec import encode_head, encode_manifest, encode_page, head_of
from service.remote.format.rewrite_origin import ERASE, MERGE, RewriteOrigin
from service.remote.format.run_check import run_epochs, segment_epochs
from service.remote.format.segment_object import (
    EPOCH_HISTORY,
    Footer,
    PlannedObject,
    SegmentIdentity,
    decode_epoch_history,
    plan_object,
)
from service.remote.reading.log_scan import scan_log
from service.remote.reading.object_reader import (
    entry_of,
    open_footer_of,
    open_page,
    open_published,
    read_section,
)
from service.remote.stores.store import ObjectStore
from tests.support.batches import HEADER, record

Keep = Callable[[Record], bool]
_CRC_AT: Final = 17
_AFTER_CRC: Final = 21


class Rewritten(NamedTuple):
    """Result: the new segment, the ones whose place it took, and the manifest; None until it is committed."""

    entry: SegmentEntry
    old: tuple[SegmentEntry, ...]
    manifest: Manifest | None
    pages: tuple[str, ...] = ()


class Rewriter:
    """Rewrites runs of one partition. Whatever it draws comes from `seed`."""

    def __init__(self, store: ObjectStore, key: HeadKey, seed: int = 5, block_bytes: int = 1 << 20) -> None:
        self._store = store
        self._key = key
        self._rng = random.Random(seed)
        self._block_bytes = block_bytes
        self._copy: Callable[[bytes], bytes] | None = None
        self.forged: dict[str, Any] = {}
        """what the next objects say instead of what is so: arguments of `plan_object`"""

    def new_uuid(self) -> UUID:
        return UUID(int=self._rng.getrandbits(128))

    def merge(self, base_offset: int, last_offset: int, *, commits: bool = True) -> Rewritten:
        """Merge the run of these offsets, inclusive, into one segment."""
        return self._rewrite(base_offset, last_offset, MERGE, lambda one: True, commits=commits)

    def erase(self, base_offset: int, last_offset: int, keep: Keep, *, commits: bool = True) -> Rewritten:
        """Write the run as one segment without the records that `keep` does not want."""
        return self._rewrite(base_offset, last_offset, ERASE, keep, commits=commits)

    def erase_keys(
        self, base_offset: int, last_offset: int, keys: ErasureKeys, end_offset: int, *, keeps_all: bool
    ) -> Rewritten:
        """Write the run as one segment without the records of `keys` below `end_offset`, by the copier of
        brokers; `keeps_all`: batches of which nothing stays leave their headers."""
        self._copy = partial(copied, keys=keys, end_offset=end_offset, keeps_all=keeps_all)
        try:
            return self._rewrite(base_offset, last_offset, ERASE, lambda one: True, commits=True)
        finally:
            self._copy = None

    def manifest(self) -> Manifest:
        """Return what HEAD names."""
        chain = open_published(self._store, self._key)
        assert chain is not None
        return chain.manifest

    def segments(self) -> list[SegmentEntry]:
        """Return the live segments."""
        manifest = self.manifest()
        return list(live_segments(manifest, lambda ref: open_page(self._store, ref, manifest)))

    def groups(self) -> list[list[SegmentEntry]]:
        """Return the live segments of each page of level 0, and of the manifest itself: runs lie in one."""
        manifest = self.manifest()
        found: list[list[SegmentEntry]] = []

        def walk(children: Sequence[Child]) -> None:
            for child in children:
                if isinstance(child, PageRef):
                    walk(open_page(self._store, child, manifest).children)
            own = [one for one in children if isinstance(one, SegmentEntry)]
            found.append([one for one in own if one.last_offset >= manifest.start_offset])

        walk(manifest.children)
        return [group for group in found if group]

    def _rewrite(
        self, base_offset: int, last_offset: int, kind: str, keep: Keep, *, commits: bool
    ) -> Rewritten:
        manifest = self.manifest()
        run = [one for one in self.segments() if base_offset <= one.base_offset <= last_offset]
        assert (run[0].base_offset, run[-1].last_offset) == (base_offset, last_offset), "not whole segments"
        planned = self._planned(manifest, run, kind, keep)
        self._store.put_stream(planned.key, planned.parts(), planned.size)
        entry = entry_of(planned.footer)
        if not commits:
            return Rewritten(entry, tuple(run), None)

        def load(ref: PageRef) -> ManifestPage:
            return open_page(self._store, ref, manifest)

        change = manifest.replace_run(
            base_offset,
            last_offset,
            [entry],
            leader_epoch=manifest.leader_epoch,
            load=load,
            new_uuid=self.new_uuid,
            encode_page=encode_page,
            stamp=manifest.stamp,
        )
        for _, ref, data in change.pages:
            self._store.put(ref.key, data)
        self.publish(change.manifest)
        return Rewritten(
            entry, change.dropped, change.manifest, tuple(one.key for one in change.dropped_pages)
        )

    def publish(self, manifest: Manifest) -> str:
        """Write the manifest and HEAD; return the manifest's key."""
        key, data = manifest.key(self.new_uuid()), encode_manifest(manifest)
        self._store.put(key, data)
        self._store.put(head_key(*self._key), encode_head(head_of(manifest, key, data)))
        return key

    def _planned(
        self, manifest: Manifest, run: Sequence[SegmentEntry], kind: str, keep: Keep
    ) -> PlannedObject:
        footers = [open_footer_of(self._store, one) for one in run]
        base, last = run[0].base_offset, run[-1].last_offset
        epochs = segment_epochs(run_epochs(run), base, last)
        logs = [bytes(self._store.get_range(one.key, 0, one.log_length)) for one in run]
        copy = self._copy if self._copy is not None else partial(erased, keep=keep)
        log = b"".join(map(copy, logs)) or bytes(filling_batch(base, last, epochs[-1][0]))
        scanned = scan_log(
            lambda position, length: log[position : position + length],
            0,
            len(log),
            first_offset=base,
            last_offset=last,
            name="rewritten",
            block_bytes=self._block_bytes,
        )
        headers = list(iter_headers(log))
        newest = footers[-1]
        identity = SegmentIdentity(
            manifest.cluster_id,
            self._key.topic_id,
            manifest.topic,
            self._key.partition,
            base,
            last,
            manifest.leader_epoch,
            self.new_uuid(),
        )
        index = (struct.pack(">ii", one.last_offset - base, one.position) for one in headers[1:4])
        rows = (
            read_section(self._store, entry.key, footer.sections["txn_index"])
            for entry, footer in zip(run, footers, strict=True)
        )
        records_before = sum(footer.record_count for footer in footers)
        arguments: dict[str, Any] = {
            "log": lambda: [log],
            "log_length": len(log),
            "blocks": scanned.blocks,
            "offset_index": b"".join(index),
            "time_index": struct.pack(">qi", max(scanned.max_timestamp, 0), headers[-1].last_offset - base),
            "txn_index": b"".join(rows),
            "producer_snapshot": read_section(self._store, run[-1].key, newest.sections["producer_snapshot"]),
            "leader_epochs": epochs,
            "epoch_history": self._history(run[-1], newest),
            "transactional_batch_count": scanned.transactional_batch_count,
            "generation": 1 + max(one.generation for one in run),
            "rewrite": RewriteOrigin(self.new_uuid(), kind, len(run), records_before),
            "stamp": manifest.stamp,
            "open_from": _open_from(footers, last),
        }
        return plan_object(identity, **{**arguments, **self.forged})

    def _history(self, entry: SegmentEntry, footer: Footer) -> tuple[tuple[int, int], ...]:
        section = footer.sections.get(EPOCH_HISTORY)
        if section is None:
            return ()
        return decode_epoch_history(read_section(self._store, entry.key, section), footer)


def _open_from(footers: Sequence[Footer], last_offset: int) -> int:
    """Where transactions are open at the end of the run; -1 where it has none at all."""
    if footers[-1].open_from >= 0:
        return footers[-1].open_from
    return last_offset + 1 if any(one.open_from >= 0 for one in footers) else -1


def erased(log: bytes, keep: Keep) -> bytes:
    """Return the batches of `log` without records that are not kept; whole ones stay the same bytes, those
    without any record left go."""
    return b"".join(_batch(log[one.position : one.end], one, keep) for one in iter_headers(log))


def _batch(data: bytes, header: BatchHeader, keep: Keep) -> bytes:
    if header.is_control:
        return data
    found = list(iter_records(data))
    kept = [one for one in found if keep(one)]
    if len(kept) == len(found):
        return data
    if not kept:
        return b""
    body = b"".join(
        record(
            one.offset - header.base_offset,
            None if one.value is None else bytes(one.value),
            None if one.key is None else bytes(one.key),
            one.timestamp - header.base_timestamp,
        )
        for one in kept
    )
    fields = list(HEADER.unpack_from(data))
    fields[1] = HEADER.size - 12 + len(body)
    fields[5] &= ~7  # not compressed
    fields[-1] = len(kept)
    made = bytearray(HEADER.pack(*fields) + body)
    made[_CRC_AT:_AFTER_CRC] = crc32c(bytes(made[_AFTER_CRC:])).to_bytes(4, "big")
    return bytes(made)


def copied(log: bytes, keys: ErasureKeys, end_offset: int, *, keeps_all: bool) -> bytes:
    """Return what the copier of brokers leaves of `log`."""
    last_batches = None if keeps_all else LastBatches({})
    copier = ErasureCopier(keys, end_offset, last_batches, keep_to=-1, buffer_bytes=500)
    view = memoryview(log)
    parts = [bytes(part) for part in copier.copy(view, scan_batches(view))]
    return b"".join([*parts, *map(bytes, copier.rest())])


def without_offsets(*offsets: int) -> Keep:
    """Return what keeps all records but those of these offsets."""
    return lambda one: one.offset not in offsets


def publish_version(rewriter: Rewriter, **change: object) -> str:
    """Publish a version of the chain after the newest one, with other fields; return its key."""
    before = rewriter.manifest()
    following = replace(
        before, version=before.version + 1, parent_version=before.version, parent_key=before.stored_key
    )
    return rewriter.publish(replace(following, **change))  # type: ignore[arg-type]
