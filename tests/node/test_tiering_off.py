"""Tiering switched off for a topic, as in Kafka: the log starts at its local start, the archive goes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.world import system_world
from service.inspect.fsck import fsck
from service.remote.format.keys import HeadKey
from service.remote.reading.object_reader import open_head, open_named
from service.remote.stores.obstore_store import open_store
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import list_offset
from tests.node.test_delete_records import NOW_MS, delete, fill, start_offset
from tests.node.test_topics_and_configs import alter
from tests.support.processes import copy_as_crashed, wait_until

Start = Callable[..., NodeThread]

OK, OUT_OF_RANGE = ErrorCode.none, ErrorCode.offset_out_of_range
SET, DELETE = 0, 1
OFF = (("remote.storage.enable", SET, "false"), ("remote.log.delete.on.disable", SET, "true"))
ON = (("remote.storage.enable", SET, "true"), ("remote.log.delete.on.disable", DELETE, None))
ALL = 200
LAST_TIERED, BORDER = 179, 140
"""A segment holds 20 records, and the last is active: two more are the most that is kept in the end."""


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def launch(start: Start, bucket: Path) -> Start:
    def launch() -> NodeThread:
        return start(
            firn_remote_url=f"file://{bucket}",
            firn_remote_object_grace_ms="100",
            firn_cut_interval_ms="-1",  # a cut that is kept for longer than the grace lacks what has gone
            log_retention_check_interval_ms="100",
            log_flush_offset_checkpoint_interval_ms="200",
        )

    return launch


def change(talk: Talk, *changes: tuple[str, int, str | None]) -> None:
    answer: Any = alter(talk, "t", *changes)
    assert answer.error_code == OK, answer.error_message


def fill_both(talk: Talk) -> tuple[Any, int]:
    """Topic "t" in two tiers; its id and the first offset that is local."""
    topic_id = fill(
        talk,
        ALL // 10,
        remote_storage_enable="true",
        local_retention_bytes="10000",
        file_delete_delay_ms="0",
        retention_ms="-1",
    )

    border = 0

    def has_settled() -> bool:
        nonlocal border
        border = int(list_offset(talk, -4).offset)
        return border >= BORDER and list_offset(talk, -5).offset == LAST_TIERED

    wait_until("segments to be offloaded, and local ones to go", has_settled)
    return topic_id, border


def objects(bucket: Path) -> list[Path]:
    return sorted(bucket.glob("data/*/0/*.seg"))


def values(talk: Talk, topic_id: Any, offset: int) -> int:
    """Return the number of record bytes that a fetch returns."""
    found = talk.fetch(topic_id, offset, max_wait=5000)
    assert found.error_code == OK
    return len(found.records)


def test_the_log_begins_with_what_is_here_and_the_archive_goes(launch: Start, bucket: Path) -> None:
    node = launch()
    with node.client() as client:
        talk = Talk(client)
        topic_id, border = fill_both(talk)
        assert objects(bucket)
        change(talk, *OFF)
        assert start_offset(talk) == list_offset(talk, -4).offset == border
        assert talk.fetch(topic_id, border - 1).error_code == OUT_OF_RANGE
        wait_until("all objects to go", lambda: not objects(bucket))
        wait_until("nothing to be tiered any more", lambda: list_offset(talk, -5).offset == -1)
        # What lay in both tiers is still here, and stays: nothing but total retention takes it now.
        assert values(talk, topic_id, border)
        assert talk.produce(topic_id, [b"more"], NOW_MS).base_offset == ALL
        store = open_store(f"file://{bucket}", world=system_world())
        chain = open_named(store, open_head(store, HeadKey(topic_id, 0)))
        assert (chain.segments, chain.start_offset, chain.end_offset) == (0, 0, 0)
        assert not fsck(store).errors
        assert delete(talk, border + 5) == (OK, border + 5)
    node.stop()
    with launch().client() as client:
        talk = Talk(client)
        wait_until("the partition to be there", lambda: talk.fetch(topic_id, border + 5).error_code == OK)
        assert (start_offset(talk), list_offset(talk, -1).offset) == (border + 5, ALL + 1)
        assert talk.produce_in_the_end(topic_id, [b"more"], NOW_MS).base_offset == ALL + 1


def test_tiering_that_is_switched_on_again_copies_all_local_segments(launch: Start, bucket: Path) -> None:
    node = launch()
    with node.client() as client:
        talk = Talk(client)
        topic_id, border = fill_both(talk)
        before = objects(bucket)
        change(talk, *OFF)
        wait_until("all objects to go", lambda: not objects(bucket))
        change(talk, *ON)
        wait_until("segments to be offloaded", lambda: list_offset(talk, -5).offset > border)
        assert not set(objects(bucket)) & set(before)
        for _ in range(10):
            assert talk.produce(topic_id, [b"x" * 2000] * 2, NOW_MS).error_code == OK
        wait_until("local copies to go", lambda: list_offset(talk, -4).offset > border)
        assert start_offset(talk) == border
        assert values(talk, topic_id, border)
        assert not fsck(open_store(f"file://{bucket}", world=system_world())).errors
    node.stop()
    with launch().client() as client:
        talk = Talk(client)
        wait_until("the partition to be there", lambda: talk.fetch(topic_id, border).error_code == OK)
        assert start_offset(talk) == border
        assert values(talk, topic_id, border)


def test_without_the_word_that_data_may_go_it_stays_on(launch: Start, bucket: Path) -> None:
    with launch().client() as client:
        talk = Talk(client)
        topic_id, border = fill_both(talk)
        before = objects(bucket)
        for refused in (OFF[:1], (("remote.storage.enable", DELETE, None),)):
            answer: Any = alter(talk, "t", *refused)
            assert answer.error_code == ErrorCode.invalid_config
            assert "without deleting remote data" in answer.error_message
        change(talk, OFF[1])
        assert values(talk, topic_id, border - 1)
        assert start_offset(talk) == 0
        assert set(before) <= set(objects(bucket))


def test_a_crash_right_after_the_change_brings_nothing_back(
    launch: Start, bucket: Path, tmp_path: Path
) -> None:
    node = launch()
    with node.client() as client:
        talk = Talk(client)
        topic_id, border = fill_both(talk)
        files = (node.data / "t-0").glob
        wait_until("files to go", lambda: min(int(path.stem) for path in files("*.log")) == border)
        checkpoint = (node.data / "log-start-offset-checkpoint").read_bytes()
        bucket.rename(tmp_path / "away")  # so that nothing of the archive changes before the crash
        change(talk, *OFF)
        copy = copy_as_crashed(node.data, tmp_path / "after the crash")
    node.stop()
    (copy / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (copy / "log-start-offset-checkpoint").write_bytes(checkpoint)
    shutil.rmtree(bucket, ignore_errors=True)
    (tmp_path / "away").rename(bucket)
    shutil.rmtree(node.data)
    copy.rename(node.data)
    with launch().client() as client:
        talk = Talk(client)
        wait_until("the partition to be there", lambda: talk.fetch(topic_id, border).error_code == OK)
        assert start_offset(talk) == border
        wait_until("all objects to go", lambda: not objects(bucket))
        assert values(talk, topic_id, border)
