"""Records of the transaction log: bytes that are written out, and bytes that are not what they must be."""

from __future__ import annotations

import pytest

from service.base.errors import CorruptionError
from service.transactions.metadata import TransactionMetadata
from service.transactions.records import decode_key, decode_value, encode_key, encode_value
from service.transactions.states import TransactionState

ONGOING = TransactionMetadata(
    7, 3, 60_000, TransactionState.ONGOING, frozenset({("a", 1), ("a", 0), ("bc", 2)}),
    start_ms=5, updated_ms=6, previous_producer_id=7, next_producer_id=9, client_version=2,
)  # fmt: skip
HEAD = "000000000000000700030000ea60"
PARTITIONS = "00000002000161000000020000000000000001000262630000000100000002"
COMPACT = "03026103000000000000000100036263020000000200"
TIMES = "00000000000000060000000000000005"
TAGS = "03000800000000000000070108000000000000000902020002"


def test_an_ongoing_transaction_has_these_bytes() -> None:
    assert encode_key("t").hex() == "0000000174"
    assert encode_value(ONGOING, 0).hex() == f"0000{HEAD}01{PARTITIONS}{TIMES}"
    assert encode_value(ONGOING, 1).hex() == f"0001{HEAD}01{COMPACT}{TIMES}{TAGS}"


def test_an_empty_one_has_no_array_of_partitions_and_a_complete_one_an_empty_array() -> None:
    empty = TransactionMetadata(7, 3, 60_000, start_ms=5, updated_ms=6)
    assert encode_value(empty, 0).hex() == f"0000{HEAD}00ffffffff{TIMES}"
    assert encode_value(empty, 1).hex() == f"0001{HEAD}0000{TIMES}00"
    complete = empty._replace(state=TransactionState.COMPLETE_COMMIT)
    assert encode_value(complete, 0).hex() == f"0000{HEAD}0400000000{TIMES}"
    assert encode_value(complete, 1).hex() == f"0001{HEAD}0401{TIMES}00"


@pytest.mark.parametrize("state", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("version", [0, 1])
def test_a_value_is_read_as_it_was_written(state: int, version: int) -> None:
    partitions = ONGOING.partitions if state in (1, 2, 3) else frozenset()
    there = ONGOING._replace(state=TransactionState(state), partitions=partitions)
    if version == 0:
        there = there._replace(previous_producer_id=-1, next_producer_id=-1, client_version=0)
    assert decode_value(encode_value(there, version)) == there
    assert decode_value(encode_value(there, version) + b"more") == there


def test_tags_that_are_not_known_are_skipped() -> None:
    value = bytes.fromhex(f"0001{HEAD}0000{TIMES}0300080000000000000007030200040901ff")
    there = decode_value(value)
    assert isinstance(there, TransactionMetadata)
    assert there.previous_producer_id == 7


def test_versions_and_types_that_are_not_known_are_told() -> None:
    assert decode_value(b"\x00\x02" + bytes(40)) == 2
    assert decode_value(b"\xff\xff" + bytes(40)) == -1
    assert decode_key(b"\x00\x07whatever") == 7


@pytest.mark.parametrize(
    "value",
    [
        b"",
        bytes.fromhex(f"0001{HEAD}0800" + TIMES + "00"),
        bytes.fromhex(f"0001{HEAD}0100" + TIMES + "00"),
        bytes.fromhex(f"0000{HEAD}017fffffff" + TIMES),
        bytes.fromhex(f"0001{HEAD}0000{TIMES}01000400000007"),
        *(encode_value(ONGOING, 1)[:size] for size in range(1, 79, 7)),
        *(encode_value(ONGOING, 0)[:size] for size in range(1, 60, 7)),
    ],
)
def test_a_value_that_does_not_parse_is_corrupt(value: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_value(value)


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x00\x00\x00\x05abc"])
def test_a_key_that_does_not_parse_is_corrupt(key: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_key(key)
