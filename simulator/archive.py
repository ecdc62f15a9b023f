"""The bucket as the oracle sees it: what is live, where it ends, whether all of it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple
from uuid import UUID

from service.base.clock import ManualClock
from service.base.errors import CorruptionError, FirnError
from service.base.threads import SystemThreads
from service.inspect.fsck import fsck
from service.inspect.head_repair import HeadRepair, Unrepairable
from service.inspect.repair import carry_out, find_repairs
from service.inspect.sweep import PartitionOrphans, Skipped, delete_orphans, find_orphans
from service.remote.format.keys import (
    CLUSTER_KEY,
    TOPICS_KEY,
    HeadKey,
    ManifestKey,
    PageKey,
    SegmentKey,
    SharedKey,
    head_key,
    parse_key,
)
from service.remote.format.manifest import ManifestPage, PageRef, SegmentEntry, live_segments
from service.remote.format.manifest_codec import decode_head, decode_topics
from service.remote.reading.object_reader import Chain, open_chain, open_page, open_published
from service.remote.stores.memory_store import MemoryStore
from simulator.store import Bucket


class Live(NamedTuple):
    """Content of a manifest: the keys of all objects that it needs, its segments, its end offset."""

    keys: frozenset[str]
    segments: tuple[SegmentEntry, ...]
    end_offset: int


NOTHING: Final = Live(frozenset(), (), 0)


class Archive:
    """Looks at objects directly, without faults and without time."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._live: dict[tuple[UUID, int], tuple[str, frozenset[str], int]] = {}
        self._named: dict[str, Live] = {}

    def live(self, topic_id: UUID, partition: int) -> tuple[frozenset[str], int]:
        """Return the keys of all objects that HEAD needs, and the archive's end offset; no keys and 0 without
        a valid HEAD."""
        head = self._bucket.objects.get(head_key(topic_id, partition))
        if head is None:
            return frozenset(), 0
        known = self._live.get((topic_id, partition))
        if known is not None and known[0] == head.tag:
            return known[1], known[2]
        store = self.store(f"data/{topic_id}/{partition}/")
        try:
            chain = open_published(store, HeadKey(topic_id, partition))
            assert chain is not None
            live = _live(store, chain)
        except FirnError:
            return frozenset(), 0  # damaged by an act; fsck names it
        keys = live.keys | {head_key(topic_id, partition)}
        self._live[topic_id, partition] = head.tag, keys, live.end_offset
        return keys, live.end_offset

    def named(self, manifest_key: str) -> Live:
        """Read the manifest at this key. Raises `FirnError` where it, or a page of it, is missing."""
        known = self._named.get(manifest_key)
        if known is None:
            store = self.store(manifest_key.rpartition("/")[0].rpartition("/")[0] + "/")
            known = self._named[manifest_key] = _live(store, open_chain(store, manifest_key))
        return known

    def object(self, key: str) -> bytes | None:
        """Return the bytes of an object; None without one."""
        found = self._bucket.objects.get(key)
        return None if found is None else found.data

    def writer(self, key: str) -> str:
        """Return the process that wrote an object; "" without one."""
        found = self._bucket.objects.get(key)
        return "" if found is None else found.by

    def is_live(self, key: str) -> bool:
        """Return whether a HEAD, or the cluster, needs the object."""
        parsed = parse_key(key)
        if isinstance(parsed, SharedKey):
            return True
        if isinstance(parsed, HeadKey):
            return True
        if isinstance(parsed, SegmentKey | ManifestKey | PageKey):
            return key in self.live(parsed.topic_id, parsed.partition)[0]
        return False

    def wrong_with_write(self, key: str, data: bytes, replaced: bytes | None, gone: frozenset[UUID]) -> str:
        """Return why `data` must not replace `replaced` at `key` (T6, T7, T13); empty where it may.

        `gone`: topics whose deletion a client requested. Damaged data passes: other checks find it.
        """
        try:
            if key == TOPICS_KEY and replaced is not None:
                # A topic without objects may be one whose deletion is over and forgotten.
                lost = [
                    str(one)
                    for one in sorted(_topic_ids(replaced) - _topic_ids(data) - gone)
                    if any(key.startswith(f"data/{one}/") for key in self._bucket.objects)
                ]
                return f"{key} forgets topics that nobody deleted: {', '.join(lost)}" if lost else ""
            if not isinstance(parse_key(key), HeadKey):
                return ""
            head = decode_head(data)
            if head.manifest_key not in self._bucket.objects:
                return f"{key} names {head.manifest_key}, which is not there"
            old = decode_head(replaced) if replaced is not None else None
        except FirnError:
            return ""
        if old is None or old.manifest_key == head.manifest_key:
            return ""
        if head.version <= old.version or head.leader_epoch < old.leader_epoch:
            return (
                f"{key} goes from version {old.version} of epoch {old.leader_epoch} to version "
                f"{head.version} of epoch {head.leader_epoch}"
            )
        return ""

    def owner(self, key: str) -> UUID | None:
        """Return the topic of an object; None for a shared one."""
        parsed = parse_key(key)
        if isinstance(parsed, SegmentKey | ManifestKey | PageKey | HeadKey):
            return parsed.topic_id
        return None

    def problems(self) -> list[str]:
        """Return the errors that `firn fsck` finds."""
        report = fsck(self.store(""))
        return [f"{finding.where}: {finding.what}" for finding in report.errors]

    def repair(self, new_uuid: Callable[[], UUID], now_ms: int, *, heads: bool) -> list[str]:
        """Repair `cluster.json`, `topics.json` and `CUT` as `firn repair` does; return its messages.

        Damaged HEADs are repaired only with `heads`: the node writes them again, unless its disk was put back
        to a time when it did not know them. A manifest without HEAD may belong to a running commit.
        """
        store = self.store("")
        said = []
        for one in find_repairs(store):
            if isinstance(one, Unrepairable):
                if heads or one.where in (CLUSTER_KEY, TOPICS_KEY):
                    said.append(str(one))
            elif not isinstance(one, HeadRepair) or (heads and one.expected is not None):
                carry_out(store, one, new_uuid)
                said.append(str(one))
        for found in list(store.list("")):
            data = store.get(found.key, max_size=found.size)
            old = self._bucket.objects.get(found.key)
            if old is None or old.data != data:
                self._bucket.write(found.key, data, now_ms)
        return said

    def sweep(self, now_ms: int) -> list[str]:
        """Sweep objects of every age as `firn sweep --delete` does; return its messages.

        Topics that it passes over are swept again, each with `--topic`."""
        store = self.store("")
        said: list[str] = []
        try:
            passed = self._delete_orphans(find_orphans(store, older_than_ms=0, now_ms=now_ms), store, said)
            for topic_id in passed:
                found = find_orphans(store, older_than_ms=0, now_ms=now_ms, whole_topic=topic_id)
                self._delete_orphans(found, store, said)
        except CorruptionError as e:
            said.append(str(e))
        return said

    def _delete_orphans(
        self, found: Iterator[PartitionOrphans | Skipped], store: MemoryStore, said: list[str]
    ) -> list[UUID]:
        """Delete orphans, add messages to `said`, and return the topics that were passed over."""
        passed = []
        for one in found:
            if isinstance(one, Skipped):
                said.append(f"passed over: {one.where}: {one.why}")
                if "/" not in one.where:
                    passed.append(UUID(one.where))
                continue
            delete_orphans(store, one)
            for info in one.orphans:
                self._bucket.delete(info.key, "firn sweep")
            said.append(f"{len(one.orphans)} orphans of {one.where}")
        return passed

    def store(self, prefix: str) -> MemoryStore:
        """Return a store with copies of the objects whose keys begin with `prefix`."""
        clock = ManualClock(0)
        store = MemoryStore(SystemThreads(), clock)
        for key, found in sorted(self._bucket.objects.items(), key=lambda one: one[1].modified_ms):
            if key.startswith(prefix):
                clock.advance(found.modified_ms - clock.now_ms())
                store.put(key, found.data)
        return store


def _live(store: MemoryStore, chain: Chain) -> Live:
    keys = {chain.key}

    def load(ref: PageRef) -> ManifestPage:
        keys.add(ref.key)
        return open_page(store, ref, chain.manifest)

    segments = tuple(live_segments(chain.manifest, load))
    keys.update(entry.key for entry in segments)
    return Live(frozenset(keys), segments, chain.manifest.end_offset)


def _topic_ids(topics: bytes) -> frozenset[UUID]:
    listed = decode_topics(topics)
    return frozenset(row.topic_id for row in (*listed.topics, *listed.foreign))


def partition_of(line: str) -> str:
    """Return the prefix of the partition of a key, or of a finding of `firn fsck`."""
    return "/".join(line.split(":")[0].split("/")[:3])
