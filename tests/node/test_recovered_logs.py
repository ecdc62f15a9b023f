"""A node whose metadata is lost takes its bucket over: what its own log has beyond the archive stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from service.base.types import TopicIdPartition
from service.base.world import system_world
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.records.builder import BatchBuilder
from service.remote.format.manifest_codec import decode_cluster
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, list_offset, values
from tests.support.processes import wait_until
from tests.unit.hot.erasures import erase, order_of

GONE = b"to be erased"
TIERED = {"remote_storage_enable": "true", "retention_ms": "-1", "internal_segment_bytes": "4000"}


def produce(talk: Talk, topic_id: Any, key: bytes, value: bytes) -> int:
    """Produce one record once the partition takes it; return its offset."""
    module = request_module(ApiKey.PRODUCE)
    builder = BatchBuilder()
    builder.add(DAY, key, value)
    data = module.PartitionProduceData(index=0, records=bytes(builder.build()))
    topic = module.TopicProduceData(topic_id=topic_id, partition_data=(data,))
    offsets: list[int] = []

    def taken() -> bool:
        answer = talk(
            ApiKey.PRODUCE,
            "ProduceRequest",
            transactional_id=None,
            acks=-1,
            timeout=1000,
            topic_data=(topic,),
        )
        found = answer.responses[0].partition_responses[0]
        offsets.append(int(found.base_offset))
        return bool(found.error_code == 0)

    wait_until("the partition to take records", taken)
    return offsets[-1]


def erase_offline(folder: Path, topic_id: UUID, end: int) -> None:
    """Carry an order out in the log of a node that is stopped, as it does before the bucket's part begins."""
    log = LocalLog.open(folder, TopicIdPartition(topic_id, "t", 0), LogConfig(), world=system_world())
    erase(log, order_of(GONE, end=end))
    log.close(clean=False)


def test_records_beyond_an_archive_that_has_not_erased_yet_survive_a_recovery(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    settings = {"firn_remote_url": f"file://{bucket}"}
    node = start(**settings)
    with node.client() as client:
        talk = Talk(client)
        topic_id = talk.create("t", 1, **TIERED).topic_id
        for number in range(40):
            produce(talk, topic_id, GONE if number % 2 else b"k", b"%d" % number + b"." * 300)
        wait_until("an archive", lambda: list_offset(talk, -5).offset >= 20)
        archived = int(list_offset(talk, -5).offset) + 1
        end = 1 + produce(talk, topic_id, b"k", b"in the log alone")
    node.stop()
    assert archived < end
    erase_offline(node.data / "t-0", topic_id, archived)
    shutil.rmtree(node.data / "__cluster_metadata-0")
    cluster_id = decode_cluster((bucket / "cluster.json").read_bytes()).cluster_id
    node = start(**settings, firn_cluster_id=cluster_id, firn_remote_recover="true")
    with node.client() as client:
        talk = Talk(client)
        assert produce(talk, topic_id, b"k", b"after the recovery") == end
        found = talk.fetch(topic_id, end - 1, max_wait=5000)
        assert values(found.records) == [b"in the log alone", b"after the recovery"]
        assert values(talk.fetch(topic_id, 0, max_wait=5000, partition_max_bytes=400).records) == [
            b"0" + b"." * 300
        ]
