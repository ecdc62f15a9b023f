"""Samples of a node's groups: their numbers, and the lag of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from service.console.ports import CoordinatedGroups
from service.console.sample import Sample
from service.groups.lag import GroupLag, LagReport

LAG_BYTES: Final = 760_000
"""Most text of lags by partition and topic, estimated: some 10,000 partitions."""
MOST_GROUP_BYTES: Final = 255
"""Longest group id that is told, as UTF-8: as of a topic's name, about."""
_PARTITION_BYTES: Final = 58
_TOPIC_BYTES: Final = 52
"""Bytes of a line beside its names, with a value of seven digits."""


def of_lag(report: LagReport) -> Iterator[Sample]:
    """Yield the samples of all groups, as far as there is room: members, then topics, then partitions.

    The partitions of a group are all there or none; whether they are does not depend on the lag.
    """
    room = LAG_BYTES
    left_out, topics, partitions = report.left_out, 0, 0
    by_topic: list[GroupLag] = []
    for one in report.groups:
        if len(one.group.encode()) > MOST_GROUP_BYTES:
            left_out += 1
            continue
        yield Sample("firn_group_members", one.members, (one.group,))
        size = sum(_TOPIC_BYTES + len(one.group) + len(topic) for topic in one.topics)
        if size > room:
            topics += len(one.topics)
            partitions += sum(map(len, one.topics.values()))
            continue
        room -= size
        by_topic.append(one)
        for topic, lags in one.topics.items():
            yield Sample("firn_group_topic_lag", sum(lags.values()), (one.group, topic))
    for one in by_topic:
        size = sum(
            (_PARTITION_BYTES + len(one.group) + len(topic)) * len(lags) for topic, lags in one.topics.items()
        )
        if size > room:
            partitions += sum(map(len, one.topics.values()))
            continue
        room -= size
        for topic, lags in one.topics.items():
            for partition, lag in lags.items():
                yield Sample("firn_group_lag", lag, (one.group, topic, str(partition)))
    yield Sample("firn_group_lag_left_out", left_out, ("groups",))
    yield Sample("firn_group_lag_left_out", topics, ("topics",))
    yield Sample("firn_group_lag_left_out", partitions, ("partitions",))
    yield Sample("firn_group_lag_left_out", report.unknown, ("unknown",))


def of_groups(groups: CoordinatedGroups, census: Mapping[tuple[str, str], int]) -> Iterator[Sample]:
    """Yield the samples of groups; `census` is the result of `CoordinatedGroups.census`."""
    for (protocol, state), count in sorted(census.items()):
        yield Sample("firn_groups", count, (protocol, state))
    counts, runtime = groups.metrics, groups.runtime_metrics
    yield Sample("firn_group_offsets", groups.offset_count())
    yield Sample("firn_group_offset_commits", counts.offset_commits)
    yield Sample("firn_group_offset_expirations", counts.offset_expirations)
    yield Sample("firn_group_offset_deletions", counts.offset_deletions)
    yield Sample("firn_group_rebalances", counts.classic_rebalances_completed, ("classic",))
    yield Sample("firn_group_rebalances", counts.consumer_rebalances, ("consumer",))
    for state, count in groups.partition_states().items():
        yield Sample("firn_group_partitions", count, (state,))
    yield Sample("firn_group_partition_load_seconds", runtime.load.snapshot())
    yield Sample("firn_group_loaded_records", runtime.loaded_records)
    yield Sample("firn_group_writes_waiting", runtime.waiting)
    yield Sample("firn_group_write_seconds", runtime.purgatory.snapshot())
    yield Sample("firn_group_write_timeouts", runtime.timeouts)
    yield Sample("firn_group_batches", runtime.batches)
    yield Sample("firn_group_batch_records", runtime.records)
    yield Sample("firn_group_batch_errors", runtime.failed_batches)
    yield Sample("firn_group_batch_linger_seconds", runtime.linger.snapshot())
    yield Sample("firn_group_batch_flush_seconds", runtime.flush.snapshot())
