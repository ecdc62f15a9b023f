"""Partitions that a request names are noted by topic, as numbers: nothing is made, and freed, for each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from service.base.steps import Steps
from service.serving.handlers.describe_log_dirs import requested_partitions
from service.serving.handlers.list_offsets import duplicate_partitions
from service.wire.api import ApiKey, request_module
from service.wire.log_dirs import DescribableLogDirTopic

MANY = 10_000


def list_offsets(*topics: tuple[str, list[int]]) -> Any:
    module = request_module(ApiKey.LIST_OFFSETS)

    def one(partition: int) -> Any:
        return module.ListOffsetsPartition(partition_index=partition, current_leader_epoch=-1, timestamp=-1)

    return module.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=0,
        timeout=timedelta(0),
        topics=tuple(module.ListOffsetsTopic(name=name, partitions=tuple(map(one, p))) for name, p in topics),
    )


def log_dirs(*topics: tuple[str, list[int]]) -> Any:
    return tuple(DescribableLogDirTopic(topic=name, partitions=tuple(p)) for name, p in topics)


def result_of(steps: Steps[Any]) -> tuple[Any, int]:
    """Return the result of the steps, and their peak of memory blocks."""
    before, most = sys.getallocatedblocks(), 0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            return e.value, most
        most = max(most, sys.getallocatedblocks() - before)


def test_partitions_named_twice_are_found_also_where_their_topic_is_named_twice() -> None:
    found, _ = result_of(duplicate_partitions(list_offsets(("a", [1, 2, 1]), ("b", [1]), ("a", [2, 3]))))
    assert found == {"a": {1, 2}, "b": set()}


def test_partitions_asked_for_are_those_of_all_topics_of_the_name() -> None:
    found, _ = result_of(requested_partitions(log_dirs(("a", [1, 2]), ("b", [1]), ("a", [3]))))
    assert found == {"a": {1, 2, 3}, "b": {1}}


@pytest.mark.parametrize(
    ("note", "request_of"),
    [(duplicate_partitions, list_offsets), (requested_partitions, log_dirs)],
    ids=["ListOffsets", "DescribeLogDirs"],
)
def test_no_memory_is_taken_for_each_partition(
    note: Callable[[Any], Steps[Any]], request_of: Callable[..., Any]
) -> None:
    _, most = result_of(note(request_of(("t", list(range(MANY))))))
    assert most < 100
