"""Leader epochs and producers of an idle log, and after the loss of its disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from service.records.builder import BatchBuilder
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, list_offset
from tests.node.test_topics_and_configs import metadata
from tests.support.processes import wait_until

PRODUCER = 4711


def end_of_epoch(talk: Talk, leader_epoch: int) -> tuple[int, int]:
    """(epoch, end offset), as OffsetForLeaderEpoch answers for partition 0 of `t`."""
    module = request_module(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    asked = module.OffsetForLeaderPartition(partition=0, leader_epoch=leader_epoch)
    answer = talk(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        "OffsetForLeaderEpochRequest",
        topics=(module.OffsetForLeaderTopic(topic="t", partitions=(asked,)),),
    )
    (end,) = answer.topics[0].partitions
    assert end.error_code == 0
    return end.leader_epoch, end.end_offset


def send(talk: Talk, topic_id: Any, sequence: int) -> Any:
    """One record of an idempotent producer, 2 KB."""
    builder = BatchBuilder(producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
    builder.add(DAY + sequence, None, b"." * 2000)
    module = request_module(ApiKey.PRODUCE)
    data = module.PartitionProduceData(index=0, records=bytes(builder.build()))
    answer = talk(
        ApiKey.PRODUCE,
        "ProduceRequest",
        transactional_id=None,
        acks=-1,
        timeout=1000,
        topic_data=(module.TopicProduceData(topic_id=topic_id, partition_data=(data,)),),
    )
    return answer.responses[0].partition_responses[0]


def comes_online(talk: Talk) -> None:
    wait_until("what the archive knows to be read", lambda: list_offset(talk, -1).error_code == 0)


def test_an_idle_partition_knows_the_epoch_that_it_is_led_in(start: Callable[..., NodeThread]) -> None:
    node = start()
    with node.client() as client:
        talk = Talk(client)
        talk.produce(talk.create("t").topic_id, [b"x"] * 5, DAY)
        assert end_of_epoch(talk, 0) == (0, 5)
    for _ in range(2):
        node.stop()
        node = start()
        with node.client() as client:
            talk = Talk(client)
            epoch = metadata(talk, "t")[0].partitions[0].leader_epoch
            assert epoch > 0
            assert end_of_epoch(talk, epoch) == (epoch, 5)
            assert end_of_epoch(talk, 0) == (0, 5)


def test_a_log_behind_its_archive_takes_epochs_and_producers_from_it(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    (tmp_path / "bucket").mkdir()
    url = f"file://{tmp_path}/bucket"
    node = start(firn_remote_url=url)
    with node.client() as client:
        talk = Talk(client)
        created = talk.create("t", remote_storage_enable="true", internal_segment_bytes="20000")
        for sequence in range(30):
            assert send(talk, created.topic_id, sequence).base_offset == sequence
        wait_until("half of it to be archived", lambda: list_offset(talk, -5).offset >= 15)
    node.stop()
    shutil.rmtree(tmp_path / "data" / "t-0")
    with start(firn_remote_url=url).client() as client:
        talk = Talk(client)
        wait_until("the archive's end to be read", lambda: list_offset(talk, -1).error_code == 0)
        archived = int(list_offset(talk, -1).offset)
        assert 15 < archived <= 30
        assert end_of_epoch(talk, 0) == (0, archived)
        answers: list[Any] = []

        def taken() -> bool:
            answers.append(send(talk, created.topic_id, archived - 1))
            return bool(answers[-1].error_code != ErrorCode.kafka_storage_error)

        wait_until("the partition to take records", taken)
        assert (answers[-1].error_code, answers[-1].base_offset) == (0, archived - 1), "it is there already"
        gap = send(talk, created.topic_id, archived + 5)
        assert gap.error_code == ErrorCode.out_of_order_sequence_number
        assert send(talk, created.topic_id, archived).base_offset == archived


def test_epochs_of_archived_records_survive_a_damaged_checkpoint(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    (tmp_path / "bucket").mkdir()
    settings = {
        "firn_remote_url": f"file://{tmp_path}/bucket",
        "log_retention_check_interval_ms": "100",
    }
    node = start(**settings)
    with node.client() as client:
        talk = Talk(client)
        topic_id = talk.create(
            "t", remote_storage_enable="true", internal_segment_bytes="5000", local_retention_bytes="1"
        ).topic_id
        for sequence in range(4):
            assert send(talk, topic_id, sequence).base_offset == sequence
    node.stop()
    node = start(**settings)
    with node.client() as client:
        talk = Talk(client)

        wait_until("it to take records", lambda: bool(send(talk, topic_id, 4).error_code == 0))
        for sequence in range(5, 12):
            assert send(talk, topic_id, sequence).base_offset == sequence
        wait_until("the first epoch to be in the archive alone", lambda: list_offset(talk, -4).offset >= 6)
        epoch = metadata(talk, "t")[0].partitions[0].leader_epoch
        assert end_of_epoch(talk, 0) == (0, 4)
    node.stop()
    checkpoint = tmp_path / "data" / "t-0" / "leader-epoch-checkpoint"
    for _ in range(2):
        checkpoint.write_bytes(checkpoint.read_bytes()[:-3])
        node = start(**settings)
        with node.client() as client:
            talk = Talk(client)
            comes_online(talk)
            assert end_of_epoch(talk, 0) == (0, 4)
            newest = metadata(talk, "t")[0].partitions[0].leader_epoch
            assert newest > epoch
            assert end_of_epoch(talk, epoch) == (epoch, 12)
            assert end_of_epoch(talk, newest) == (newest, 12)
        node.stop()
    lines = [line.rstrip() for line in checkpoint.read_text().splitlines()[2:]]  # without the checksum
    assert lines[:2] == ["0 0", f"{epoch} 4"]
