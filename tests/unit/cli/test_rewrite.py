"""`firn rewrite` on buckets with a damaged chain."""

from __future__ import annotations

import argparse
import json
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError
from service.base.types import TopicIdPartition
from service.cli import rewrite
from service.client.admin_models import PartitionInfo, TopicInfo
from service.remote.stores.errors import AccountRefused, StoreRefused
from service.tiering.rewriting.merge_plan import MergeLimits
from service.tiering.rewriting.outside_worker import PlannedMerges

ARGS = argparse.Namespace(json=True, execute=False)


class Worker:
    """Plans of chains, of which that of partition 0 fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def plan_merges(self, tip: TopicIdPartition, limits: MergeLimits) -> PlannedMerges:
        if tip.partition == 0:
            raise self.error
        return PlannedMerges((), 5)


def topic(name: str) -> TopicInfo:
    partitions = tuple(PartitionInfo(number, 1, (1,), (1,)) for number in range(3))
    return TopicInfo(name, UUID(int=7), partitions)


def run(error: Exception) -> int:
    topics = [topic("gone"), topic("events")]
    worker = cast("Any", Worker(error))
    return rewrite._merge(ARGS, cast("Any", None), worker, topics, limits_of)


def limits_of(topic: str) -> MergeLimits:
    if topic == "gone":
        raise RequestError(ErrorCode.unknown_topic_or_partition, "there is no topic gone")
    return MergeLimits()


@pytest.mark.parametrize("error", [CorruptionError("HEAD: damaged"), StoreRefused("HEAD: 403")], ids=str)
def test_a_partition_that_cannot_be_planned_is_named_and_stops_no_other(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(error) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["failed"] == [
        {"topic": "gone", "why": "there is no topic gone"},
        {"topic": "events", "partition": 0, "why": str(error)},
    ]
    assert said["objects"] == 10


def test_runs_span_a_part_of_their_topics_retention() -> None:
    class Settings:
        def __enter__(self) -> Settings:
            return self

        def __exit__(self, *_: object) -> None: ...

        def topic_configs(self, names: list[str], keys: tuple[str, ...]) -> dict[str, dict[str, str]]:
            values = {"retention.ms": "80000", "retention.bytes": "-1"}
            return {name: {key: values[key] for key in keys} for name in names}

    limits = rewrite._within(cast("Any", Settings), MergeLimits(), "events")
    assert limits == MergeLimits(span_ms=10_000)


def test_a_store_that_refuses_all_ends_the_command() -> None:
    with pytest.raises(AccountRefused):
        run(AccountRefused("no such key id"))
