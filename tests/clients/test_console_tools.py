"""Apache Kafka's own command-line tools, unchanged."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import NODES, REPLICAS, Broker, NewTopic
from tests.conftest import NodeFactory
from tests.support.clients import CLIENTS, EPOCH_MS, Admin, KafkaPython, make_rows
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import FIRN, wait_until

pytestmark = pytest.mark.java


IDEMPOTENT: dict[str, Any] = {"enable.idempotence": True}


def test_kafka_topics_creates_lists_describes_and_deletes(broker: Broker) -> None:
    at = ("--bootstrap-server", broker.bootstrap)
    name = "from-the-tool"
    tool("topics", *at, "--create", "--topic", name, "--partitions", "3", "--config", "retention.ms=-1")
    try:
        assert name in tool("topics", *at, "--list").split()
        described = tool("topics", *at, "--describe", "--topic", name)
        head = described.splitlines()[0]
        assert "PartitionCount: 3" in head
        assert f"ReplicationFactor: {REPLICAS}" in head
        assert "retention.ms=-1" in head
        ids = r"\d+(?:,\d+)" + f"{{{REPLICAS - 1}}}"
        lines = rf"Partition: [012]\tLeader: \d+\tReplicas: {ids}\tIsr: {ids}\t"
        assert len(re.findall(lines, described)) == 3
        again = run_tool("topics", *at, "--create", "--topic", name)
        assert again.returncode != 0
        assert b"already exists" in again.stdout + again.stderr
    finally:
        tool("topics", *at, "--delete", "--topic", name)
    wait_until("the topic to be gone", lambda: name not in broker.admin.topics())
    gone = run_tool("topics", *at, "--describe", "--topic", name)
    assert gone.returncode != 0
    assert b"does not exist" in gone.stdout + gone.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--topic", "a b"), b"invalid"),
        (("--topic", "x" * 250), b"249"),
        (
            ("--topic", "too-replicated", "--replication-factor", f"{NODES + 1}"),
            b"Unable to replicate the partition %d" % (NODES + 1),
        ),
        (("--topic", "elsewhere", "--replica-assignment", "7"), b"broker 7"),
        (("--topic", "unheard-of", "--config", "no.such.key=1"), b"no.such.key"),
        (("--topic", "too-small", "--config", "segment.bytes=5"), b"segment.bytes"),
    ],
)
def test_kafka_topics_is_told_why_a_topic_cannot_be(
    arguments: tuple[str, ...], words: bytes, bootstrap: str
) -> None:
    done = run_tool("topics", "--bootstrap-server", bootstrap, "--create", *arguments)
    assert done.returncode != 0
    assert words in done.stdout + done.stderr


@pytest.mark.parametrize(
    "codec",
    ["none", "zstd", *(pytest.param(one, marks=pytest.mark.thorough) for one in ("gzip", "snappy", "lz4"))],
)
def test_the_console_producer_writes_what_the_console_consumer_reads(
    codec: str, bootstrap: str, new_topic: NewTopic
) -> None:
    topic = new_topic(1)
    lines = [b"line %d of %s" % (number, codec.encode()) for number in range(2000)]
    at = ("--bootstrap-server", bootstrap, "--topic", topic)
    tool("console-producer", *at, "--compression-codec", codec, stdin=b"\n".join(lines) + b"\n")
    found = tool(
        "console-consumer", *at, "--partition", "0", "--offset", "earliest", "--max-messages", "2000"
    )
    assert found.encode().splitlines() == lines
    tail = tool("console-consumer", *at, "--partition", "0", "--offset", "1990", "--max-messages", "10")
    assert tail.encode().splitlines() == lines[1990:]


def test_the_console_consumer_reads_both_tiers(broker: Broker, new_topic: NewTopic) -> None:
    broker.need_tiers()
    topic = new_topic(1, remote_storage_enable="true", segment_bytes="1048576")
    rows = make_rows(4000, 1)
    CLIENTS[0].produce(broker.bootstrap, topic, rows, "zstd")
    border = broker.settle(topic, 0)
    for start, count in ((0, 4000), (border - 50, 100)):
        found = tool(
            *(
                "console-consumer",
                "--bootstrap-server",
                broker.bootstrap,
                "--topic",
                topic,
                "--partition",
                "0",
            ),
            *(
                "--offset",
                str(start),
                "--max-messages",
                str(count),
                "--formatter-property",
                "print.offset=true",
            ),
            *("--formatter-property", "print.value=false", "--formatter-property", "print.timestamp=true"),
        )
        expected = [
            f"CreateTime:{EPOCH_MS + offset}\tOffset:{offset}" for offset in range(start, start + count)
        ]
        assert [line.split("\tnull")[0] for line in found.splitlines()] == expected


def test_kafka_configs_describes_and_alters(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    at = ("--bootstrap-server", bootstrap, "--entity-type", "topics", "--entity-name", topic)
    assert "retention.ms=-1" in tool("configs", *at, "--describe")
    tool("configs", *at, "--alter", "--add-config", "retention.bytes=123456789,max.message.bytes=2000000")
    described = tool("configs", *at, "--describe")
    assert "retention.bytes=123456789" in described
    assert "max.message.bytes=2000000" in described
    assert "DYNAMIC_TOPIC_CONFIG:retention.bytes=123456789" in described
    tool("configs", *at, "--alter", "--delete-config", "retention.bytes")
    assert "retention.bytes" not in tool("configs", *at, "--describe")
    everything = tool("configs", *at, "--describe", "--all")
    assert "retention.bytes=-1" in everything
    assert "segment.bytes=1073741824" in everything


def test_kafka_configs_is_told_why_a_value_cannot_be(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1)
    at = ("--bootstrap-server", bootstrap, "--entity-type", "topics", "--entity-name", topic)
    for bad in ("retention.ms=soon", "no.such.key=1"):
        done = run_tool("configs", *at, "--alter", "--add-config", bad)
        assert done.returncode != 0
        assert bad.partition("=")[0].encode() in done.stdout + done.stderr
    assert "retention.ms=-1" in tool("configs", *at, "--describe")


def test_kafka_configs_describes_a_broker(broker: Broker) -> None:
    at = ("--bootstrap-server", broker.bootstrap, "--entity-type", "brokers", "--entity-name", "1")
    described = tool("configs", *at, "--describe", "--all")
    assert "log.dirs=" in described
    assert "log.segment.bytes=" in described


def test_get_offsets_lists_every_partition(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(4)
    CLIENTS[0].produce(bootstrap, topic, make_rows(10, 4))
    found = tool("get-offsets", "--bootstrap-server", bootstrap, "--topic-partitions", f"{topic}:0-3")
    assert found.split() == [f"{topic}:0:3", f"{topic}:1:3", f"{topic}:2:2"]


def test_broker_api_versions_knows_the_broker_for_one_of_its_own(bootstrap: str) -> None:
    found = tool("broker-api-versions", "--bootstrap-server", bootstrap)
    for line in (
        "Produce(0): 0 to 13",
        "Fetch(1): 4 to 18",
        "ListOffsets(2): 1 to 11",
        "Metadata(3): 0 to 13",
    ):
        assert line in found


def _dump(*arguments: str | Path) -> str:
    """kafka-dump-log ends with 0 also when it found the file to be wrong, and then says so."""
    out = tool("dump-log", *arguments)
    # A record of ours among Kafka's is named, skipped, and no fault.
    out = re.sub(r"Error at \d+, skipping. \S+ Unknown metadata id 2\d{4}\b", "", out)
    for complaint in (
        "isvalid: false",
        "Mismatches in",
        "Index timestamp",
        "Could not",
        "rror",
        "xception",
        "corrupt",
    ):
        assert complaint not in out, out[-2000:]
    return out


def test_kafka_dump_log_opens_segments_and_indexes(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1, segment_bytes="1048576", index_interval_bytes="1024")
    rows = make_rows(3000, 1)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        KafkaPython().produce(broker.bootstrap, topic, rows[number * 600 : (number + 1) * 600], codec)
    folder = broker.folder(topic)
    logs = sorted(folder.glob("*.log"))
    assert len(logs) >= 2
    found = _dump("--deep-iteration", "--print-data-log", "--files", ",".join(map(str, logs)))
    assert re.findall(r"^\| offset: (\d+) ", found, re.M) == [str(offset) for offset in range(3000)]
    assert set(re.findall(r"compresscodec: (\w+)", found)) == {"none", "gzip", "snappy", "lz4", "zstd"}
    # The active segment's index files are preallocated, as Kafka's are; the tool wants the sealed ones.
    sealed = logs[0].with_suffix("")
    assert len(re.findall(r"^offset: \d+ position: \d+", _dump("--files", f"{sealed}.index"), re.M)) > 5
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", _dump("--files", f"{sealed}.timeindex"), re.M)) > 5
    _dump("--index-sanity-check", "--files", f"{sealed}.index")


def test_kafka_dump_log_opens_producer_snapshots(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(1, segment_bytes="1048576")
    CLIENTS[0].produce(broker.bootstrap, topic, make_rows(3000, 1), **IDEMPOTENT)
    snapshot = max(broker.folder(topic).glob("*.snapshot"))
    assert re.search(r"^producerId: \d+ producerEpoch: 0 ", _dump("--files", snapshot), re.M)


def test_kafka_dump_log_reads_the_metadata_log(broker: Broker, new_topic: NewTopic) -> None:
    topic = new_topic(3, retention_bytes="99999")
    log = max((broker.need_data()[0] / "__cluster_metadata-0").glob("*.log"))
    found = _dump("--cluster-metadata-decoder", "--files", log)
    assert f'"type":"TOPIC_RECORD","version":0,"data":{{"name":"{topic}"' in found
    assert found.count('"type":"PARTITION_RECORD"') >= 3
    assert f'"resourceName":"{topic}","name":"retention.bytes","value":"99999"' in found
    assert "LeaderChange" in found or "leaderchange" in found.lower()


def test_kafka_dump_log_reads_a_metadata_snapshot(start_node: NodeFactory) -> None:
    node = start_node(**{"metadata.log.max.record.bytes.between.snapshots": "1000"})
    admin = Admin(node.bootstrap)
    for number in range(20):
        admin.create(f"topic-{number}", retention_bytes="4321")
    folder = node.data / "__cluster_metadata-0"
    wait_until("a snapshot", lambda: any(folder.glob("*.checkpoint")))
    node.restart()
    assert set(Admin(node.bootstrap).topics()) == {f"topic-{number}" for number in range(20)}
    found = _dump("--cluster-metadata-decoder", "--files", max(folder.glob("*.checkpoint")))
    assert "SnapshotHeader" in found
    assert "SnapshotFooter" in found
    assert found.count('"type":"TOPIC_RECORD"') > 2
    assert '"name":"retention.bytes","value":"4321"' in found
    node.stop()


def test_the_head_of_an_object_is_a_log_that_kafka_dump_log_opens(
    broker: Broker, new_topic: NewTopic, tmp_path: Path
) -> None:
    store = broker.need_store()
    topic = new_topic(1, remote_storage_enable="true", segment_bytes="1048576")
    before = set(store.objects())
    CLIENTS[0].produce(broker.bootstrap, topic, make_rows(4000, 1), "lz4")
    border = broker.settle(topic, 0)
    keys = sorted(key for key in set(store.objects()) - before if key.endswith(".seg"))
    assert keys
    offsets: list[str] = []
    for number, key in enumerate(keys):
        whole = tmp_path / f"{number}.seg"
        whole.write_bytes(store.read(key))
        dumped = subprocess.run([FIRN, "dump", "--json", whole], capture_output=True, check=True)
        length = json.loads(dumped.stdout)["log_length"]
        head = tmp_path / f"{Path(key).name[:20]}.log"
        head.write_bytes(whole.read_bytes()[:length])
        assert length < whole.stat().st_size
        offsets += re.findall(r"^\| offset: (\d+) ", _dump("--print-data-log", "--files", head), re.M)
    assert offsets == [str(offset) for offset in range(border)]
