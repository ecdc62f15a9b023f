"""`firn dump` of what Apache Kafka wrote of transactions: index, log of ids, markers, offsets."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from service.inspect.dump import write_json
from service.inspect.formats import dump
from service.inspect.source import open_source
from service.records.decode import iter_records
from service.records.txn_rows import decode_rows, encode_row
from service.transactions.records import decode_key, decode_value, encode_key, encode_value

GOLDEN = Path(__file__).parent
DATA = GOLDEN / "kafka-data"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
LOG = "00000000000000000000.log"


def dumped(path: Path) -> dict[str, Any]:
    out = io.StringIO()
    write_json(dump(open_source(str(path)), records=True), out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def test_the_rows_of_a_transaction_index() -> None:
    found = dumped(DATA / "flights-0" / "00000000000000000000.txnindex")
    assert (found["kind"], found["base_offset"]) == ("transaction index", 0)
    assert found["aborted"] == [
        {"producer_id": 0, "first_offset": 3, "last_offset": 4, "last_stable_offset": 5},
        {"producer_id": 2, "first_offset": 8, "last_offset": 9, "last_stable_offset": 10},
        {"producer_id": 2, "first_offset": 13, "last_offset": 14, "last_stable_offset": 10},
    ]


def test_the_markers_of_a_log() -> None:
    found = dumped(DATA / "flights-0" / LOG)
    markers = [(one["producer_id"], *one["markers"]) for one in found["batches"] if one["is_control"]]
    assert [(producer, one["offset"], one["type"]) for producer, one in markers] == [
        (0, 2, "COMMIT"), (0, 4, "ABORT"), (2, 7, "COMMIT"), (2, 9, "ABORT"), (2, 12, "COMMIT"),
        (2, 14, "ABORT"),
    ]  # fmt: skip
    assert {one["coordinator_epoch"] for _, one in markers} == {0}


def test_the_newest_state_of_each_id_is_what_kafka_answered() -> None:
    newest = {}
    for row in dumped(DATA / "__transaction_state-0" / LOG)["records"]:
        newest[row["transactional_id"]] = row
    assert {row["version"] for row in newest.values()} == {0, 1}
    for name, told in EXPECTED["ids"].items():
        row = newest.pop(name)
        assert (row["state"], row["producer_id"]) == (told["state"], told["producer_id"])
        assert (row["producer_epoch"], row["timeout_ms"]) == (told["producer_epoch"], told["timeout_ms"])
        assert row["start_ms"] == (-1 if told["start_ms"] is None else told["start_ms"])
        assert row["partitions"] == [f"{topic}-{number}" for topic, number in told["partitions"]]
    assert not newest


def test_pending_offsets_and_what_became_of_them() -> None:
    rows = dumped(DATA / "__consumer_offsets-0" / LOG)["records"]
    assert [(row["type"], row.get("topic"), row["producer_id"]) for row in rows] == [
        ("OffsetCommit", "committed", 0), ("COMMIT", None, 0),
        ("OffsetCommit", "committed", 2), ("COMMIT", None, 2),
        ("OffsetCommit", "aborted", 2), ("ABORT", None, 2),
        ("OffsetCommit", "pending", 4),
    ]  # fmt: skip


@pytest.mark.parametrize("path", sorted(DATA.glob("*/*.txnindex")), ids=lambda path: f"{path.parent.name}")
def test_our_rows_are_kafkas_bytes(path: Path) -> None:
    data = path.read_bytes()
    assert b"".join(map(encode_row, decode_rows(data))) == data


def test_our_states_are_kafkas_bytes() -> None:
    data = (DATA / "__transaction_state-0" / LOG).read_bytes()
    records = list(iter_records(data))
    assert len(records) == 42
    for record in records:
        assert record.key is not None
        assert record.value is not None
        name, state = decode_key(record.key), decode_value(record.value)
        assert isinstance(name, str)
        assert not isinstance(state, int)
        assert encode_key(name) == record.key
        ours = encode_value(state, record.value[1])
        if len(state.partitions) < 2:
            assert ours == record.value
        else:  # Kafka's sets of topics have no order
            assert (sorted(ours), decode_value(ours)) == (sorted(record.value), state)
