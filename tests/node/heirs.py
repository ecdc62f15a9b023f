"""Clusters in this process that are lost and come back: the cut, its tail and the first records are made by
hand of what was on the disks, so that only what an heir does itself is tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from service.base.uuids import encode_uuid
from service.base.world import system_world
from service.cli.dev_nodes import agree_on_ports, format_nodes, plan_nodes
from service.metadata.bootstrap import FILE_NAME
from service.metadata.features import cluster_bootstrap_records, supported_features
from service.metadata.formatting import Order, effective_levels, format_directories
from service.metadata.frames import newest
from service.metadata.image import MetadataImage, RestoredTail
from service.metadata.image_frames import restored_tail_record
from service.metadata.records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoteLogRecord,
    TopicRecord,
)
from service.metadata.snapshot_codec import encode_snapshot
from service.records.batch import complete_headers
from service.remote.stores.obstore_store import open_store
from tests.node.conftest import NodeThread, Talk
from tests.support.hand_made_cuts import HandMadeCut, Place
from tests.support.processes import wait_until
from tests.support.world import WORLD

CLUSTER_ID: Final = encode_uuid(UUID(int=0x1234 << 64 | 0x5678))
GAP: Final = 1_000
EPOCHS: Final = 1_000
PRODUCER_IDS: Final = 1_000_000_000


class Nodes:
    """A cluster: of one node, or of three, all of them controllers."""

    def __init__(
        self, folder: Path, count: int, bucket: Path, first: Sequence[MetadataRecord] | None, **settings: str
    ) -> None:
        """`first`: the records of a restore, which `firn format --restore` puts on each controller."""
        folder.mkdir()
        bucket.mkdir(exist_ok=True)
        common = {
            "firn.remote.url": f"file://{bucket}",
            "broker.heartbeat.interval.ms": "200",
            "broker.session.timeout.ms": "3000",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.num.partitions": "2",
            **settings,
        }
        if count == 1:
            self.nodes = {1: NodeThread(folder / "node-1", None, None, **{**common, "node.id": "1"})}
            self._format_one(folder / "node-1")
        else:
            plan = plan_nodes(count, count, agree_on_ports(0, count, count), folder, system_world(), common)
            format_nodes(plan._replace(cluster_id=CLUSTER_ID), system_world())
            self.nodes = {
                one.node_id: NodeThread(Path(one.settings["log.dirs"]), None, None, **one.settings)
                for one in plan.nodes
            }
        if first is not None:
            data = b"".join(encode_snapshot(map(newest, first), epoch=0, last_timestamp_ms=0, now_ms=1))
            for node in self.nodes.values():
                (node.data / FILE_NAME).write_bytes(data)

    def _format_one(self, directory: Path) -> None:
        directory.mkdir()
        levels = effective_levels({}, supported_features(), is_dynamic=False)
        order = Order(CLUSTER_ID, 1, (directory,), directory, "", levels)
        format_directories(system_world(), order, lambda _: None)

    def start(self, *ids: int) -> Nodes:
        for node_id in ids or self.nodes:
            self.nodes[node_id]._thread.start()
        for node_id in ids or self.nodes:
            self.nodes[node_id]._ready.wait()
            failure = self.nodes[node_id].failure
            assert failure is None, failure
        return self

    def stop(self, *ids: int) -> None:
        for node_id in ids or self.nodes:
            self.nodes[node_id].stop()

    @property
    def image(self) -> MetadataImage:
        """The newest of the running nodes."""
        images = [
            node.node.parts.metadata.image
            for node in self.nodes.values()
            if node._thread.is_alive() and node.node.parts.metadata is not None
        ]
        return max(images, key=lambda image: image.offset)

    def leader(self, topic: str, index: int = 0) -> NodeThread:
        """Return the node that leads, once there is one that runs."""
        found: list[NodeThread] = []

        def leads() -> bool:
            leader = self.image.topics_by_name[topic].partitions[index].leader
            if leader in self.nodes and self.nodes[leader]._thread.is_alive():
                found.append(self.nodes[leader])
            return bool(found)

        wait_until(f"a leader of {topic}-{index}", leads)
        return found[0]

    def talk(self, topic: str, index: int, call: Callable[[Talk], Any]) -> Any:
        """Return what `call` does with a client of the leader."""
        with self.leader(topic, index).client() as client:
            return call(Talk(client))

    @property
    def bootstrap(self) -> str:
        node = next(one for one in self.nodes.values() if one._thread.is_alive())
        return f"{node.host}:{node.port}"


def lose(nodes: Nodes, bucket: Path, brokers: Sequence[int]) -> list[MetadataRecord]:
    """Stop all nodes and return the first records of their heir, whose tail is in the bucket then."""
    metadata = [node.node.parts.metadata for node in nodes.nodes.values() if node._thread.is_alive()]
    directories = {node_id: node.data for node_id, node in nodes.nodes.items()}
    nodes.stop()
    # Segments were archived up to the end.
    image = max((one.image for one in metadata if one is not None), key=lambda image: image.offset)
    store = open_store(f"file://{bucket}", world=WORLD)
    cut = HandMadeCut(store, CLUSTER_ID)
    records: list[MetadataRecord] = list(cluster_bootstrap_records())
    sections: dict[Place, bytes] = {}
    tails: dict[Place, RestoredTail] = {}
    epochs: list[MetadataRecord] = []
    for name in sorted(image.topics_by_name):
        topic = image.topics_by_name[name]
        records.append(TopicRecord(name=name, topic_id=topic.id))
        for index, state in topic.partitions.items():
            place = topic.id, index
            entry = image.remote.get(place)
            chain_end = 0 if entry is None else entry.end_offset
            source = next(one for one in (*state.isr, *state.replicas) if one in directories)
            data, end = local_batches(directories[source] / f"{name}-{index}", chain_end)
            if data:
                sections[place] = data
            tails[place] = RestoredTail(chain_end, end, end + GAP, "", "")
            replicas = (*brokers[index % len(brokers) :], *brokers[: index % len(brokers)])
            records.append(
                PartitionRecord(
                    partition_id=index,
                    topic_id=topic.id,
                    replicas=replicas,
                    isr=replicas[:1],
                    leader=-1,
                    leader_epoch=state.leader_epoch + EPOCHS,
                    partition_epoch=0,
                    directories=(None,) * len(replicas),
                )
            )
            if entry is not None:
                epochs.append(RemoteLogRecord(topic_id=topic.id, partition_id=index, **entry._asdict()))
        for key, value in sorted(image.config(2, name).items()):
            records.append(ConfigRecord(resource_type=2, resource_name=name, name=key, value=value))
    cut.tail(sections)
    key = cut.write()
    records.append(ProducerIdsRecord(broker_id=-1, next_producer_id=image.next_producer_id + PRODUCER_IDS))
    records += epochs
    records += (restored_tail_record(place, tail._replace(cut_key=key)) for place, tail in tails.items())
    return records


def local_batches(directory: Path, first: int) -> tuple[bytes, int]:
    """Return the whole batches of a stopped log from an offset on, and the log's end."""
    found, end = b"", first
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        for header in complete_headers(memoryview(data)):
            if header.base_offset >= first:
                found += data[header.position : header.position + header.size]
                end = header.next_offset
    return found, end
