"""Queries for the log directories of brokers, each asked by itself. Blocking, read-only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import FirnError
from service.client.admin import Cluster
from service.client.admin_models import Place
from service.wire.api import ApiKey, request_module

_NODE_WAIT_S: Final = 10.0


class ReplicaFiles(NamedTuple):
    """A replica in a directory: its bytes, and how many records it is behind the high watermark.

    `is_future`: it is on its way here from another directory of the broker.
    """

    place: Place
    size: int
    lag: int
    is_future: bool


class LogDirectory(NamedTuple):
    """A log directory of a broker. `state` says what is wrong, "ok" if nothing is; sizes are of its file
    system, None where they are not told."""

    broker: int
    path: str
    state: str
    total_bytes: int | None
    usable_bytes: int | None
    replicas: tuple[ReplicaFiles, ...]

    @property
    def size(self) -> int:
        return sum(one.size for one in self.replicas)


class FoundDirectories(NamedTuple):
    """Directories of the brokers that answered, and why others did not."""

    directories: tuple[LogDirectory, ...]
    problems: tuple[str, ...]


def describe_log_dirs(
    cluster: Cluster, brokers: Iterable[int] | None, topics: Iterable[str] | None
) -> FoundDirectories:
    """Return the directories of these brokers, or of all, with the replicas of these topics, or of all."""
    known = {one.node_id: one for one in cluster.describe().nodes}
    chosen = sorted(known if brokers is None else brokers)
    wanted = None if topics is None else frozenset(topics)
    found: list[LogDirectory] = []
    problems: list[str] = []
    for broker in chosen:
        if broker not in known:
            problems.append(f"broker {broker} is not there")
        elif known[broker].is_fenced:
            problems.append(f"broker {broker} is fenced: it is not asked")
        else:
            try:
                found += _directories_of(cluster, broker, wanted)
            except (FirnError, OSError) as e:
                problems.append(f"broker {broker}: {e}")
    return FoundDirectories(tuple(found), tuple(problems))


def _directories_of(cluster: Cluster, broker: int, topics: frozenset[str] | None) -> list[LogDirectory]:
    module = request_module(ApiKey.DESCRIBE_LOG_DIRS)
    with cluster.apart(broker, _NODE_WAIT_S) as client:
        answer = client.request(ApiKey.DESCRIBE_LOG_DIRS, module.DescribeLogDirsRequest(topics=None))
    return [
        LogDirectory(
            broker,
            one.log_dir,
            _state(one),
            None if one.total_bytes < 0 else one.total_bytes,
            None if one.usable_bytes < 0 else one.usable_bytes,
            tuple(
                ReplicaFiles((topic.name, p.partition_index), p.partition_size, p.offset_lag, p.is_future_key)
                for topic in one.topics
                if topics is None or topic.name in topics
                for p in topic.partitions
            ),
        )
        for one in sorted(answer.results, key=lambda one: one.log_dir)
    ]


def _state(result: Any) -> str:
    if result.error_code == ErrorCode.none:
        return str(getattr(result, "refusal", "")) or "ok"
    if result.error_code == ErrorCode.kafka_storage_error:
        return "offline"
    return ErrorCode(result.error_code).name.upper()
