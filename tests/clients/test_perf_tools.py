"""Apache Kafka's own measuring tools at their defaults: every record arrives, without a warning.

`make test-million` runs them with a million records.
"""

from __future__ import annotations

import os
import re

import pytest

from tests.clients.conftest import Broker, NewTopic
from tests.support.kafka_tools import run_tool, tool
from tests.support.wire import RawConnection, schema

RECORDS = int(os.environ.get("FIRN_TEST_RECORDS", "50000"))
SECONDS = 60 + RECORDS / 5000
FIND_COORDINATOR = 10

pytestmark = pytest.mark.java


def _quietly(broker: Broker, name: str, *arguments: str) -> str:
    """What a tool prints, which must not hold a warning; neither may the node's log, of clients."""
    before = {log: log.stat().st_size for log in broker.logs}
    done = run_tool(name, *arguments, seconds=SECONDS)
    out = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, out
    assert not re.search(r"WARN|ERROR|Exception", out), out
    said = b"".join(log.read_bytes()[size:] for log, size in before.items()).decode()
    # How long turns of the loop take is the machine's doing, too.
    warned = [
        line for line in said.splitlines() if " WARNING " in line and "service.node.event_loop" not in line
    ]
    assert not warned, warned
    return out


def _filled(broker: Broker, topic: str) -> str:
    at = ("--bootstrap-server", broker.bootstrap)
    return _quietly(
        broker, "producer-perf", *at, "--topic", topic, "--num-records", str(RECORDS), "--record-size", "100",
        "--throughput", "-1",
    )  # fmt: skip


def _serves_groups(broker: Broker) -> bool:
    module = schema(18, 3)
    request = module.ApiVersionsRequest(client_software_name="firn", client_software_version="1")
    with RawConnection(broker.bootstrap) as connection:
        return FIND_COORDINATOR in {api.api_key for api in connection.call(request).api_keys}


def test_producer_perf_test_writes_each_record(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(3)
    assert f"{RECORDS} records sent" in _filled(broker, topic)
    found = tool("get-offsets", "--bootstrap-server", broker.bootstrap, "--topic", topic)
    assert sum(int(line.rpartition(":")[2]) for line in found.split()) == RECORDS


def test_a_java_consumer_reads_what_producer_perf_test_wrote(broker: Broker, new_topic: NewTopic) -> None:
    """Of an assigned partition: that needs no group."""
    topic = new_topic()
    _filled(broker, topic)
    out = _quietly(
        broker, "console-consumer", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--partition",
        "0", "--offset", "0", "--max-messages", str(RECORDS), "--formatter-property", "print.value=false",
        "--formatter-property", "print.offset=true",
    )  # fmt: skip
    offsets = [int(number) for number in re.findall(r"Offset:(\d+)", out)]
    assert offsets == list(range(RECORDS))


def test_consumer_perf_test_reads_each_record(broker: Broker, new_topic: NewTopic) -> None:
    if not _serves_groups(broker):
        pytest.skip("kafka-consumer-perf-test joins a group, and this broker serves none")
    topic = new_topic(3)
    _filled(broker, topic)
    out = _quietly(
        broker, "consumer-perf", "--bootstrap-server", broker.bootstrap, "--topic", topic, "--num-records",
        str(RECORDS),
    )  # fmt: skip
    consumed = out.strip().splitlines()[-1].split(", ")[4]
    assert int(consumed) == RECORDS
