"""Fetch and ListOffsets on a whole node: waiting, epochs, byte budgets."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.disk import SystemDisk
from service.wire.api import ApiKey, request_module
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, values
from tests.support.wire import RawConnection, decode_response, encode_request, schema


def test_a_fetch_with_nothing_to_say_waits_and_is_woken(talk: Talk, start: Callable[..., NodeThread]) -> None:
    topic_id = talk.create("t").topic_id
    began = time.monotonic()
    assert values(talk.fetch(topic_id, 0, max_wait=200).records) == []
    assert time.monotonic() - began >= 0.15

    host, port = talk.client.address.split(":")
    other = Talk(type(talk.client)(host, int(port)))
    later = threading.Timer(0.2, lambda: other.produce(topic_id, [b"woken"], DAY))
    later.start()
    assert values(talk.fetch(topic_id, 0, max_wait=20_000).records) == [b"woken"]
    later.join()
    other.client.close()


def test_a_waiting_fetch_gives_way_to_later_requests(talk: Talk) -> None:
    """Requests of one connection are answered in order: what waits for news alone gives way to the next."""
    talk.create("t")
    fetch, versions = schema(1, 12), schema(18, 3)
    part = fetch.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=1 << 20,
    )  # fmt: skip
    waits = fetch.FetchRequest(
        replica_id=-1, max_wait=timedelta(hours=1), min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=-1, topics=(fetch.FetchTopic(topic="t", partitions=(part,)),),
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip
    behind = versions.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    with RawConnection(talk.client.address) as connection:
        for pause_s in (0.0, 0.1):  # it comes with the fetch, or finds it asleep
            connection.send_frame(encode_request(waits, 7))
            time.sleep(pause_s)
            connection.send_frame(encode_request(behind, 8))
            first, second = connection.receive_frame(), connection.receive_frame()
            told = decode_response(waits, first).responses[0].partitions[0]
            assert (told.error_code, bytes(told.records or b"")) == (ErrorCode.none, b"")
            assert decode_response(behind, second).error_code == ErrorCode.none
        assert connection.call(behind).error_code == ErrorCode.none


def test_a_log_from_before_an_erasure_shows_consumers_nothing(
    start: Callable[..., NodeThread],
) -> None:
    """What it gave them would be records of an order that is done."""
    node = start()
    client = node.client()
    talk = Talk(client)
    topic_id = talk.create("t").topic_id
    talk.produce(topic_id, [b"erased"], DAY)
    partition = node.node.parts.broker.replicas.find("t", 0)
    assert partition is not None
    partition.log.has_erased_records = lambda: True
    answer = talk.fetch(topic_id, 0, max_wait=0)
    assert (answer.error_code, values(answer.records)) == (ErrorCode.none, [])
    partition.log.has_erased_records = lambda: False
    assert values(talk.fetch(topic_id, 0).records) == [b"erased"]
    client.close()


def test_min_bytes_gathers_several_appends(talk: Talk) -> None:
    topic_id = talk.create("t").topic_id
    host, port = talk.client.address.split(":")
    other = Talk(type(talk.client)(host, int(port)))

    def drip() -> None:
        for n in range(5):
            time.sleep(0.05)
            other.produce(topic_id, [b"%d" % n + b"." * 300], DAY)

    thread = threading.Thread(target=drip)
    thread.start()
    found = values(talk.fetch(topic_id, 0, max_wait=20_000, min_bytes=1500).records)
    thread.join()
    other.client.close()
    assert len(found) >= 4


def test_pages_evicted_from_the_page_cache_are_read_by_threads(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    node, source = start(), random.Random(7)
    client = node.client()
    talk = Talk(client)
    topic_id = talk.create("t").topic_id
    produced = [source.randbytes(size) for size in (900_000, 50, 5_000, 900_000, 30_000, 900_000, 700)]
    for value in produced:
        talk.produce(topic_id, [value], DAY)
    (log,) = tmp_path.rglob("t-0/*0.log")
    with log.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if SystemDisk().is_resident(file.fileno(), log.stat().st_size, 0):
            pytest.skip("this file system keeps its pages, or cannot tell")
    answer = talk.fetch(topic_id, 0, partition_max_bytes=4 << 20, max_bytes=4 << 20)
    assert values(answer.records) == produced
    serving = node.node.parts.serving
    assert serving is not None
    # Which pages the system gave up is its own: those that tell where the offset is, or those behind.
    assert serving.seek_wait.snapshot().observed + node.node.parts.network.device_reads > 0
    client.close()


def test_a_fetch_does_not_wait_at_the_end_of_a_segment(talk: Talk) -> None:
    """What is asked for lies ready, in segments behind the first one."""
    topic_id = talk.create("t", internal_segment_bytes="500").topic_id
    for n in range(12):
        talk.produce(topic_id, [b"%02d" % n + b"." * 300], DAY)
    began = time.monotonic()
    found = values(talk.fetch(topic_id, 1, max_wait=20_000, min_bytes=3500).records)
    assert time.monotonic() - began < 10
    assert [value[:2] for value in found if value] == [b"%02d" % n for n in range(1, 12)]
    assert len(values(talk.fetch(topic_id, 0, partition_max_bytes=1000).records)) == 2


def test_epochs_and_offsets_that_cannot_be_are_refused(talk: Talk) -> None:
    topic_id = talk.create("t").topic_id
    talk.produce(topic_id, [b"a", b"b"], DAY)
    assert talk.fetch(topic_id, 3).error_code == ErrorCode.offset_out_of_range
    assert talk.fetch(topic_id, -1).error_code == ErrorCode.offset_out_of_range
    assert talk.fetch(topic_id, 0, current_leader_epoch=7).error_code == ErrorCode.unknown_leader_epoch
    assert talk.fetch(topic_id, 0, partition=9).error_code == ErrorCode.unknown_topic_or_partition
    assert talk.fetch(topic_id, 0, last_fetched_epoch=5).error_code == ErrorCode.offset_out_of_range


def test_a_restart_fences_the_old_epoch(start: Callable[..., NodeThread]) -> None:
    node = start()
    with node.client() as client:
        topic_id = Talk(client).create("t").topic_id
        Talk(client).produce(topic_id, [b"a"], DAY)
    node.stop()
    with start().client() as client:
        talk = Talk(client)
        assert talk.fetch(topic_id, 0, current_leader_epoch=0).error_code == ErrorCode.fenced_leader_epoch
        talk.produce(topic_id, [b"b"], DAY)
        module = request_module(ApiKey.OFFSET_FOR_LEADER_EPOCH)
        asked = module.OffsetForLeaderPartition(partition=0, leader_epoch=0)
        answer = talk(
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            "OffsetForLeaderEpochRequest",
            topics=(module.OffsetForLeaderTopic(topic="t", partitions=(asked,)),),
        )
        (end,) = answer.topics[0].partitions
        assert (end.error_code, end.leader_epoch, end.end_offset) == (0, 0, 1)
        diverging = talk.fetch(topic_id, 2, last_fetched_epoch=0).diverging_epoch
        assert (diverging.epoch, diverging.end_offset) == (0, 1)


def test_min_bytes_across_segments_is_not_waited_for(talk: Talk) -> None:
    """More than the least that is wanted is there, but no segment holds it alone."""
    topic_id = talk.create("t", internal_segment_bytes="20000").topic_id
    for n in range(20):
        talk.produce(topic_id, [b"%d" % n + b"." * 4000], DAY + n)
    began = time.monotonic()
    found = values(talk.fetch(topic_id, 0, max_wait=60_000, min_bytes=60_000).records)
    assert time.monotonic() - began < 30
    assert len(found) == 20


def test_the_first_batch_comes_whole_whatever_the_budget(talk: Talk) -> None:
    topic_id = talk.create("t").topic_id
    talk.produce(topic_id, [b"x" * 5000], DAY)
    assert values(talk.fetch(topic_id, 0, partition_max_bytes=10, max_bytes=10).records) == [b"x" * 5000]


def test_a_partition_asked_for_twice_is_refused_twice(talk: Talk) -> None:
    talk.create("t")
    module = request_module(ApiKey.LIST_OFFSETS)
    asked = module.ListOffsetsPartition(partition_index=0, timestamp=-1)
    answer = talk(
        ApiKey.LIST_OFFSETS,
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        topics=(module.ListOffsetsTopic(name="t", partitions=(asked, asked)),),
        timeout=1000,
    )
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.invalid_request] * 2
