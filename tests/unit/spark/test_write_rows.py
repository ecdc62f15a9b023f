"""Arrow batches as records."""

from __future__ import annotations

from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: make spark")

from service.spark.write import rows  # noqa: E402
from service.spark.write.rows import RowError, records_of  # noqa: E402

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


def batch(**columns: Any) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def test_every_column_becomes_its_part_of_the_record() -> None:
    found = records_of(
        batch(
            key=pa.array(["ü", None, ""]),
            value=pa.array([b"\xff", b"", None]),
            topic=["a", "b", "a"],
            partition=pa.array([3, None, 0], pa.int32()),
            timestamp=pa.array([1_700_000_000_123_999, None, -1000], pa.timestamp("us", "UTC")),
            headers=pa.array([[{"key": "k", "value": None}, {"key": "k", "value": b"2"}], None, []], HEADERS),
            offset=[1, 2, 3],
        ),
        None,
    )
    assert list(found) == [
        ("a", 3, "ü".encode(), b"\xff", 1_700_000_000_123, [("k", None), ("k", b"2")]),
        ("b", -1, None, b"", 0, None),
        ("a", 0, b"", None, 0, None),
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_values_come_in_every_width(kind: Any) -> None:
    found = records_of(batch(value=pa.array(["x", None], kind)), "t")
    assert list(found) == [("t", -1, None, b"x", 0, None), ("t", -1, None, None, 0, None)]


def test_seconds_are_times_and_what_is_given_wins_over_columns() -> None:
    found = records_of(
        batch(value=["x"], timestamp=[1.5], topic=["other"], partition=pa.array([-7], pa.int32())), "t", 4
    )
    assert list(found) == [("t", 4, None, b"x", 1500, None)]


def test_a_large_batch_is_taken_in_slices_with_nothing_lost_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "SLICE_BYTES", 500)
    sizes: list[int] = []
    whole = rows._slice_of

    def watched(one: Any, *more: Any) -> Any:
        sizes.append(one.num_rows)
        return whole(one, *more)

    monkeypatch.setattr(rows, "_slice_of", watched)
    headers = pa.array([[{"key": str(i), "value": b"%d" % i}] * (i % 3) for i in range(100)], HEADERS)
    found = list(records_of(batch(value=[b"%d" % i * 20 for i in range(100)], headers=headers), "t"))
    assert [one[3] for one in found] == [b"%d" % i * 20 for i in range(100)]
    assert [one[5] for one in found] == [[(str(i), b"%d" % i)] * (i % 3) or None for i in range(100)]
    assert max(sizes) < 20


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"topic": pa.array(["t", None])}, "no topic"),
        ({"topic": ["t", "t"], "partition": pa.array([0, -1], pa.int32())}, "for partition -1"),
        ({"topic": ["t", "t"], "timestamp": [0.0, float("nan")]}, "timestamp nan"),
        ({"topic": ["t", "t"], "headers": pa.array([[None], None], HEADERS)}, "header that is null"),
        (
            {"topic": ["t", "t"], "headers": pa.array([None, [{"key": None, "value": b""}]], HEADERS)},
            "whose key is null",
        ),
    ],
)
def test_a_row_that_cannot_be_a_record_is_refused(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(RowError, match=said):
        list(records_of(batch(value=["a", "b"], **columns), None))
