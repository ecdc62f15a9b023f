"""Log of three nodes that are well: no warning, a line for each change, names instead of ids."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.world import system_world
from service.cli.dev_nodes import agree_on_ports, format_nodes, plan_nodes
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.support.processes import wait_until

NONE = ErrorCode.none
SETTINGS = {
    "broker.heartbeat.interval.ms": "200",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}


class Trio:
    """Three nodes, all of them controllers."""

    def __init__(self, folder: Path) -> None:
        self._plan = plan_nodes(3, 3, agree_on_ports(0, 3, 3), folder, system_world(), SETTINGS)
        self._folder = folder
        format_nodes(self._plan, system_world())
        self.nodes: dict[int, NodeThread] = {}
        for one in self._plan.nodes:
            self.start(one.node_id)
        for node_id in self.nodes:
            self.wait_for(node_id)

    def start(self, node_id: int) -> None:
        settings = self._plan.nodes[node_id - 1].settings
        node = self.nodes[node_id] = NodeThread(self._folder / str(node_id), None, None, **settings)
        node._thread.start()

    def wait_for(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node._ready.wait()
        assert node.failure is None, node.failure

    def close(self) -> None:
        stops = [threading.Thread(target=node.stop) for node in self.nodes.values()]
        for one in stops:
            one.start()
        for one in stops:
            one.join()

    def image(self, node_id: int) -> Any:
        broker = self.nodes[node_id].node.parts.broker
        assert broker is not None
        return broker.image

    def is_whole(self) -> bool:
        """Return whether each node sees three brokers, and all replicas in sync."""
        images = [self.image(node_id) for node_id in self.nodes]
        return all(
            len(image.brokers) == 3
            and all(one.is_active for one in image.brokers.values())
            and all(
                set(partition.isr) == set(partition.replicas)
                for topic in image.topics_by_name.values()
                for partition in topic.partitions.values()
            )
            for image in images
        )


@pytest.fixture
def trio(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Trio]:
    caplog.set_level(logging.INFO)
    nodes = Trio(tmp_path)
    yield nodes
    nodes.close()


def create(talk: Talk, *names: str) -> None:
    module = request_module(ApiKey.CREATE_TOPICS)
    topics = tuple(
        module.CreatableTopic(name=name, num_partitions=3, replication_factor=3, assignments=(), configs=())
        for name in names
    )
    answer = talk(ApiKey.CREATE_TOPICS, "CreateTopicsRequest", topics=topics)
    assert [one.error_code for one in answer.topics] == [NONE] * len(names)


def delete(talk: Talk, *names: str) -> None:
    module = request_module(ApiKey.DELETE_TOPICS)
    states = tuple(module.DeleteTopicState(name=name, topic_id=None) for name in names)
    answer = talk(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=states, timeout=timedelta(seconds=30))
    assert [one.error_code for one in answer.responses] == [NONE] * len(names)


def test_nodes_that_are_well_warn_of_nothing_and_tell_each_change(
    trio: Trio, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until("three brokers", trio.is_whole)
    with trio.nodes[1].client() as client:
        talk = Talk(client)
        for n in range(3):
            create(talk, f"a{n}", f"b{n}")
        wait_until("replicas in sync", trio.is_whole)
        delete(talk, "b0", "b1", "b2")
        client.request(ApiKey.FIND_COORDINATOR, find_group("g"))
    trio.nodes[3].stop()
    wait_until("the others to go on", lambda: not trio.image(1).brokers[3].is_active)
    trio.start(3)
    trio.wait_for(3)
    wait_until("all replicas to be back in sync", trio.is_whole)

    def audit() -> str:
        return "\n".join(one.getMessage() for one in caplog.records if one.name == "firn.audit")

    wait_until("its last line", lambda: "ISRs expanded" in audit())
    trio.close()
    lines = [*caplog.get_records("setup"), *caplog.records]
    assert [f"{one.name}: {one.getMessage()}" for one in lines if one.levelno > logging.INFO] == []
    refused = [text for one in lines if " refused with " in (text := one.getMessage())]
    known = [text for text in refused if "unknown_topic_id" not in text]  # else it has no name here
    assert [text for text in known if re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", text)] == []
    told = audit()
    who = r"; by User:ANONYMOUS from 127\.0\.0\.1, client id 'test'"
    topic = r"a0 \[partitions=3 replicas=3\], b0 \[partitions=3 replicas=3\]"
    assert re.search(rf"^topics created \(2\): {topic}{who}$", told, re.M)
    assert re.search(rf"^topics deleted \(3\): b0, b1, b2{who}$", told, re.M)
    assert re.search(r"^brokers that begin their controlled shutdown \(1\): 3$", told, re.M)
    assert re.search(r"^ISRs shrunk \(\d+\): .*\ba0-\d \[[123,]+ -> [12,]+\]", told, re.M)
    assert re.search(r"^leaders elected \(\d+\): .*\ba\d-\d \[leader 3 -> [12], epoch \d+\]", told, re.M)
    assert re.search(r"^topics created automatically \(1\): __consumer_offsets \[partitions=1\]$", told, re.M)


def find_group(name: str) -> Any:
    module = request_module(ApiKey.FIND_COORDINATOR)
    return module.FindCoordinatorRequest(key_type=0, coordinator_keys=(name,))
