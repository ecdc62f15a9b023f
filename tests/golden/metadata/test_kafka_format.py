"""A directory formatted by Apache Kafka 4.3.1: read as it is meant, and written again byte for byte.

    kafka-storage format -t 4L6g3nShT-eMCtK--X86sw -c … --initial-controllers CONTROLLERS

by node 1, whose controller listener is called CONTROLLER; the three files of its metadata directory.
"""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest

from service.base.disk import SystemDisk
from service.hot.log_dir import MetaProperties, decode_uuid, read_meta
from service.inspect.formats import dump
from service.inspect.source import open_source
from service.metadata.batches import decode_batches
from service.metadata.bootstrap import (
    encode_bootstrap,
    encode_first_voters,
    feature_frames,
    first_records,
    levels_of,
    parse_initial_controllers,
    read_bootstrap,
    split_supported,
)
from service.metadata.features import supported_features
from service.metadata.records import FeatureLevelRecord
from service.records.batch import iter_headers

FORMATTED = Path(__file__).parent / "kafka-4.3.1" / "formatted"
FIRST = "00000000000000000000-0000000000.checkpoint"
CONTROLLERS = (
    "1@localhost:19093:JEXY6aqzQY-32P5TStzaFg,20@127.0.0.1:19094:MvDxzVmcRsaTz33bUuRU6A,"
    "3@c.example:19095:07R5amHmR32VDA6jHkGbTA"
)
LEVELS = {
    "metadata.version": 30,
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}


def test_meta_properties_say_whose_the_directory_is() -> None:
    assert read_meta(SystemDisk(), FORMATTED) == MetaProperties(
        "4L6g3nShT-eMCtK--X86sw", 1, decode_uuid("JEXY6aqzQY-32P5TStzaFg")
    )


def test_the_bootstrap_file_is_written_again_byte_for_byte() -> None:
    frames = read_bootstrap(SystemDisk(), FORMATTED)
    assert frames is not None
    assert levels_of(frames) == LEVELS
    assert feature_frames({**LEVELS, "kraft.version": 1, "some.feature": 0}) == frames
    data = (FORMATTED / "bootstrap.checkpoint").read_bytes()
    headers = list(iter_headers(data))
    # its three batches have a time each
    again = [encode_bootstrap(frames, header.max_timestamp) for header in headers]
    ends = list(accumulate(header.size for header in headers))
    written = (one[end - header.size : end] for one, header, end in zip(again, headers, ends, strict=True))
    assert b"".join(written) == data


def test_unsupported_features_of_kafka_are_left_out() -> None:
    frames = read_bootstrap(SystemDisk(), FORMATTED)
    assert frames is not None
    taken, left = split_supported(frames, supported_features())
    assert levels_of(taken) == {one.name: one.max_level for one in supported_features()}
    assert {"share.version", "streams.version"} <= {one.name for one in left}


def test_a_new_log_begins_with_those_that_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = first_records(SystemDisk(), FORMATTED, supported_features())
    assert records is not None
    assert {type(one) for one in records} == {FeatureLevelRecord}
    assert "share.version=1" in caplog.text
    assert first_records(SystemDisk(), tmp_path, supported_features()) is None


def test_the_first_voters_are_written_again_byte_for_byte() -> None:
    data = (FORMATTED / FIRST).read_bytes()
    first, last = decode_batches(data)
    controllers = parse_initial_controllers(CONTROLLERS)
    assert [one.node_id for one in controllers] == [1, 3, 20]
    written = b"".join(encode_first_voters(controllers, "controller", first.timestamp_ms))
    ours, our_end = decode_batches(written)
    assert len(written) == len(data)
    # the header tells a time of its own
    assert [(one.control_type, one.value) for one in ours.control[1:]] == [
        (one.control_type, one.value) for one in first.control[1:]
    ]
    assert ours._replace(control=()) == first._replace(control=())
    assert our_end.control == last.control


def test_the_bootstrap_file_is_dumped() -> None:
    shown = dump(open_source(str(FORMATTED / "bootstrap.checkpoint")))
    assert (shown.kind, shown.head) == ("bootstrap metadata", {})
    ((_, rows),) = shown.tables
    assert [row["type"] for row in rows] == [
        "SNAPSHOT_HEADER",
        *["FeatureLevelRecord"] * 6,
        "SNAPSHOT_FOOTER",
    ]
