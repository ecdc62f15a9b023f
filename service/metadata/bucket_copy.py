"""Finds and decodes the newest copy of the cluster's metadata in the bucket.

The copies below ``metadata/`` are authoritative; `cluster.json` only names one of them, and may be damaged,
old or missing. A copy holds the life of its cluster (`LifeRecord`). Copies of one life are ordered by leader
epoch and offset; those of a later life are newer, whatever their offsets. Within one life the copy that
`cluster.json` names is the newest if it was stored after the greatest one: two lives that began before lives
were counted look like one. Where a newer copy was written and is lost, the newest one left shows an earlier
state of the cluster, and not its last settings (`NewestCopy.lost`). Functions here block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError, StorageError, UnknownVersion
from service.metadata.image import MetadataImage
from service.metadata.snapshot_codec import decode_snapshot
from service.remote.format.keys import CLUSTER_KEY, METADATA_PREFIX, MetadataKey, parse_key
from service.remote.format.metadata_ref import MAX_METADATA_BYTES, MetadataRef
from service.remote.reading.object_reader import open_cluster_file
from service.remote.stores.errors import UNREADABLE, ObjectNotFound, naming, raise_of_the_store
from service.remote.stores.store import ObjectInfo, ObjectStore

_ATTEMPTS: Final = 3
"""A copy may be replaced between `cluster.json` and the listing."""
_READ_AT_MOST: Final = 64
"""Limit of copies to read, those stored last; a node keeps two."""


class MetadataCopy(NamedTuple):
    """Complete copy. `stored_ms` is when it was stored, by the store's clock."""

    ref: MetadataRef
    image: MetadataImage
    stored_ms: int

    @property
    def as_of_ms(self) -> int:
        """Time up to which the copy is complete: that of its last record, by its writer's clock.

        A copy that was restored is stored long after that.
        """
        return min(self.stored_ms, self.image.timestamp_ms)

    def why_of_another_life(self, image: MetadataImage) -> str | None:
        """Return why the copy belongs to another life of the same number than `image`; None where it does
        not."""
        if self.image.life != image.life or self.image.life_id == image.life_id:
            return None
        return f"{self.ref.key} is of life {image.life} {self.image.life_id}, not of {image.life_id}"


class NewestCopy(NamedTuple):
    """Newest readable copy, None where there is none; and the damage found, in words.

    `named`: the copy that `cluster.json` names, readable or not; None where `cluster.json` is missing,
    damaged or names none. `lost`: why the cluster may have written a newer copy than this one; None where it
    has not. `rival`: why it is unknown whether this copy is the newest: another copy is of another life of
    the same number, as after two recoveries of one bucket; None where there is none.
    """

    copy: MetadataCopy | None
    named: MetadataRef | None
    problems: tuple[str, ...]
    lost: str | None = None
    rival: str | None = None


def newest_copy(store: ObjectStore, attempts: int = _ATTEMPTS) -> NewestCopy:
    """Find and decode the newest copy; holds at most three images in memory.

    Raises `UnknownVersion` where a copy, or `cluster.json`, was written by later software, as this software
    would miss its content; `StorageError` where the store does not answer, or denies access to a copy that
    may be the newest: an operator can grant it.
    """
    problems: list[str] = []
    named = _named(store, problems)
    newest: MetadataCopy | None = None
    of_named: MetadataCopy | None = None
    unread: list[_Unread] = []
    lives: dict[tuple[int, UUID | None], MetadataCopy] = {}
    is_named_there = named is None
    for info in _stored(store, named):
        is_named_there = is_named_there or (named is not None and info.key == named.key)
        copy = _open(store, info, named)
        if isinstance(copy, _Unread):
            unread.append(copy)
            continue
        if copy is None:
            continue
        if named is not None and copy.ref.key == named.key:
            of_named = copy
        lives.setdefault((copy.image.life, copy.image.life_id), copy._replace(image=_life_of(copy.image)))
        if newest is None or copy.image.position > newest.image.position:
            newest = copy
    if named is not None and not is_named_there:
        if attempts > 1:
            return newest_copy(store, attempts - 1)
        problems.append(f"{named.key}: {CLUSTER_KEY} names it, and it is not there")
    found = _newer(newest, of_named)
    is_named = found is not None and named is not None and found.ref.key == named.key
    later = [one for one in unread if found is None or one.may_be_later(found, is_named=is_named)]
    for one in later:
        if not isinstance(one.error, CorruptionError):
            raise one.error
    problems += [str(one.error) for one in unread]
    lost = next((str(one.error) for one in later), None) or _why_lost(found, named, is_named_there)
    rivals = () if found is None else (one.why_of_another_life(found.image) for one in lives.values())
    return NewestCopy(found, named, tuple(problems), lost, next(filter(None, rivals), None))


def _life_of(image: MetadataImage) -> MetadataImage:
    """Return an image that holds only the life."""
    return MetadataImage(life=image.life, life_id=image.life_id)


def _why_lost(found: MetadataCopy | None, named: MetadataRef | None, is_named_there: bool) -> str | None:
    if is_named_there or named is None or found is None or found.image.position > named.position:
        return None
    return f"{named.key}: {CLUSTER_KEY} names it, and it is not there"


def _newer(greatest: MetadataCopy | None, named: MetadataCopy | None) -> MetadataCopy | None:
    if greatest is None or named is None:
        return greatest
    is_same_life = named.image.life == greatest.image.life
    return named if is_same_life and named.stored_ms > greatest.stored_ms else greatest


def _named(store: ObjectStore, problems: list[str]) -> MetadataRef | None:
    try:
        return open_cluster_file(store).metadata
    except UnknownVersion:
        raise
    except (CorruptionError, ObjectNotFound) as e:
        problems.append(str(e))
        return None


class _Unread(NamedTuple):
    """Copy that is damaged, or to which the store denies access."""

    key: MetadataKey
    stored_ms: int
    error: CorruptionError | StorageError

    def may_be_later(self, than: MetadataCopy, *, is_named: bool) -> bool:
        """Return whether it may be of later metadata than the copy `than`, which `cluster.json` names or not.

        Its life is unknown.
        """
        is_greater = (self.key.epoch, self.key.offset) > (than.ref.epoch, than.ref.end_offset)
        return is_greater or (not is_named and self.stored_ms >= than.stored_ms)


def _stored(store: ObjectStore, named: MetadataRef | None) -> Iterator[ObjectInfo]:
    """Yield the copies to read: those stored last, and the named one."""
    found = [info for info in store.list(METADATA_PREFIX) if isinstance(parse_key(info.key), MetadataKey)]
    found.sort(key=lambda info: (info.last_modified_ms, info.key), reverse=True)
    yield from found[:_READ_AT_MOST]
    yield from (info for info in found[_READ_AT_MOST:] if named is not None and info.key == named.key)


def _open(store: ObjectStore, info: ObjectInfo, named: MetadataRef | None) -> MetadataCopy | _Unread | None:
    """Read one copy; None where it was replaced by a newer one meanwhile."""
    key = parse_key(info.key)
    assert isinstance(key, MetadataKey)
    try:
        with naming(info.key):
            data = store.get(info.key, max_size=MAX_METADATA_BYTES)
            checksum = crc32c(data)
            is_named = named is not None and named.key == info.key
            if is_named and named is not None and (named.size, named.crc32c) != (len(data), checksum):
                raise CorruptionError(f"{len(data)} bytes with another checksum than cluster.json's")
            image = decode_snapshot([data], end_offset=key.offset, epoch=key.epoch)
    except UnknownVersion:
        raise
    except ObjectNotFound:
        return None
    except UNREADABLE as e:
        raise_of_the_store(e)
        return _Unread(key, info.last_modified_ms, e)
    ref = MetadataRef(info.key, key.offset, key.epoch, len(data), checksum, image.life)
    return MetadataCopy(ref, image, info.last_modified_ms)
