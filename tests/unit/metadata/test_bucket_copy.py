"""The newest copy of the metadata in a bucket: by life, epoch and writing, with damaged copies."""

from __future__ import annotations

from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from service.base.errors import UnknownVersion
from service.base.threads import SystemThreads
from service.metadata.bucket_copy import newest_copy
from service.metadata.frames import Frame, UnknownRecord
from service.metadata.image import MetadataImage
from service.metadata.snapshot_codec import encode_image, encode_snapshot
from service.remote.format.keys import CLUSTER_KEY, MetadataKey, metadata_key
from service.remote.format.manifest_codec import ClusterFile, encode_cluster
from service.remote.format.metadata_ref import MetadataRef
from service.remote.stores.errors import ObjectAsleep
from service.remote.stores.memory_store import MemoryStore

CLUSTER = "c-1"


class Bucket:
    """A store into which copies are put one after the other, each later than the one before."""

    def __init__(self) -> None:
        self.store = MemoryStore(SystemThreads())
        self._made = 0

    def put(self, life: int, epoch: int, end_offset: int, life_id: UUID | None = None) -> MetadataRef:
        """A whole copy that nobody names."""
        self._made += 1
        image = MetadataImage(offset=end_offset - 1, epoch=epoch, life=life, life_id=life_id)
        data = b"".join(encode_image(image, 0))
        key = metadata_key(MetadataKey(end_offset, epoch, UUID(int=self._made)))
        self.store.put(key, data)
        return MetadataRef(key, end_offset, epoch, len(data), crc32c(data), life)

    def name(self, ref: MetadataRef) -> None:
        self.store.put(CLUSTER_KEY, encode_cluster(ClusterFile(CLUSTER, None, ref)))

    def damage(self, key: str, at: int = -1) -> None:
        data = bytearray(self.store.get(key, max_size=1 << 20))
        data[at] ^= 1
        self.store.put(key, bytes(data))

    def newest(self) -> MetadataRef | None:
        found = newest_copy(self.store).copy
        return None if found is None else found.ref


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def test_a_copy_of_a_later_life_is_newer_at_any_epoch_and_offset(bucket: Bucket) -> None:
    bucket.put(life=0, epoch=9, end_offset=626)
    second = bucket.put(life=1, epoch=1, end_offset=21)
    assert bucket.newest() == second
    bucket.name(second)
    assert bucket.newest() == second


def test_copies_of_two_recoveries_of_one_bucket_are_distinguished(bucket: Bucket) -> None:
    bucket.put(life=1, epoch=1, end_offset=21, life_id=UUID(int=5))
    bucket.put(life=1, epoch=1, end_offset=30, life_id=UUID(int=5))
    assert newest_copy(bucket.store).rival is None
    other = bucket.put(life=1, epoch=2, end_offset=90, life_id=UUID(int=6))
    bucket.name(other)
    rival = newest_copy(bucket.store).rival
    assert rival is not None
    assert f"is of life 1 {UUID(int=5)}, not of {UUID(int=6)}" in rival
    bucket.put(life=2, epoch=1, end_offset=9, life_id=UUID(int=7))
    assert newest_copy(bucket.store).rival is None, "a later life knows what it took over"


def test_within_a_life_the_epoch_decides_before_the_offset(bucket: Bucket) -> None:
    later = bucket.put(life=2, epoch=4, end_offset=80)
    bucket.put(life=2, epoch=3, end_offset=90)
    assert bucket.newest() == later


def test_a_copy_that_was_written_but_not_named_is_the_newest(bucket: Bucket) -> None:
    bucket.name(bucket.put(life=0, epoch=3, end_offset=40))
    unnamed = bucket.put(life=0, epoch=3, end_offset=50)
    assert bucket.newest() == unnamed


def test_the_named_one_of_two_copies_without_a_life_is_newest(bucket: Bucket) -> None:
    """Lives were not counted before: the second one's copy was stored later, and is named."""
    bucket.put(life=0, epoch=9, end_offset=626)
    second = bucket.put(life=0, epoch=1, end_offset=21)
    bucket.name(second)
    assert bucket.newest() == second


def test_an_old_name_does_not_outrank_a_newer_copy(bucket: Bucket) -> None:
    old = bucket.put(life=0, epoch=3, end_offset=40)
    bucket.name(old)
    newer = bucket.put(life=1, epoch=1, end_offset=5)
    assert bucket.newest() == newer


def test_a_damaged_copy_is_reported_and_the_previous_one_is_read(bucket: Bucket) -> None:
    before, last = bucket.put(0, 3, 40), bucket.put(0, 3, 50)
    bucket.name(last)
    bucket.damage(last.key)
    found = newest_copy(bucket.store)
    assert found.copy is not None
    assert found.copy.ref == before
    assert found.named == last
    [problem] = found.problems
    assert problem.startswith(f"{last.key}: ")
    bucket.damage(before.key)
    assert newest_copy(bucket.store).copy is None


def test_the_newest_copy_is_found_without_a_valid_cluster_json(bucket: Bucket) -> None:
    last = bucket.put(0, 3, 50)
    assert newest_copy(bucket.store).problems != (), "there is no cluster.json"
    bucket.name(last)
    assert newest_copy(bucket.store).problems == ()
    bucket.damage(CLUSTER_KEY, 40)
    found = newest_copy(bucket.store)
    assert (found.copy is not None and found.copy.ref, found.named) == (last, None)
    assert len(found.problems) == 1
    bucket.name(last._replace(key=metadata_key(MetadataKey(50, 3, UUID(int=99)))))
    found = newest_copy(bucket.store)
    assert found.copy is not None
    assert found.copy.ref == last
    assert "is not there" in found.problems[0]


def test_no_copy_is_none(bucket: Bucket) -> None:
    bucket.store.put("metadata/else", b"not ours")
    assert newest_copy(bucket.store).copy is None


def test_a_copy_of_later_software_is_refused_and_not_passed_over(bucket: Bucket) -> None:
    bucket.put(0, 3, 40)
    frames = [Frame(UnknownRecord(20_999, b""), 0)]
    data = b"".join(encode_snapshot(frames, epoch=3, last_timestamp_ms=0, now_ms=0))
    bucket.store.put(metadata_key(MetadataKey(50, 3, UUID(int=77))), data)
    with pytest.raises(UnknownVersion, match="unknown type"):
        newest_copy(bucket.store)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 50)), min_size=1, max_size=6),
    st.sets(st.integers(0, 5)),
)
def test_the_newest_intact_copy_is_read(copies: list[tuple[int, int, int]], damaged: set[int]) -> None:
    bucket = Bucket()
    refs = [bucket.put(*one) for one in copies]
    for number in damaged:
        if number < len(refs):
            bucket.damage(refs[number].key)
    whole = [one for number, one in enumerate(copies) if number not in damaged]
    found = bucket.newest()
    assert (found and (found.life, found.epoch, found.end_offset)) == max(whole, default=None)


def test_a_lost_newer_copy_is_reported_and_an_older_one_is_not(bucket: Bucket) -> None:
    """Settings that were altered after the copy that is left are not known."""
    older, before, last = bucket.put(0, 3, 30), bucket.put(0, 3, 40), bucket.put(0, 3, 50)
    bucket.name(last)
    assert newest_copy(bucket.store).lost is None
    bucket.damage(older.key)
    assert newest_copy(bucket.store).lost is None
    bucket.store.delete([older.key])
    bucket.name(before)
    assert newest_copy(bucket.store).lost is None, "an old cluster.json"
    bucket.damage(last.key)
    assert newest_copy(bucket.store).lost is not None, "damaged, whoever names it"
    bucket.store.delete([last.key])
    assert newest_copy(bucket.store).lost is None, "nothing tells of it any more"
    bucket.name(last)
    assert newest_copy(bucket.store).lost == f"{last.key}: cluster.json names it, and it is not there"


class Refusing(MemoryStore):
    """A store that refuses some keys."""

    refused: frozenset[str] = frozenset()

    def get(self, key: str, *, max_size: int) -> bytes:
        if key in self.refused:
            raise ObjectAsleep(f"{key}: in an archive class")
        return super().get(key, max_size=max_size)


def test_a_refused_copy_counts_only_where_it_may_be_the_newest(bucket: Bucket) -> None:
    bucket.store = store = Refusing(SystemThreads())
    before, last = bucket.put(0, 3, 40), bucket.put(0, 3, 50)
    bucket.name(last)
    store.refused = frozenset([before.key])
    found = newest_copy(store)
    assert (found.copy is not None and found.copy.ref, found.lost) == (last, None)
    assert any(before.key in problem for problem in found.problems)
    store.refused = frozenset([last.key])
    with pytest.raises(ObjectAsleep):
        newest_copy(store)
