"""DescribeHealth on a whole node: nothing while all is well, and its own findings in words."""

from __future__ import annotations

from collections.abc import Callable

from service.wire.api import ApiKey
from service.wire.health import DescribeHealthRequest
from tests.node.conftest import NodeThread, Talk


def test_a_node_that_is_well_tells_nothing_and_needs_nobodys_word(talk: Talk) -> None:
    answer = talk.client.request(ApiKey.DESCRIBE_HEALTH, DescribeHealthRequest())
    assert (int(answer.error_code), answer.node_id, answer.findings) == (0, 1, ())
    assert (answer.metadata_age_ms, answer.session_ms) == (-1, 9000)


def test_a_partition_that_fails_is_told_with_what_to_do(start: Callable[..., NodeThread]) -> None:
    running = start()
    with running.client() as client:
        Talk(client).create("t")
        (partition,) = running.node.parts.partitions()
        broker = running.node.parts.broker
        assert broker is not None
        running._loop.call_soon_threadsafe(broker.replicas.take_offline, partition.tip, "gone")
        (told,) = client.request(ApiKey.DESCRIBE_HEALTH, DescribeHealthRequest()).findings
    assert (told.severity, told.subject, told.anchor) == ("critical", "node 1", "replicas-offline")
    assert told.words == "node 1: 1 partition is offline on it"
    assert told.since_ms > 0
    assert told.action.startswith("Read the node's log")
