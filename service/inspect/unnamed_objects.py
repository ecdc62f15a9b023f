"""Judgement of segments and pages that a chain does not name, by the newest copy of the metadata.

What lies below a chain's end and is not named is what a rewrite has replaced, or what another rewrite is made
of. The copy has the rewrites that are under way. One that began after the copy was made is not in it, and its
objects are newer than the copy: of these nothing is judged.

After a take-over, and before a node of the heir has started, the copy is the lost cluster's. None of its
rewrites can be committed where the take-over has written HEAD anew (invariant T21): whatever was in the
partition before that HEAD is judged as though no rewrite were under way.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from service.inspect.committed import Committed
from service.inspect.restore_source import is_unfinished_claim
from service.metadata.image import live_rewrite
from service.remote.catalog import RewriteIntent
from service.remote.format.keys import HeadKey, PageKey, ParsedKey, SegmentKey, head_key, parse_key
from service.remote.format.manifest import Manifest
from service.remote.format.manifest_codec import ClusterFile
from service.remote.reading.object_reader import open_head
from service.remote.stores.errors import UNREADABLE, raise_of_the_store
from service.remote.stores.store import ObjectInfo, ObjectStore

_NEVER = -1


class CopyFacts(NamedTuple):
    """Facts that the copy has of one partition: when it was made, the partition's leader epoch, and the
    rewrite under way. Without a copy, or where that lacks the partition, nothing is judged by it."""

    as_of_ms: int = _NEVER
    leader_epoch: int = 0
    intent: RewriteIntent | None = None

    def is_awaited(self, parsed: ParsedKey | None) -> bool:
        """Return whether the object may have been made for the rewrite under way."""
        intent = self.intent
        if intent is None or not isinstance(parsed, (SegmentKey, PageKey)):
            return False
        return parsed.base_offset <= intent.last_offset and intent.base_offset <= parsed.last_offset

    def may_be_committed(self, info: ObjectInfo, manifest: Manifest) -> bool:
        """Return whether a commit that follows `manifest`, which does not name the object, may name it.

        Behind the chain's end only the age of an object tells that nobody will.
        """
        parsed = parse_key(info.key)
        if not isinstance(parsed, (SegmentKey, PageKey)):
            return False
        if parsed.base_offset >= manifest.end_offset or parsed.last_offset < manifest.start_offset:
            return False
        if isinstance(parsed, SegmentKey) and parsed.leader_epoch < self.leader_epoch:
            return False
        return info.last_modified_ms >= self.as_of_ms or self.is_awaited(parsed)


def take_over_of(file: ClusterFile) -> UUID | None:
    """Return the incarnation by which a restore took the prefix over, by `cluster.json`, if no node of the
    heir has written since; None else."""
    return file.stamp.writer.incarnation if file.stamp is not None and is_unfinished_claim(file) else None


def facts_of(store: ObjectStore, committed: Committed, key: HeadKey, take_over: UUID | None) -> CopyFacts:
    """Return the facts of one partition, `take_over` being what `take_over_of` returns."""
    facts = _copy_facts(committed, key)
    if take_over is None:
        return facts
    try:
        head = open_head(store, key)
        written_ms = store.head(head_key(*key)).last_modified_ms
    except UNREADABLE as e:
        raise_of_the_store(e)
        return facts
    if head.stamp is None or head.stamp.writer.incarnation != take_over:
        return facts  # the take-over has not come to it yet
    return facts._replace(as_of_ms=max(facts.as_of_ms, written_ms), intent=None)


def _copy_facts(committed: Committed, key: HeadKey) -> CopyFacts:
    copy = committed.copy
    partition = None if copy is None else copy.image.partition(*key)
    if copy is None or partition is None:
        return CopyFacts()
    return CopyFacts(copy.as_of_ms, partition.leader_epoch, live_rewrite(copy.image, key))
