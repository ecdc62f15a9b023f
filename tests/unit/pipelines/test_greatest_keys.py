"""The greatest keys, found by parts as by one."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install -e '.[test,spark]'")

import pyarrow as pa

from service.pipelines.greatest_keys import GreatestKeys

TYPES = {
    "topic": pa.string(),
    "key": pa.binary(),
    "is_day": pa.int8(),
    "records": pa.int64(),
    "bytes": pa.int64(),
}
SCHEMA = pa.schema(list(TYPES.items()))


def counts(rng: random.Random, rows: int) -> list[dict[str, Any]]:
    """Few different counts, so that many keys are equal in them; a null key in each topic."""
    return [
        {
            "topic": topic,
            "key": None if i == 0 else i.to_bytes(2, "big"),
            "is_day": 0,
            "records": rng.randrange(4),
            "bytes": rng.randrange(3),
        }
        for topic in ("a", "b", "c")
        for i in range(rows)
    ]


def rank(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["topic"], -row["records"], -row["bytes"], row["key"] is not None, row["key"] or b"")


@pytest.mark.parametrize("top", [1, 7, 1000])
def test_tasks_hand_on_what_is_needed_for_the_greatest_of_all_ties_included(top: int) -> None:
    seed = random.randrange(1 << 32)
    print(f"SEED={seed}")
    rng = random.Random(seed)
    rows = counts(rng, 400)
    rng.shuffle(rows)
    tasks = [rows[i::3] for i in range(3)]
    handed: list[dict[str, Any]] = []
    for task in tasks:
        batches = [pa.RecordBatch.from_pylist(task[i : i + 50], SCHEMA) for i in range(0, len(task), 50)]
        found = [row for batch in GreatestKeys(top)(iter(batches)) for row in batch.to_pylist()]
        assert len(found) <= 3 * top
        handed += found
    for topic in ("a", "b", "c"):
        wanted = sorted((row for row in rows if row["topic"] == topic), key=rank)[:top]
        assert sorted((row for row in handed if row["topic"] == topic), key=rank)[:top] == wanted


def test_days_pass_and_a_task_without_rows_says_nothing() -> None:
    day = {"topic": "a", "key": None, "is_day": 1, "records": 9, "bytes": 9}
    batch = pa.RecordBatch.from_pylist([day, day], SCHEMA)
    assert [row for one in GreatestKeys(1)(iter([batch])) for row in one.to_pylist()] == [day, day]
    assert list(GreatestKeys(3)(iter([]))) == []
