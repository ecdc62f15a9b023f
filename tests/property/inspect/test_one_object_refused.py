"""Each object of an archive in turn is refused, as one in an archive class is: all others are read.

A refused object is there. So `firn fsck` names it and goes on, `firn repair` leaves its partition alone,
`firn sweep` passes it over, and a recovery brings every other partition back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, cast

import pytest

from service.inspect.fsck import fsck
from service.inspect.head_repair import Unrepairable
from service.inspect.repair import find_repairs
from service.inspect.sweep import PartitionOrphans, find_orphans
from service.metadata.bucket_copy import newest_copy
from service.metadata.image import MetadataImage
from service.remote.format.keys import HeadKey, parse_key
from service.remote.stores.errors import AccountRefused, ObjectAsleep, StoreRefused
from service.remote.stores.store import ObjectStore
from service.replicas.archive_recovery import read_bucket
from service.tiering.recovery import read_archive
from tests.unit.inspect.archives import Archive, make_archive
from tests.unit.tiering.world import CLUSTER

OF_PARTITIONS: Final = ("HEAD", "manifest", "page", "upper page", "segment")
READS: Final = ("get", "get_range", "get_suffix", "get_tagged", "head")


class Refusing:
    """A store that refuses to give one object, or any."""

    def __init__(self, store: ObjectStore, key: str | None, error: type[StoreRefused] = ObjectAsleep) -> None:
        self._store = store
        self._key = key
        self._error = error
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._store, name)

        def ask(key: str, *arguments: Any, **named: Any) -> Any:
            if self._key in (None, key):
                self.refused += 1
                raise self._error(f"{key}: no")
            return called(key, *arguments, **named)

        return ask if name in READS else called


def refusing(archive: Archive, key: str) -> ObjectStore:
    return cast("ObjectStore", Refusing(archive.store(), key))


def partition_of(key: str) -> HeadKey:
    parsed: Any = parse_key(key)
    return HeadKey(parsed.topic_id, parsed.partition)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    made: Path = tmp_path_factory.mktemp("archive")
    return make_archive(made)


@pytest.mark.parametrize("kind", [*OF_PARTITIONS, "topics.json", "cluster.json", "newest copy", "older copy"])
def test_fsck_names_it_and_checks_all_else(archive: Archive, kind: str) -> None:
    whole = fsck(archive.store())
    assert archive.kinds[kind]
    for key in archive.kinds[kind]:
        report = fsck(refusing(archive, key))
        own = str(partition_of(key).topic_id) if kind in OF_PARTITIONS else ""
        for one in whole.partitions:
            assert one in report.partitions or one.topic_id == own, key
        told = [str(one) for one in (*report.errors, *report.notes)]
        assert any(key in one for one in told), (key, told)
        assert not report.is_clean or kind in ("older copy", "topics.json", "newest copy"), key


@pytest.mark.parametrize("kind", [*OF_PARTITIONS, "topics.json"])
def test_repair_leaves_its_partition_alone_and_the_others_in_peace(archive: Archive, kind: str) -> None:
    assert archive.kinds[kind]
    for key in archive.kinds[kind]:
        found = [one for one in find_repairs(refusing(archive, key)) if not isinstance(one, Unrepairable)]
        assert found == [], key


@pytest.mark.parametrize("kind", OF_PARTITIONS)
def test_a_recovery_brings_every_other_partition_back(archive: Archive, kind: str) -> None:
    copy = newest_copy(archive.store()).copy
    assert copy is not None
    catalog, deleted = copy.image.remote, copy.image.tombstones
    whole = read_archive(archive.store(), CLUSTER, catalog, deleted).partitions
    assert len(whole) > 2
    assert archive.kinds[kind]
    for key in archive.kinds[kind]:
        found = read_archive(refusing(archive, key), CLUSTER, catalog, deleted)
        own = partition_of(key)
        for one, partition in whole.items():
            assert one == own or found.partitions[one] == partition, key
        assert own not in catalog or found.partitions[own].entry.end_offset >= catalog[own].end_offset, (
            "no offset of it is given out again"
        )


@pytest.mark.parametrize("kind", [*OF_PARTITIONS, "topics.json"])
def test_a_sweep_passes_its_partition_over_and_finds_the_orphans_of_all_others(
    archive: Archive, kind: str
) -> None:
    def sweep(store: ObjectStore) -> dict[HeadKey | None, set[str]]:
        found = find_orphans(store, older_than_ms=0, now_ms=1 << 50)
        return {
            one.key: {info.key for info in one.orphans} for one in found if isinstance(one, PartitionOrphans)
        }

    whole = sweep(archive.store())
    assert len(whole) > 2
    assert archive.kinds[kind]
    for key in archive.kinds[kind]:
        found = sweep(refusing(archive, key))
        own = partition_of(key) if kind in OF_PARTITIONS else None
        assert {one: keys for one, keys in whole.items() if one != own} == {
            one: keys for one, keys in found.items() if one != own
        }, key
        assert found.get(own, set()) <= whole.get(own, set()), key


def test_a_recovery_goes_by_the_copy_where_topics_json_is_refused(archive: Archive) -> None:
    bucket = read_bucket(refusing(archive, "topics.json"), CLUSTER, MetadataImage())
    whole = read_bucket(archive.store(), CLUSTER, MetadataImage())
    assert (bucket.listed, bucket.newest.copy) == (None, whole.newest.copy)
    assert bucket.archive.partitions == whole.archive.partitions
    assert any("the copy of the metadata says which topics there are" in one for one in bucket.problems)


def test_an_answer_of_the_whole_store_ends_each_of_them(archive: Archive) -> None:
    for tool in (fsck, newest_copy, lambda store: list(find_repairs(store))):
        store = Refusing(archive.store(), None, AccountRefused)
        with pytest.raises(AccountRefused):
            tool(cast("ObjectStore", store))
        assert store.refused == 1
