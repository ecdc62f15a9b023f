"""`firn fsck` proves cuts and tails as it proves segments (T17), and `firn dump` opens them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.inspect.cuts_repair import CutsRepair
from service.inspect.dump import write_json
from service.inspect.formats import dump
from service.inspect.fsck import fsck
from service.inspect.fsck_report import FsckReport
from service.inspect.head_repair import Unrepairable
from service.inspect.repair import carry_out, find_repairs
from service.inspect.source import open_source
from service.remote.format.ancestors import Ancestor
from service.remote.format.cut_codec import TailRef
from service.remote.format.documents import seal
from service.remote.format.manifest_codec import ClusterFile, TopicsFileRow, encode_cluster, encode_topics
from service.remote.reading.tails import open_cuts
from service.remote.stores.memory_store import MemoryStore
from tests.support.built_batches import build_batch
from tests.support.cut_archives import AT_MS, CutWriter, Saved, row
from tests.unit.remote.archive import CLUSTER, TIP, TOPIC_ID, Archive

GROUPS = UUID(int=50)
"""a topic without a chain"""


def batch(base: int, count: int = 5, epoch: int = 0) -> bytes:
    rows = [(AT_MS + base + i, b"k", b"v%d" % (base + i)) for i in range(count)]
    return bytes(build_batch(rows, base_offset=base, leader_epoch=epoch))


class Bucket:
    """A chain of offsets 0 to 19 of one partition, and a topic that is in tails alone."""

    def __init__(self) -> None:
        self.store = MemoryStore(SystemThreads())
        self.archive = Archive(self.store, producer_snapshot=b"")
        self.archive.add_segment(2)
        self.archive.add_segment(2)
        self.writer = CutWriter(self.store, CLUSTER)
        metadata = self.writer.snapshot()
        self.store.put("cluster.json", encode_cluster(ClusterFile(CLUSTER, None, metadata)))
        rows = [TopicsFileRow(TIP.topic, TOPIC_ID, 4, {}), TopicsFileRow("groups", GROUPS, 1, {})]
        self.store.put("topics.json", encode_topics(CLUSTER, 90, rows))

    def tail(self, first: int = 20, end: int = 40, **more: Any) -> TailRef:
        data = b"".join(batch(base) for base in range(first, end, 5))
        groups = b"".join(batch(base) for base in range(0, 10, 5))
        return self.writer.tail([Saved(TOPIC_ID, 3, data), Saved(GROUPS, 0, groups)], **more)

    def cut(self, tails: list[TailRef], *, end: int = 40, **more: Any) -> None:
        row_changes = more.pop("row_changes", {})
        rows = [row(0), row(0), row(0), row(end, **row_changes)]
        self.writer.cut({TOPIC_ID: rows, GROUPS: [row(10)]}, tails, **more)

    def fsck(self, **more: Any) -> FsckReport:
        return fsck(self.store, **more)

    def errors(self, **more: Any) -> list[str]:
        return [f"{one.where}: {one.what}" for one in self.fsck(**more).errors]


def orphans(report: FsckReport) -> set[str]:
    return {one.key for one in report.orphans if not one.key.startswith("data/")}


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


def test_a_bucket_without_cuts_has_none_in_its_report(bucket: Bucket) -> None:
    report = bucket.fsck()
    assert (report.errors, report.cuts) == ([], None)
    assert json.loads(report.as_json())["cuts"] is None


@pytest.mark.parametrize("deep", [False, True])
def test_complete_cuts_are_clean_and_told(bucket: Bucket, deep: bool) -> None:
    one = bucket.tail(20, 30)
    bucket.cut([one], end=30, number=1)
    two = bucket.tail(30, 40, cut=2)
    bucket.cut([one, two], number=2)
    report = bucket.fsck(deep=deep)
    assert (report.errors, orphans(report), report.notes[1:]) == ([], set(), [])
    assert report.cuts is not None
    assert (report.cuts.kept, report.cuts.newest, report.cuts.complete, report.cuts.tails) == (2, 2, 2, 2)
    assert report.cuts.tail_bytes == one.size + two.size
    assert "cuts: 2 kept, the newest is 2, 2 is complete; 2 tails of" in report.as_text()
    assert json.loads(report.as_json())["cuts"]["newest_ms"] == AT_MS


def test_records_that_are_nowhere_are_an_error_of_each_kept_cut(bucket: Bucket) -> None:
    tail = bucket.tail(25, 40)
    bucket.cut([tail], number=7)
    where = f"data/{TOPIC_ID}/3"
    assert bucket.errors() == [f"{where}: cut 7: offsets 20 to 39 are neither in the chain nor in a tail"]
    first = bucket.tail(20, 25, cut=8)
    bucket.cut([tail, first], number=8)
    assert bucket.errors() == [f"{where}: cut 7: offsets 20 to 39 are neither in the chain nor in a tail"]
    del bucket.writer.kept[0]
    bucket.writer.publish()
    assert bucket.errors() == []


def test_a_partition_that_waits_for_its_segment_is_whole_where_the_cut_is_complete(bucket: Bucket) -> None:
    tail = bucket.tail(20, 25)
    waits = {"saved": 25, "waits": True}
    bucket.cut([tail], row_changes=waits, is_complete=False)
    assert bucket.errors() == []
    bucket.writer.kept[0] = bucket.writer.kept[0]._replace(is_complete=True)
    bucket.writer.publish()
    assert bucket.errors() == [
        f"data/{TOPIC_ID}/3: cut 1: offsets 25 to 39 are neither in the chain nor in a tail"
    ]
    bucket.archive.add_segment(4)
    assert bucket.errors() == []


def test_records_that_are_not_tailed_are_not_missed(bucket: Bucket) -> None:
    """A tiered topic without tails, saved up to its chain's end alone."""
    bucket.cut([bucket.tail(20, 30)], end=400, row_changes={"saved": 20})
    assert bucket.errors() == []


def test_a_tail_of_before_an_unclean_election_does_not_cover(bucket: Bucket) -> None:
    bucket.archive.add_segment(1, epoch=4)
    bucket.cut([bucket.tail(20, 40)])
    assert bucket.errors() == [
        f"data/{TOPIC_ID}/3: cut 1: offsets 25 to 39 are neither in the chain nor in a tail"
    ]


def test_damage_of_a_tails_records_is_named_and_only_a_deep_check_reads_them(bucket: Bucket) -> None:
    tail = bucket.tail()
    bucket.cut([tail])
    data = bytearray(bucket.store.get(tail.key, max_size=1 << 20))
    data[70] ^= 1
    bucket.store.put(tail.key, bytes(data))
    assert bucket.errors(deep=False) == []
    (error,) = bucket.errors()
    assert error.startswith(f"{tail.key}: ")
    assert "section of" in error
    data[tail.footer_position + 20] ^= 1
    bucket.store.put(tail.key, bytes(data))
    errors = bucket.errors(deep=False)
    assert errors[0] == f"{tail.key}: {tail.key}: footer: wrong checksum"
    assert len(errors) == 3, "both partitions lack what it had"


@pytest.mark.parametrize("gone", ["tail", "cut", "metadata", "CUT"])
def test_an_object_that_is_gone_is_named(bucket: Bucket, gone: str) -> None:
    tail = bucket.tail()
    bucket.cut([tail])
    bucket.cut([tail], number=2)
    keys = {
        "tail": tail.key,
        "cut": bucket.writer.kept[0].key,
        "metadata": bucket.writer.snapshot().key,
        "CUT": "CUT",
    }
    bucket.store.delete([keys[gone]])
    errors = bucket.errors()
    assert errors
    assert any(keys[gone] in error for error in errors)


def test_a_bucket_whose_first_cut_is_being_written_is_clean(bucket: Bucket) -> None:
    bucket.cut([bucket.tail()])
    bucket.store.delete(["CUT"])
    assert bucket.errors() == []


@pytest.mark.parametrize(
    ("follows", "errors"),
    [
        ((0, 0, 0), []),
        ((0, 0, None), ["CUT: it is gone, and there are cuts"]),
        ((0, 1, 0), ["CUT: it is gone, and there are cuts"]),
    ],
    ids=["that cannot be written", "of earlier software", "that was lost"],
)
def test_a_file_of_cuts_that_is_not_there_was_written_if_a_cut_followed_another(
    bucket: Bucket, follows: tuple[int | None, ...], errors: list[str]
) -> None:
    """Attempts that cannot write `CUT` leave a document each, with rising numbers."""
    for number, one in enumerate(follows, 1):
        bucket.cut([bucket.tail()], number=number, follows=one)
    bucket.store.delete(["CUT"])
    assert bucket.errors() == errors
    assert len(list(find_repairs(bucket.store))) == len(errors)


@pytest.mark.parametrize("damage", ["gone", "changed"])
def test_a_damaged_file_of_cuts_is_made_again_from_the_newest_document(bucket: Bucket, damage: str) -> None:
    tail = bucket.tail()
    bucket.cut([tail])
    bucket.cut([tail], number=2)
    newest = bucket.writer.kept[-1]
    data = bytearray(bucket.store.get("CUT", max_size=1 << 20))
    data[40] ^= 1
    bucket.store.delete(["CUT"])
    if damage == "changed":
        bucket.store.put("CUT", bytes(data))
    assert bucket.errors() != []
    (repair,) = (one for one in find_repairs(bucket.store) if isinstance(one, CutsRepair))
    assert str(repair).endswith(f"to be made from {newest.key}, earlier cuts are given up")
    assert carry_out(bucket.store, repair, uuid4)
    assert bucket.errors() == []
    cuts = open_cuts(bucket.store)
    assert cuts.kept == (newest._replace(is_complete=False),)
    assert not [one for one in find_repairs(bucket.store) if isinstance(one, CutsRepair)]


def test_a_file_of_cuts_of_later_software_is_not_made_again(bucket: Bucket) -> None:
    bucket.cut([bucket.tail()])
    document = json.loads(bucket.store.get("CUT", max_size=1 << 20))
    del document["document_crc32c"]
    bucket.store.put("CUT", seal({**document, "format_version": 9}))
    (found,) = (one for one in find_repairs(bucket.store) if "CUT" in str(one))
    assert isinstance(found, Unrepairable)


def test_metadata_behind_the_snapshot_is_in_a_tail(bucket: Bucket) -> None:
    bucket.cut([bucket.tail()], metadata_end=70)
    (error,) = bucket.errors()
    assert error == f"{bucket.writer.kept[0].key}: metadata from 64 to 69 is in no tail"
    saved = Saved(UUID(int=1), 0, batch(64, 6, epoch=3), leader_epoch=3)
    one = bucket.writer.tail([saved], cut=2)
    bucket.writer.kept.clear()
    bucket.cut([bucket.tail(), one], metadata_end=70, number=2)
    assert bucket.errors() == []


def test_live_tails_are_no_orphans_and_dead_ones_are(bucket: Bucket) -> None:
    dead = bucket.tail(20, 30)
    bucket.cut([dead], end=30, number=1)
    old = bucket.writer.kept.pop()
    live = bucket.tail(20, 40, cut=2)
    bucket.tail(40, 45, cut=3)
    bucket.cut([live], number=2)
    bucket.store.put("tail/else", b"")
    report = bucket.fsck()
    assert report.errors == []
    assert orphans(report) == {dead.key, old.key}, "the next cut will name what was uploaded"
    assert ("tail/else", "not a key of this layout") in report.notes


def test_nothing_is_called_an_orphan_while_a_cut_cannot_be_read(bucket: Bucket) -> None:
    tail = bucket.tail(20, 30)
    bucket.cut([tail], end=30, number=1)
    bucket.cut([bucket.tail(20, 40, cut=2)], number=2)
    bucket.store.put(bucket.writer.kept[0].key, b"?")
    report = bucket.fsck()
    assert orphans(report) == set()
    assert [one.where for one in report.errors] == [bucket.writer.kept[0].key]


def test_one_topic_is_checked_alone(bucket: Bucket) -> None:
    tail = bucket.tail()
    bucket.cut([tail], metadata_end=70)
    data = bytearray(bucket.store.get(tail.key, max_size=1 << 20))
    data[tail.footer_position - 1] ^= 1  # the last byte of "groups"
    bucket.store.put(tail.key, bytes(data))
    assert bucket.errors(topic=TIP.topic) == []
    assert len(bucket.errors(topic="groups")) == 1


def test_a_cut_that_is_dropped_meanwhile_is_not_judged(bucket: Bucket) -> None:
    """The keeper writes the next `CUT`, and a grace passes, while this one's objects are read."""

    class Busy(MemoryStore):
        reads = 0

        def get(self, key: str, *, max_size: int) -> bytes:
            data = super().get(key, max_size=max_size)
            if key == "CUT":
                Busy.reads += 1
                if Busy.reads == 1:
                    bucket.writer.kept.clear()
                    bucket.cut([bucket.tail(20, 40, cut=2)], number=2)
                    self.delete([first.key])
            return data

    bucket.store.__class__ = Busy
    first = bucket.tail(20, 40)
    bucket.cut([first], number=1)
    assert bucket.errors() == []
    assert Busy.reads == 2


def test_a_cut_of_another_cluster_is_an_error_and_that_of_an_ancestor_is_not(bucket: Bucket) -> None:
    bucket.writer.cluster_id = "before"
    bucket.cut([bucket.tail()])
    (error,) = bucket.errors()
    assert error == f"CUT: CUT: of cluster before, not of {CLUSTER}"
    cluster = ClusterFile(CLUSTER, None, bucket.writer.snapshot(), ancestors=(Ancestor("before", 1, AT_MS),))
    bucket.store.put("cluster.json", encode_cluster(cluster))
    assert bucket.errors() == []


def test_an_ancestors_chain_is_the_clusters_own(bucket: Bucket) -> None:
    assert bucket.errors() == []
    bucket.store.put("cluster.json", encode_cluster(ClusterFile("heir", None, bucket.writer.snapshot())))
    assert any("not heir" in error for error in bucket.errors())
    ancestors = (Ancestor(CLUSTER, 1, AT_MS),)
    cluster = ClusterFile("heir", None, bucket.writer.snapshot(), ancestors=ancestors)
    bucket.store.put("cluster.json", encode_cluster(cluster))
    assert bucket.errors() == []


def dumped(path: Path) -> dict[str, Any]:
    out = io.StringIO()
    write_json(dump(open_source(str(path))), out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_a_cut_its_document_and_a_tail_are_dumped(bucket: Bucket, tmp_path: Path) -> None:
    tail = bucket.tail()
    bucket.cut([tail])
    for info in list(bucket.store.list("")):
        path = tmp_path / info.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.store.get(info.key, max_size=1 << 30))
    cuts = dumped(tmp_path / "CUT")
    assert (cuts["kind"], cuts["newest"], cuts["complete"], cuts["exact"]) == ("CUT", 1, 1, 1)
    assert cuts["kept"][0]["key"] == bucket.writer.kept[0].key
    found = dumped(tmp_path / cuts["kept"][0]["key"])
    assert (found["kind"], found["cut"], found["metadata"]["end_offset"]) == ("cut", 1, 64)
    assert found["tails"][0]["key"] == tail.key
    last = found["partitions"][3]
    assert (last["topic_id"], last["partition"], last["end"], last["waits"]) == (str(TOPIC_ID), 3, 40, False)
    shown = dumped(tmp_path / tail.key)
    assert (shown["kind"], shown["cut"], shown["level"], shown["footer_position"]) == (
        "tail", 1, 0, tail.footer_position,
    )  # fmt: skip
    assert [one["end_offset"] for one in shown["sections"]] == [40, 10]
    (tmp_path / "copied").write_bytes((tmp_path / tail.key).read_bytes())
    assert dumped(tmp_path / "copied") == shown, "it is known by its end"
    (tmp_path / "x.json.gz").write_bytes((tmp_path / cuts["kept"][0]["key"]).read_bytes())
    assert dumped(tmp_path / "x.json.gz") == found, "it is known by its format"
    (tmp_path / "short.tail").write_bytes((tmp_path / tail.key).read_bytes()[:-9])
    with pytest.raises(CorruptionError, match="cut short"):
        dumped(tmp_path / "short.tail")
