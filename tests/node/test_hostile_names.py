"""Principals, client ids, topics and groups with line ends, escapes and 32 KiB: one line each, no label."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from service.base.clock import SystemClock
from service.client.blocking_client import BlockingClient
from service.console.metrics_text import render
from service.security.principal import Principal
from service.wire.api import ApiKey
from tests.node.conftest import NodeThread, Talk
from tests.node.test_authorization import SETTINGS, People
from tests.support.wire import RawConnection, produce_request, schema

HOSTILE = "x\r\n2026-11-28 INFO all is well \x1b[2J\x00\u202e<script>'\"\\{}" + "y" * 32_000


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> People:
    return People(monkeypatch)


@pytest.fixture
def node(start: Callable[..., NodeThread], people: People) -> NodeThread:
    return start(**SETTINGS)


def ask_all(node: NodeThread) -> None:
    """Ask for what is denied, what is not there and what cannot be, by hostile names."""
    with BlockingClient(node.host, node.port, HOSTILE[:20_000], timeout_s=20) as client:
        talk = Talk(client)
        talk(ApiKey.DESCRIBE_GROUPS, "DescribeGroupsRequest", groups=(HOSTILE,),
             include_authorized_operations=True)  # fmt: skip
        talk(ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=(HOSTILE,))
        talk(ApiKey.DELETE_GROUPS, "DeleteGroupsRequest", groups_names=(HOSTILE,))
        talk.create(HOSTILE)
        talk.topic_id(HOSTILE)
        configs = schema(ApiKey.DESCRIBE_CONFIGS, 4)
        for kind in (2, 4, 8, 32):
            asked = configs.DescribeConfigsResource(
                resource_type=kind, resource_name=HOSTILE, configuration_keys=None
            )
            talk(ApiKey.DESCRIBE_CONFIGS, "DescribeConfigsRequest", resources=(asked,))
    with RawConnection(f"{node.host}:{node.port}") as peer:
        peer.call(produce_request(HOSTILE, 0, b"no records", version=9))
        part = schema(1, 12).FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
        topic = schema(1, 12).FetchTopic(topic=HOSTILE, partitions=(part,))
        own: dict[str, Any] = {"max_wait": timedelta(0), "min_bytes": 0, "forgotten_topics_data": ()}
        peer.call(schema(1, 12).FetchRequest(replica_id=-1, topics=(topic,), **own))


@pytest.mark.parametrize("name", ["admin", HOSTILE], ids=["who may", "who may not"])
def test_names_make_one_line_each_and_no_label(
    node: NodeThread, people: People, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(5, "firn.audit")
    people.next = Principal("User", name)
    ask_all(node)
    lines = [one.getMessage() for one in caplog.records if one.name.startswith(("service", "firn"))]
    assert any("Denied" in line for line in lines) is (name == HOSTILE)
    for line in lines:
        assert line.isprintable(), repr(line[:2000])
        assert len(line) < 4_000
    text = render(node.node.parts, SystemClock().now_ms(), most_partitions=10_000)
    metrics = b"".join(asyncio.run_coroutine_threadsafe(text, node._loop).result(20)).decode()
    assert "all is well" not in metrics
    assert "\x1b" not in metrics
