"""Each object of an archive in turn is lost, damaged or an older one; then each offline tool is run.

Whatever is lost, nothing live is deleted, what loses records is named, what can be made again is, as it was,
and everything else is checked in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count, product
from pathlib import Path
from uuid import UUID

import pytest

from service.base.errors import CorruptionError
from service.inspect.fsck import fsck
from service.inspect.fsck_report import FsckReport
from service.inspect.head_repair import Unrepairable
from service.inspect.repair import carry_out, find_repairs
from service.inspect.sweep import Skipped, delete_orphans, find_orphans
from service.remote.format.keys import HeadKey, SegmentKey, head_key, parse_key
from service.remote.reading.object_reader import open_head, open_topics
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.store import ObjectStore
from tests.unit.inspect.archives import (
    AGAIN,
    AGAIN_BEFORE,
    EVENTS,
    GONE,
    OTHER,
    Archive,
    make_archive,
    partition_records,
    places,
    records,
)

HARMS = ("gone", "flipped", "torn", "older")
NAMED = ("cluster.json", "topics.json", "newest copy", "HEAD", "manifest", "page", "upper page", "segment")
"""kinds of which the loss is an error"""
SILENT = ("older copy", "dead", "probe")
TOPICS = (EVENTS, OTHER, GONE, AGAIN_BEFORE, AGAIN)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return make_archive(tmp_path_factory.mktemp("archive"))


def harm(archive: Archive, store: ObjectStore, key: str, how: str) -> bool:
    """Do it; False where there is no such thing to do."""
    data = archive.objects[key].data
    if how == "gone":
        store.delete([key])
    elif how == "flipped":
        middle = len(data) // 2
        store.put(key, data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :])
    elif how == "torn":
        store.put(key, data[: len(data) // 2])
    elif archive.older.get(key, data) == data:
        return False
    else:
        store.put(key, archive.older[key])
    return True


def harmed(archive: Archive, kind: str) -> Iterator[tuple[str, str, MemoryStore]]:
    """Key, harm and store, for each object of the kind; of many each gets one harm."""
    keys = archive.kinds[kind]
    count_harmed = 0
    for number, key in enumerate(keys):
        for how in HARMS if len(keys) <= 10 else HARMS[number % 3 :: 4]:
            store = archive.store()
            if harm(archive, store, key, how):
                count_harmed += 1
                yield key, how, store
    assert count_harmed > 0, kind


def where(report: FsckReport) -> list[str]:
    return [one.where for one in report.errors]


def repair(store: ObjectStore) -> list[str]:
    """`firn repair --write`; what cannot be repaired."""
    ids = count(1000)
    hopeless = []
    for one in list(find_repairs(store)):
        if isinstance(one, Unrepairable):
            hopeless.append(str(one))
        else:
            assert carry_out(store, one, lambda: UUID(int=next(ids)))
    return hopeless


def sweep(archive: Archive, store: ObjectStore, whole_topic: UUID | None = None) -> set[str]:
    """`firn sweep --delete --older-than-hours 0`; what is gone then."""
    before = {info.key for info in store.list("")}
    # Where no copy of the metadata is left it refuses: nothing is gone then.
    with suppress(CorruptionError):
        for one in find_orphans(store, older_than_ms=0, now_ms=archive.now_ms, whole_topic=whole_topic):
            if not isinstance(one, Skipped):
                delete_orphans(store, one)
    return before - {info.key for info in store.list("")}


@pytest.mark.parametrize("kind", NAMED)
def test_fsck_names_a_lost_object_and_exits_with_1(archive: Archive, kind: str) -> None:
    for key, how, store in harmed(archive, kind):
        if (kind, how) == ("cluster.json", "older"):
            assert fsck(store).is_clean, "it names another copy, and the newest is found all the same"
            continue
        report = fsck(store)
        assert report.exit_code == 1, (key, how)
        folder = key.rsplit("/", 1)[0] if kind == "HEAD" else key
        expected = {folder, key, "cluster.json" if kind == "newest copy" else key}
        if kind == "manifest":
            expected.add(key.split("/manifest/")[0])
        assert expected & set(where(report)), (key, how, report.errors)


@pytest.mark.parametrize("kind", SILENT)
def test_a_lost_object_without_records_is_no_error(archive: Archive, kind: str) -> None:
    for key, how, store in harmed(archive, kind):
        assert fsck(store).errors == [], (key, how)
        assert repair(store) == []


@pytest.mark.parametrize("kind", [kind for kind in NAMED if kind != "segment"])
def test_repair_rebuilds_documents_as_they_were(archive: Archive, kind: str) -> None:
    truth = records(archive.store())
    rows = open_topics(archive.store()).topics
    assert {(name, topic_id) for name, topic_id, _ in truth} == {
        ("events", EVENTS), ("other", OTHER), ("again", AGAIN)
    }  # fmt: skip
    for key, how, store in harmed(archive, kind):
        assert repair(store) == [], (key, how)
        report = fsck(store)
        assert report.errors == [], (key, how)
        assert records(store) == truth, (key, how)
        assert open_topics(store).topics == rows, (key, how)
        assert list(find_repairs(store)) == []
        sweep(archive, store)
        assert fsck(store).errors == [], (key, how)
        assert records(store) == truth, (key, how)


def test_a_segment_that_is_lost_loses_nothing_else(archive: Archive) -> None:
    truth = {place: partition_records(archive.store(), place) for place in places(archive)}
    for key, how, store in harmed(archive, "segment"):
        parsed = parse_key(key)
        assert isinstance(parsed, SegmentKey)
        assert repair(store) == [], "nothing is there that could make it again"
        assert where(fsck(store)) == [key], (key, how)
        assert open_head(store, HeadKey(parsed.topic_id, parsed.partition)).version > 0
        for place, known in truth.items():
            if place != (parsed.topic_id, parsed.partition):
                assert partition_records(store, place) == known


@pytest.mark.parametrize("kind", [*NAMED, *SILENT])
def test_nothing_that_is_live_is_ever_swept(archive: Archive, kind: str) -> None:
    for key, how, store in harmed(archive, kind):
        for whole_topic in (*TOPICS, None):
            swept = sweep(archive, store, whole_topic)
            assert not swept & archive.live, (key, how, whole_topic)
            if whole_topic in (EVENTS, OTHER, AGAIN):
                assert not swept, (key, how, whole_topic)


def test_orphans_and_deleted_topics_are_swept_where_nothing_is_wrong(archive: Archive) -> None:
    store = archive.store()
    gone = sweep(archive, store, GONE)
    assert gone == {key for key in archive.objects if str(GONE) in key}
    before = sweep(archive, store, AGAIN_BEFORE)
    assert before == {key for key in archive.objects if str(AGAIN_BEFORE) in key}
    assert gone | before | sweep(archive, store) == {
        *archive.kinds["dead"],
        *archive.kinds["probe"],
    }
    assert {info.key for info in store.list("")} == archive.live | set(archive.kinds["older copy"])


SMALL = ("cluster.json", "topics.json", "newest copy", "older copy")


@pytest.mark.parametrize("pair", [*product(SMALL, SMALL)])
def test_nothing_that_is_live_is_swept_where_two_documents_are_lost(
    archive: Archive, pair: tuple[str, str]
) -> None:
    for hows in product(HARMS, HARMS):
        for whole_topic in (*TOPICS, None):
            store = archive.store()
            for kind, how in zip(pair, hows, strict=True):
                harm(archive, store, archive.kinds[kind][0], how)
            assert not sweep(archive, store, whole_topic) & archive.live, (hows, whole_topic)


@pytest.mark.parametrize("kind", [kind for kind in NAMED if kind != "segment"])
def test_fsck_checks_everything_but_a_lost_object(archive: Archive, kind: str) -> None:
    segments = archive.kinds["segment"]
    for number, (key, how, store) in enumerate(harmed(archive, kind)):
        for victim in segments[number % 3 :: 3]:
            data = archive.objects[victim].data
            store.put(victim, data[:100] + bytes([data[100] ^ 1]) + data[101:])
        report = fsck(store)
        expected = set(segments[number % 3 :: 3])
        assert expected <= set(where(report)), (key, how, expected - set(where(report)))
        orphans = {one.key for one in report.orphans}
        assert not orphans & archive.live, (key, how)


def test_two_documents_of_a_partition_at_once(archive: Archive) -> None:
    truth = records(archive.store())
    for place in places(archive):
        of_place = f"data/{place[0]}/{place[1]}/"
        manifests = [key for key in archive.objects if key.startswith(f"{of_place}manifest/")]
        store = archive.store()
        store.delete([*manifests, head_key(*place)])
        assert fsck(store).exit_code == 1
        assert not {one.key for one in fsck(store).orphans} & archive.live
        assert repair(store) == []
        assert fsck(store).errors == []
        assert records(store) == truth, place


def test_all_pages_and_manifests_of_a_partition_are_made_from_its_segments(archive: Archive) -> None:
    truth = records(archive.store())
    for place in places(archive):
        of_place = f"data/{place[0]}/{place[1]}/"
        lost = [key for key in archive.objects if key.startswith(of_place) and not key.endswith(".seg")]
        store = archive.store()
        store.delete([key for key in lost if "/page/" in key])
        assert repair(store) == []
        assert fsck(store).errors == []
        assert records(store) == truth, place
        store = archive.store()
        store.delete(lost)
        assert repair(store) == []
        assert fsck(store).errors == []
        assert records(store) == truth, place


def test_a_topic_whose_objects_are_all_gone_is_named(archive: Archive) -> None:
    for topic_id in (EVENTS, OTHER, AGAIN):
        store = archive.store()
        store.delete([info.key for info in store.list(f"data/{topic_id}")])
        report = fsck(store)
        assert {name.split("/")[1] for name in where(report)} == {str(topic_id)}
        assert "it has no objects" in report.errors[0].what
        assert {one.split(":")[0] for one in repair(store)} == set(where(report))


def test_a_whole_prefix_that_was_rolled_back_is_named(archive: Archive) -> None:
    store = archive.store()
    for key, data in archive.older.items():
        if key.endswith("/HEAD"):
            store.put(key, data)
    report = fsck(store)
    wrong = {one.where for one in report.errors if "rolled back" in one.what}
    assert wrong == {f"data/{EVENTS}/0", f"data/{EVENTS}/1"}
    assert {one.segments for one in report.partitions if one.topic == "events"} == {14, 9}
    assert not {one.key for one in report.orphans} & archive.live
    truth = records(archive.store())
    assert repair(store) == []
    assert fsck(store).errors == []
    assert records(store) == truth


def test_a_page_is_made_to_the_byte_and_head_stays(archive: Archive) -> None:
    for kind in ("page", "upper page"):
        made = moved = 0
        for key, how, store in harmed(archive, kind):
            parsed = parse_key(key)
            assert parsed is not None
            place = HeadKey(*parsed[:2])
            head = open_head(store, place)
            repair(store)
            if open_head(store, place) == head:
                assert store.get(key, max_size=1 << 20) == archive.objects[key].data, how
                made += 1
            else:
                moved += 1
                assert place.partition == 1, "a page of which the first segments are gone is another one now"
        assert made > 0
        assert moved == (3 if kind == "page" else 0)


def test_a_bucket_without_any_copy_is_not_swept_and_is_repaired_from_manifests(
    archive: Archive, tmp_path: Path
) -> None:
    store = archive.store()
    store.delete([*archive.kinds["newest copy"], *archive.kinds["older copy"]])
    with pytest.raises(CorruptionError, match="live objects are unknown"):
        list(find_orphans(store, older_than_ms=0, now_ms=archive.now_ms))
    store.delete(["topics.json", "cluster.json"])
    assert repair(store) == []
    assert fsck(store).errors == []
    rows = open_topics(store).topics
    assert len({row.name for row in rows}) == len(rows), "a name is one topic's"
    assert {(row.name, row.topic_id) for row in rows} >= {("again", AGAIN), ("events", EVENTS)}
