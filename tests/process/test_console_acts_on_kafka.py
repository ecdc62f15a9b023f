"""Acts of the console on Apache Kafka itself: the same pages, as both speak one protocol."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from service.client.admin import BROKER_RESOURCE, Cluster
from tests.node.test_console_acts import (
    audited,
    cluster,
    console,
    somebody,
    test_a_group_with_members_keeps_its_offsets,
    test_a_groups_offsets_and_the_group_are_deleted,
    test_a_record_is_produced_with_key_value_and_headers,
    test_a_topic_is_created_grows_and_goes,
    test_another_topic_of_the_name_is_not_deleted,
    test_offsets_are_reset_as_the_preview_showed_them,
)
from tests.support.kafka_node import KafkaNode
from tests.support.processes import wait_until
from tests.support.signed_in import SignedIn

__all__ = [
    "cluster",
    "console",
    "somebody",
    "test_a_group_with_members_keeps_its_offsets",
    "test_a_groups_offsets_and_the_group_are_deleted",
    "test_a_record_is_produced_with_key_value_and_headers",
    "test_a_topic_is_created_grows_and_goes",
    "test_another_topic_of_the_name_is_not_deleted",
    "test_offsets_are_reset_as_the_preview_showed_them",
]
pytestmark = [pytest.mark.java, pytest.mark.thorough]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
    kafka = KafkaNode(tmp_path_factory.mktemp("kafka") / "node", settings, heap="512m")
    yield kafka.bootstrap
    kafka.stop()


def cleaners(bootstrap: str) -> str | None:
    with Cluster(bootstrap) as cluster:
        return {one.name: one.value for one in cluster.entries(BROKER_RESOURCE, "1")}["log.cleaner.threads"]


def test_a_password_of_a_listener_is_changed_and_told_nowhere(
    somebody: SignedIn, node: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "hunter2-and-more"
    key = "listener.name.plaintext.ssl.keystore.password"
    shown = somebody.preview("broker-settings", broker="1", set=f"{key}={secret}\nlog.cleaner.threads=2")
    assert shown.row(key)[1:] == ["not set", "[hidden]"], shown.text
    result = somebody.confirm(shown, "1")
    assert "The settings of broker 1 are changed." in result.text
    for said in (shown.source, result.source, caplog.text):
        assert secret not in said
    (line,) = audited(caplog, "settings-changed")
    assert line["items"] == [f"broker 1: {key}=[hidden]", "broker 1: log.cleaner.threads=2"]
    wait_until("it is in effect", lambda: cleaners(node) == "2")
    shown = somebody.preview("broker-settings", broker="1", unset=f"{key}\nlog.cleaner.threads")
    assert shown.row(key)[1:] == ["[hidden]", "back to the default"]
    assert shown.row("log.cleaner.threads")[1:] == ["2", "back to the default"]
    assert "The settings of broker 1 are changed." in somebody.confirm(shown, "1").text
    wait_until("the default is back", lambda: cleaners(node) == "1")
