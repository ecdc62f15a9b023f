"""Every metric family has a sample in the text of a node that serves, copies and meets errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.base.release import release
from service.base.steps import at_once
from service.console.health_families import of_health
from service.console.measuring import of_build
from service.console.metrics_text import render
from service.console.process import memory_limit, of_process, open_descriptors, start_time_s
from service.wire.api import ApiKey
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, commit, list_offset
from tests.support.certificates import Authority
from tests.support.processes import REPOSITORY, wait_until

OF_CLUSTERS = {"firn_replicas_lag", "firn_partition_replica_lag"}
"""What only nodes have that lead partitions of several replicas."""


def documented() -> set[str]:
    """Return the names in the first columns of docs/metrics.md's tables."""
    lines = (Path(REPOSITORY) / "docs" / "metrics.md").read_text("utf-8").splitlines()
    return {line.split("`")[1] for line in lines if line.startswith("| `")}


def rendered(running: NodeThread) -> set[str]:
    """Return the documented names that the node's text has a sample of."""
    process = (
        *of_build(release(), running.node.parts.identity),
        *of_process(memory_limit(), start_time_s(), at_once(open_descriptors())),
        *of_health(running.node.parts.health(0)),
    )
    text = render(running.node.parts, SystemClock().now_ms(), most_partitions=10_000, more=process)
    lines = b"".join(asyncio.run_coroutine_threadsafe(text, running._loop).result(20)).decode().splitlines()
    samples = {re.split("[ {]", line)[0] for line in lines if not line.startswith("#")}
    return {name for name in documented() if name in samples or f"{name}_count" in samples}


def fill(talk: Talk, topic_id: Any) -> None:
    for number in range(10):
        assert talk.produce(topic_id, [bytes(500)] * 3, DAY + number).error_code == 0


def test_a_node_renders_every_documented_metric(start: Callable[..., NodeThread], tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    running = start(
        firn_remote_url=f"file://{bucket}",
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        super_users="User:ANONYMOUS",
        firn_cut_interval_ms="1000",
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        ssl_keystore_location=Authority().issue().write(tmp_path / "server.pem"),
    )
    with running.client() as client:
        talk = Talk(client)
        configs = {
            "local_retention_bytes": "1",
            "internal_segment_bytes": "2000",
            "file_delete_delay_ms": "0",
        }
        topic_id = talk.create("t", 1, remote_storage_enable="true", **configs).topic_id
        fill(talk, topic_id)
        wait_until("segments to be offloaded", lambda: list_offset(talk, -4).offset > 0, 80)
        assert talk.fetch(topic_id, 0, max_wait=5000).records, "from the bucket"
        talk(ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=("g",))
        committed = {topic_id: {0: ErrorCode.none}}
        wait_until("the group to be loaded", lambda: commit(talk, {topic_id: range(1)}) == committed)
        assert talk.produce(UUID(int=9), [b"value"], DAY).error_code == ErrorCode.unknown_topic_id
        wait_until("a cut to be complete", lambda: "firn_cut_age_seconds" in rendered(running))
        # A store that is gone blocks the partition.
        bucket.rename(tmp_path / "away")
        fill(talk, topic_id)
        wait_until(
            "the partition to be blocked",
            lambda: "firn_tiering_blocked_partitions" in rendered(running),
        )
    running.node.parts.network.channel("replication")  # what a node of a cluster has for its fetchers
    running.node.parts.network.logins_of("PLAINTEXT")  # what a listener with SASL has
    assert len(documented()) > 100
    assert documented() - rendered(running) == OF_CLUSTERS
