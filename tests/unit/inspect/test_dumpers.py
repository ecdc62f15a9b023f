"""Every format that Firn writes, made by its own room, is shown; a damaged file is an error in words."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.base.disk import SystemDisk
from service.base.errors import ConfigError, CorruptionError, FirnError
from service.base.files import write_checkpoint
from service.cli.main import main
from service.hot.files import FileCache, FileHandle
from service.hot.indexes import OffsetIndex, TimeIndex
from service.hot.producer_snapshot import encode_snapshot
from service.hot.producers import ProducerStates
from service.inspect.dump import Dump, write_json, write_text
from service.inspect.formats import dump
from service.inspect.source import open_source
from service.metadata.batches import encode_batch
from service.metadata.frames import Frame, UnknownRecord, newest
from service.metadata.raft.durable_offset import encode_durable_offset
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.snapshots import write_snapshot
from service.metadata.raft.state import QuorumState, encode_state
from service.metadata.records import (
    ConfigRecord,
    ErasedRecord,
    RemoteLogRecord,
    RemoveTombstoneRecord,
    RewriteRecord,
    TombstoneRecord,
    TopicRecord,
)
from service.metadata.snapshot_codec import encode_snapshot as encode_image_snapshot
from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.remote.format import manifest_codec as codec
from service.remote.format.block_table import BatchFacts
from service.remote.format.manifest import Manifest, ManifestLimits, SegmentEntry
from service.remote.format.segment_object import PlannedObject, SegmentIdentity, plan_object
from tests.support.block_tables import build_block_table
from tests.support.built_batches import build_batch

TOPIC_ID = UUID("6f8a1c3e-0000-4000-8000-000000000001")
BASE = 100
NAME = f"{BASE:020d}"


def batches() -> list[bytes]:
    """Three batches of two records from offset 100, the second one compressed."""
    made = []
    for number, compression in enumerate((CompressionType.NONE, CompressionType.ZSTD, CompressionType.NONE)):
        builder = BatchBuilder(
            BASE + 2 * number, compression, 3, producer_id=7, producer_epoch=0, base_sequence=2 * number
        )
        builder.add(1000 + number, b"key", b"value", [("h", b"x")])
        builder.add(1001 + number, None, b"\xff\xfe")
        made.append(bytes(builder.build()))
    return made


def segment_object() -> PlannedObject:
    parts = batches()
    facts, position = [], 0
    for number, data in enumerate(parts):
        first = BASE + 2 * number
        facts.append(
            (BatchFacts(position, len(data), first, first + 1, 1000 + number, 1001 + number, 2), data)
        )
        position += len(data)
    return plan_object(
        SegmentIdentity("cluster", TOPIC_ID, "flights", 2, BASE, BASE + 5, 3, UUID(int=9)),
        log=lambda: parts,
        log_length=position,
        blocks=build_block_table(facts, target_bytes=100),
        offset_index=b"",
        time_index=b"",
        leader_epochs=((3, 100),),
        transactional_batch_count=0,
        max_timestamp_offset=105,
    )


def manifest(segments: int, limits: ManifestLimits | None = None) -> tuple[Manifest, list[tuple[str, bytes]]]:
    """A manifest of segments of ten offsets each, and its pages as objects."""
    entries = []
    for number in range(segments):
        base, last = 10 * number, 10 * number + 9
        uuid = UUID(int=number)
        key = f"data/{TOPIC_ID}/2/{base:020d}-{last:020d}-{3:010d}-{uuid}.seg"
        entries.append(SegmentEntry(base, last, 2000, 1000, 55, last, ((3, 0),), key, 1500, 12))
    change = Manifest("cluster", TOPIC_ID, "flights", 2).append(
        entries,
        leader_epoch=3,
        new_uuid=uuid4,
        encode_page=codec.encode_page,
        limits=limits or ManifestLimits(),
    )
    return change.manifest, [(ref.key, data) for _, ref, data in change.pages]


def snapshot_file(root: Path, snapshot: SnapshotId) -> int:
    """A snapshot of one topic; returns its size."""
    batches = encode_image_snapshot([TestMetadata.TOPIC], epoch=snapshot.epoch, last_timestamp_ms=5, now_ms=6)
    return write_snapshot(SystemDisk(), root, snapshot, batches)


def put(root: Path, name: str, data: bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def shown(path: Path, **options: bool) -> dict[str, Any]:
    """The JSON of a dump, parsed."""
    out = io.StringIO()
    write_json(dump(open_source(str(path)), **options), out)
    document: dict[str, Any] = json.loads(out.getvalue())
    return document


def text_of(path: Path) -> str:
    out = io.StringIO()
    write_text(dump(open_source(str(path))), out)
    return out.getvalue()


class TestSegmentFiles:
    def test_a_log_shows_its_batches(self, tmp_path: Path) -> None:
        path = put(tmp_path, f"flights-2/{NAME}.log", b"".join(batches()))
        document = shown(path)
        assert (document["kind"], document["base_offset"]) == ("log", 100)
        rows = document["batches"]
        assert [(r["base_offset"], r["last_offset"], r["codec"], r["producer_id"]) for r in rows] == [
            (100, 101, "none", 7), (102, 103, "zstd", 7), (104, 105, "none", 7),
        ]  # fmt: skip
        assert "base_offset: 102 last_offset: 103 count: 2" in text_of(path)

    def test_records_are_shown_when_asked_for(self, tmp_path: Path) -> None:
        path = put(tmp_path, f"{NAME}.log", b"".join(batches()))
        records = shown(path, records=True)["batches"][1]["records"]
        assert records[0] == {
            "offset": 102,
            "timestamp": 1001,
            "key": "key",
            "value": "value",
            "headers": [["h", "x"]],
        }
        assert records[1]["value"] == {"hex": "fffe"}

    def test_a_torn_log_shows_what_is_whole_and_then_the_error(self, tmp_path: Path) -> None:
        path = put(tmp_path, f"{NAME}.log", b"".join(batches())[:-1])
        out = io.StringIO()
        with pytest.raises(CorruptionError):
            write_json(dump(open_source(str(path))), out)
        document = json.loads(out.getvalue())
        assert len(document["batches"]) == 2
        assert "cut at" in document["error"]

    def test_a_wrong_checksum_is_an_error(self, tmp_path: Path) -> None:
        data = bytearray(b"".join(batches()))
        data[-1] ^= 1
        with pytest.raises(CorruptionError, match="checksum"):
            shown(put(tmp_path, f"{NAME}.log", bytes(data)))

    def test_a_log_waiting_to_be_deleted_is_still_a_log(self, tmp_path: Path) -> None:
        assert shown(put(tmp_path, f"{NAME}.log.deleted", batches()[0]))["kind"] == "log"

    def test_indexes_show_absolute_offsets(self, tmp_path: Path) -> None:
        offsets = OffsetIndex(_created(tmp_path / f"{NAME}.index"), BASE, 4096)
        offsets.append(101, 0)
        offsets.append(105, 160)
        times = TimeIndex(_created(tmp_path / f"{NAME}.timeindex"), BASE, 4096)
        times.maybe_append(1003, 105)
        assert shown(tmp_path / f"{NAME}.index")["entries"] == [
            {"offset": 101, "position": 0}, {"offset": 105, "position": 160},
        ]  # fmt: skip
        assert shown(tmp_path / f"{NAME}.timeindex")["entries"] == [{"timestamp": 1003, "offset": 105}]

    def test_an_index_preallocated_by_kafka_ends_where_its_entries_do(self, tmp_path: Path) -> None:
        path = put(tmp_path, f"{NAME}.index", (1).to_bytes(4, "big") + (9).to_bytes(4, "big") + bytes(80))
        assert shown(path)["entries"] == [{"offset": 101, "position": 9}]

    @pytest.mark.parametrize("data", [b"\0" * 7, b"\0\0\0\2\0\0\0\1" * 2])
    def test_an_index_that_cannot_be_is_an_error(self, tmp_path: Path, data: bytes) -> None:
        with pytest.raises(CorruptionError, match=r"not whole entries|does not ascend"):
            shown(put(tmp_path, f"{NAME}.index", data))

    def test_producers_of_a_snapshot(self, tmp_path: Path) -> None:
        document = shown(put(tmp_path, f"{NAME}.snapshot", encode_snapshot(ProducerStates(86_400_000))))
        assert (document["kind"], document["offset"], document["producers"]) == ("producer snapshot", 100, [])

    def test_a_name_without_an_offset_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(CorruptionError, match="20 digits"):
            shown(put(tmp_path, "x.log", b""))


class TestSmallFiles:
    def test_checkpoints(self, tmp_path: Path) -> None:
        write_checkpoint(SystemDisk(), tmp_path / "leader-epoch-checkpoint", ["0 0", "3 100"])
        assert shown(tmp_path / "leader-epoch-checkpoint")["epochs"][1] == {"epoch": 3, "start_offset": 100}
        write_checkpoint(SystemDisk(), tmp_path / "recovery-point-offset-checkpoint", ["my topic 2 17"])
        assert shown(tmp_path / "recovery-point-offset-checkpoint")["partitions"] == [
            {"topic": "my topic", "partition": 2, "offset": 17}
        ]

    @pytest.mark.parametrize("line", ["x", "t 1", "t x 1", "t 1 -1"])
    def test_a_checkpoint_line_that_cannot_be_is_an_error(self, tmp_path: Path, line: str) -> None:
        write_checkpoint(SystemDisk(), tmp_path / "log-start-offset-checkpoint", [line])
        with pytest.raises(CorruptionError, match="expected topic, partition and offset"):
            shown(tmp_path / "log-start-offset-checkpoint")

    def test_metadata_files_of_a_directory_are_dumped(self, tmp_path: Path) -> None:
        meta = put(tmp_path, "meta.properties", b"version=1\ncluster.id=abc\nnode.id=1\n")
        assert shown(meta)["cluster.id"] == "abc"
        partition = put(tmp_path, "partition.metadata", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
        assert shown(partition)["topic_id"] == "AAAAAAAAAAAAAAAAAAAAAQ"
        clean = put(tmp_path, ".kafka_cleanshutdown", b'{"version":0,"brokerEpoch":5}')
        assert shown(clean)["brokerEpoch"] == 5


class TestMetadata:
    TOPIC = newest(TopicRecord(name="flights", topic_id=TOPIC_ID))
    REMOTE = newest(
        RemoteLogRecord(topic_id=TOPIC_ID, partition_id=0, version=1, manifest_key="k", leader_epoch=0,
                        start_offset=0, end_offset=9, segments=1, size_bytes=5)
    )  # fmt: skip

    def test_the_log_shows_records_by_name(self, tmp_path: Path) -> None:
        frames = [self.TOPIC, self.REMOTE, Frame(UnknownRecord(999, b"??"), 4)]
        data = encode_batch(frames, base_offset=100, epoch=2, timestamp_ms=55)
        path = put(tmp_path, f"__cluster_metadata-0/{NAME}.log", bytes(data))
        rows = shown(path)["records"]
        assert [(row["offset"], row["type"]) for row in rows] == [
            (100, "TopicRecord"), (101, "RemoteLogRecord"), (102, "unknown type 999"),
        ]  # fmt: skip
        assert rows[0]["data"] == {"name": "flights", "topic_id": str(TOPIC_ID)}
        assert "type: TopicRecord" in text_of(path)

    def test_the_log_shows_rewrites_and_erasures_whole(self, tmp_path: Path) -> None:
        rewrite = RewriteRecord(topic_id=TOPIC_ID, partition_id=2, rewrite_id=UUID(int=3), base_offset=4,
                                last_offset=5, kind=1, leader_epoch=6, started_ms=7)  # fmt: skip
        erased = ErasedRecord(erasure_id=UUID(int=8), broker_id=-1, topic_id=TOPIC_ID, partitions=(0, 9))
        data = encode_batch([newest(rewrite), newest(erased)], base_offset=100, epoch=2, timestamp_ms=55)
        path = put(tmp_path, f"__cluster_metadata-0/{NAME}.log", bytes(data))
        rows = shown(path)["records"]
        assert [(row["type"], row["data"]) for row in rows] == [
            (
                "RewriteRecord",
                {
                    "topic_id": str(TOPIC_ID), "partition_id": 2, "rewrite_id": str(UUID(int=3)),
                    "base_offset": 4, "last_offset": 5, "kind": 1, "leader_epoch": 6, "started_ms": 7,
                },
            ),
            (
                "ErasedRecord",
                {
                    "erasure_id": str(UUID(int=8)), "broker_id": -1, "topic_id": str(TOPIC_ID),
                    "partitions": [0, 9],
                },
            ),
        ]  # fmt: skip

    def test_a_snapshot_from_header_to_footer(self, tmp_path: Path) -> None:
        snapshot = SnapshotId(64, 3)
        snapshot_file(tmp_path, snapshot)
        document = shown(tmp_path / snapshot.file_name)
        assert (document["end_offset"], document["epoch"]) == (64, 3)
        assert [row["type"] for row in document["records"]] == [
            "SNAPSHOT_HEADER",
            "TopicRecord",
            "SNAPSHOT_FOOTER",
        ]

    def test_a_snapshot_without_its_footer_is_an_error(self, tmp_path: Path) -> None:
        snapshot = SnapshotId(64, 3)
        size = snapshot_file(tmp_path, snapshot)
        path = tmp_path / snapshot.file_name
        data = path.read_bytes()
        footer = 61 + len(encode_batch([self.TOPIC], base_offset=1, epoch=3, timestamp_ms=6)) - 61
        assert footer < size
        header_size = int.from_bytes(data[8:12], "big") + 12
        path.write_bytes(data[: header_size + footer])
        with pytest.raises(CorruptionError, match="no footer"):
            shown(path)

    def test_the_quorum_state(self, tmp_path: Path) -> None:
        path = put(tmp_path, "quorum-state", encode_state(QuorumState(4, 1, 1, (1,))))
        assert shown(path) == {
            "kind": "quorum state",
            "epoch": 4,
            "leader_id": 1,
            "voted_id": 1,
            "voters": [1],
        }


class TestBucket:
    def test_a_segment_object_has_its_log_length_at_the_top(self, tmp_path: Path) -> None:
        planned = segment_object()
        path = put(tmp_path, planned.key, b"".join(planned.parts()))
        document = shown(path)
        assert document["log_length"] == sum(map(len, batches()))
        assert (document["topic"], document["base_offset"], document["record_count"]) == ("flights", 100, 6)
        assert [(b["first_offset"], b["last_offset"]) for b in document["blocks"]] == [
            (100, 101), (102, 103), (104, 105),
        ]  # fmt: skip
        log = put(tmp_path, f"{NAME}.log", path.read_bytes()[: document["log_length"]])
        assert len(shown(log)["batches"]) == 3

    def test_a_segment_object_is_known_by_its_end_whatever_its_name(self, tmp_path: Path) -> None:
        planned = segment_object()
        assert shown(put(tmp_path, "downloaded", b"".join(planned.parts())))["kind"] == "segment object"

    def test_a_manifest_and_its_pages(self, tmp_path: Path) -> None:
        made, pages = manifest(7, ManifestLimits(entries=3))
        document = shown(put(tmp_path, made.key(uuid4()), codec.encode_manifest(made)))
        assert (document["kind"], document["segment_count"], document["end_offset"]) == ("manifest", 7, 70)
        assert [len(document["pages"]), len(document["segments"])] == [2, 1]
        for key, data in pages:
            page = shown(put(tmp_path, key, data))
            assert (page["kind"], page["level"], len(page["children"])) == ("manifest page", 0, 3)

    def test_a_page_of_pages_and_one_that_was_downloaded(self, tmp_path: Path) -> None:
        _, pages = manifest(10, ManifestLimits(entries=1, page_refs=2))
        upper = [(key, data) for key, data in pages if "-01-" in key]
        for number, (_, data) in enumerate(upper):
            page = shown(put(tmp_path, f"{number}.json.gz", data))
            assert (page["kind"], page["level"], len(page["children"])) == ("manifest page", 1, 2)
        assert upper

    def test_head_cluster_and_topics(self, tmp_path: Path) -> None:
        made, _ = manifest(2)
        data = codec.encode_manifest(made)
        head = codec.head_of(made, made.key(uuid4()), data)
        assert shown(put(tmp_path, "HEAD", codec.encode_head(head)))["version"] == 1
        assert (
            shown(put(tmp_path, "cluster.json", codec.encode_cluster(codec.ClusterFile("abc"))))["cluster_id"]
            == "abc"
        )
        topics = codec.encode_topics(
            "abc", 5, [codec.TopicsFileRow("flights", TOPIC_ID, 4, {"retention.ms": "-1"})]
        )
        assert shown(put(tmp_path, "topics.json", topics))["topics"][0]["configs"] == {"retention.ms": "-1"}


def test_a_file_of_no_known_format_is_refused_with_what_is_known(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"notes\.txt: not a format that Firn writes; known are \.log"):
        shown(put(tmp_path, "notes.txt", b"hello"))
    with pytest.raises(ConfigError, match="is a directory"):
        open_source(str(tmp_path))


def _created(path: Path) -> FileHandle:
    handle = FileHandle(path, 0, FileCache(SystemDisk()))
    handle.create()
    return handle


def every_file(root: Path) -> list[Path]:
    """One sound file of every binary or structured format."""
    made, pages = manifest(7, ManifestLimits(entries=3))
    data = codec.encode_manifest(made)
    planned = segment_object()
    snapshot_file(root, SnapshotId(64, 3))
    metadata = encode_batch(
        [TestMetadata.TOPIC, TestMetadata.REMOTE], base_offset=100, epoch=2, timestamp_ms=5
    )
    return [
        root / SnapshotId(64, 3).file_name,
        put(root, f"flights-2/{NAME}.log", b"".join(batches())),
        put(root, f"__cluster_metadata-0/{NAME}.log", bytes(metadata)),
        put(root, f"{NAME}.snapshot", encode_snapshot(ProducerStates(86_400_000))),
        put(root, f"{NAME}.index", b"\0\0\0\1\0\0\0\0"),
        put(root, "quorum-state", encode_state(QuorumState(4, 1, 1, (1,)))),
        put(root, "meta.properties", b"version=1\ncluster.id=abc\n"),
        put(root, "leader-epoch-checkpoint", b"0\n1\n0 0\n"),
        put(root, "recovery-point-offset-checkpoint", b"0\n1\nt 0 5\n"),
        put(root, planned.key, b"".join(planned.parts())),
        put(root, made.key(uuid4()), data),
        put(root, pages[0][0], pages[0][1]),
        put(root, "HEAD", codec.encode_head(codec.head_of(made, made.key(uuid4()), data))),
        put(root, "cluster.json", codec.encode_cluster(codec.ClusterFile("abc"))),
        put(root, "topics.json", codec.encode_topics("abc", 5, [codec.TopicsFileRow("a", TOPIC_ID, 4, {})])),
    ]


@pytest.fixture(scope="module")
def sound_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return every_file(tmp_path_factory.mktemp("sound"))


def consume(made: Dump, write: Callable[[Dump, io.StringIO], None]) -> str:
    out = io.StringIO()
    write(made, out)
    return out.getvalue()


@settings(max_examples=300, deadline=None)
@given(choice=st.integers(0, 14), seed=st.integers(0, 2**32), cut=st.booleans())
def test_damage_is_an_error_in_words_and_never_a_crash(
    sound_files: list[Path], choice: int, seed: int, cut: bool
) -> None:
    sound = sound_files[choice]
    source = random.Random(seed)
    data = bytearray(sound.read_bytes())
    for _ in range(source.randint(1, 4)):
        data[source.randrange(len(data))] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
    if cut:
        del data[source.randrange(len(data)) :]
    damaged = sound.parent / "damaged" / sound.parent.name / sound.name
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_bytes(data)
    for write in (write_json, write_text):
        with contextlib.suppress(FirnError):
            consume(dump(open_source(str(damaged)), records=True), write)


def test_the_command_prints_json_and_says_errors_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = put(tmp_path, f"{NAME}.log", bytes(build_batch([(1, b"k", b"v")], base_offset=BASE)))
    assert main(["dump", "--json", good.as_uri()]) == 0
    assert json.loads(capsys.readouterr().out)["batches"][0]["count"] == 1
    bad = put(tmp_path, f"{BASE + 1:020d}.log", good.read_bytes()[:50])
    assert main(["dump", str(bad)]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("firn dump: ")
    assert len(captured.err.splitlines()) == 1
    assert main(["dump", str(tmp_path / "absent.log")]) == 1
    assert "No such file" in capsys.readouterr().err


def test_tombstones_are_shown_by_name(tmp_path: Path) -> None:
    records = (
        TombstoneRecord(topic_id=TOPIC_ID, name="gone", partitions=3, deleted_ms=5),
        RemoveTombstoneRecord(topic_id=TOPIC_ID),
    )
    data = encode_batch(map(newest, records), base_offset=0, epoch=1, timestamp_ms=9)
    rows = shown(put(tmp_path, f"__cluster_metadata-0/{0:020d}.log", bytes(data)))["records"]
    assert [row["type"] for row in rows] == ["TombstoneRecord", "RemoveTombstoneRecord"]
    assert (rows[0]["data"]["name"], rows[0]["data"]["partitions"]) == ("gone", 3)


def test_passwords_in_settings_of_brokers_are_not_shown(tmp_path: Path) -> None:
    records = [
        ConfigRecord(resource_type=kind, resource_name="1", name=name, value=value)
        for kind, name, value in (
            (4, "listener.name.a.ssl.keystore.password", "geheim"),
            (4, "some.plugin.token", "geheim"),
            (4, "ssl.key.password", None),
            (4, "log.retention.ms", "1000"),
            (2, "retention.ms", "1000"),
        )
    ]
    data = encode_batch(map(newest, records), base_offset=0, epoch=1, timestamp_ms=9)
    path = put(tmp_path, f"__cluster_metadata-0/{0:020d}.log", bytes(data))
    assert "geheim" not in json.dumps(shown(path))
    values = [row["data"]["value"] for row in shown(path)["records"]]
    assert values == ["[hidden]", "[hidden]", None, "1000", "1000"]


def test_the_durable_offset_of_the_metadata_log(tmp_path: Path) -> None:
    assert shown(put(tmp_path, "durable-offset", encode_durable_offset(17)))["offset"] == 17
    with pytest.raises(CorruptionError, match="checksum"):
        shown(put(tmp_path, "durable-offset", encode_durable_offset(17)[:-2] + b"0\n"))
