"""Proves one partition's chain, from HEAD to the footer of each segment: for `firn fsck` and for audits.

What is wrong is told to `error`, as where (an object, or the partition's folder) and what, in the same words
for both. The records of a segment are segment_proof.py's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from service.base.errors import CorruptionError
from service.remote.format.keys import HeadKey, partition_prefix
from service.remote.format.manifest import Load, Manifest, SegmentEntry, live_segments
from service.remote.format.segment_object import Footer
from service.remote.reading.object_reader import Chain, check_entry, open_footer_of, open_published
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore

Tell = Callable[[str, str], None]
"""(where, what)"""


def published_chain(
    store: ObjectStore,
    key: HeadKey,
    *,
    cluster_id: str | None,
    topic: str | None,
    error: Tell,
    note: Tell | None = None,
) -> Chain | None:
    """What HEAD names; None where it cannot be read, an error, or where nothing was published, a note.

    `cluster_id` and `topic` are what the manifest must say, None where that is not known.
    """
    where = partition_prefix(key.topic_id, key.partition)
    try:
        chain = open_published(store, key)
    except (ObjectNotFound, CorruptionError) as e:
        error(where, f"HEAD, or the manifest that it names, cannot be read: {e}")
        return None
    if chain is None:
        if note is not None:
            note(where, "no HEAD: nothing of it was ever published")
        return None
    manifest = chain.manifest
    if cluster_id is not None and manifest.cluster_id != cluster_id:
        error(where, f"the manifest is of cluster {manifest.cluster_id}, not {cluster_id}")
    if topic is not None and manifest.topic != topic:
        error(where, f"the manifest is of topic {manifest.topic!r}, not {topic!r}")
    return chain


def proved_segments(chain: Chain, load: Load, error: Tell) -> Iterator[SegmentEntry]:
    """The live segments, oldest first, while it is proved that they are one chain and add up.

    A page that cannot be read is an error and the end; nothing is said then of what lies behind it.
    """
    manifest = chain.manifest
    expected: int | None = None
    segments = size_bytes = 0
    try:
        for entry in live_segments(manifest, load):
            if (wrong := _out_of_line(manifest, entry, expected)) is not None:
                error(entry.key, wrong)
            expected = entry.last_offset + 1
            segments, size_bytes = segments + 1, size_bytes + entry.size
            yield entry
    except (ObjectNotFound, CorruptionError) as e:
        error(chain.key, f"a page of the manifest cannot be read: {e}")
        return
    end = manifest.start_offset if expected is None else expected
    if end != manifest.end_offset:
        error(chain.key, f"the chain ends before {end}, not before {manifest.end_offset}")
    if (segments, size_bytes) != (manifest.segments, manifest.size_bytes):
        error(
            chain.key,
            f"{segments} segments of {size_bytes} bytes, "
            f"the manifest sums up {manifest.segments} of {manifest.size_bytes}",
        )


def _out_of_line(manifest: Manifest, entry: SegmentEntry, expected: int | None) -> str | None:
    """Why `entry` does not go on at `expected`; the first must hold the log's start."""
    if expected is not None:
        return None if entry.base_offset == expected else f"does not follow offset {expected - 1}"
    if entry.base_offset <= manifest.start_offset <= entry.last_offset:
        return None
    return f"the chain begins with it, not at {manifest.start_offset}"


def proved_footer(
    store: ObjectStore, entry: SegmentEntry, size: int | None, *, cluster_id: str, topic: str
) -> Footer:
    """The footer of a segment that agrees with its object, of `size` (None: there is none), and its manifest.

    `cluster_id` and `topic` are the manifest's. `CorruptionError` says what differs.
    """
    if size is None:
        raise CorruptionError("the object is not there")
    if size != entry.size:
        raise CorruptionError(f"the object has {size} bytes, the manifest says {entry.size}")
    footer = open_footer_of(store, entry)
    check_entry(entry, footer)
    identity = footer.identity
    # A segment that belongs to another partition says its owner's topic.
    named = identity.topic if entry.owner is None else topic
    if (identity.cluster_id, named) != (cluster_id, topic):
        raise CorruptionError(f"of cluster {identity.cluster_id}, topic {identity.topic!r}")
    return footer
