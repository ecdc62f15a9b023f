"""Copies and cold reads within their bytes per second, which may change while the node runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import list_offset, values
from tests.node.test_topics_and_configs import alter
from tests.support.processes import wait_until

NOW_MS = SystemClock().now_ms()
UNLIMITED = str((1 << 63) - 1)
COPY, FETCH = (f"remote.log.manager.{what}.max.bytes.per.second" for what in ("copy", "fetch"))
SET = 0


def tiered(talk: Talk) -> object:
    """A topic of ten sealed segments."""
    made = talk.create(
        "t",
        remote_storage_enable="true",
        retention_ms="-1",
        local_retention_bytes="1",
        internal_segment_bytes="3000",
        file_delete_delay_ms="0",
    )
    for number in range(11):
        assert talk.produce_in_the_end(made.topic_id, [b"%d" % number + b"." * 2000], NOW_MS).error_code == 0
    return made.topic_id


def test_copies_keep_to_their_rate_until_it_is_altered(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    (tmp_path / "bucket").mkdir()
    node = start(firn_remote_url=f"file://{tmp_path}/bucket", **{COPY.replace(".", "_"): "10"})
    with node.client() as client:
        talk = Talk(client)
        tiered(talk)
        wait_until("the first copy", lambda: list_offset(talk, -5).offset == 0)
        # 2,000 bytes at 10 per second: the next one is due in minutes.
        assert talk.produce(talk.topic_id("t"), [b"." * 2000], NOW_MS).error_code == 0
        assert list_offset(talk, -5).offset == 0
        assert alter(talk, "", (COPY, SET, UNLIMITED), kind=4).error_code == ErrorCode.none
        wait_until("all copies", lambda: list_offset(talk, -5).offset == 10)


def test_cold_reads_keep_to_their_rate_until_it_is_altered(
    start: Callable[..., NodeThread], tmp_path: Path
) -> None:
    (tmp_path / "bucket").mkdir()
    node = start(firn_remote_url=f"file://{tmp_path}/bucket", **{FETCH.replace(".", "_"): "10"})
    with node.client() as client:
        talk = Talk(client)
        topic_id = tiered(talk)
        wait_until("segments to be gone", lambda: list_offset(talk, -4).offset == 10)

        def read(offset: int) -> list[bytes | None]:
            answer = talk.fetch(topic_id, offset, max_wait=200, partition_max_bytes=100)
            assert answer.error_code == ErrorCode.none
            return values(answer.records)

        wait_until("the first cold read", lambda: read(0) or read(3))
        assert read(6) == read(0) == []
        assert values(talk.fetch(topic_id, 10).records) != []
        assert alter(talk, "", (FETCH, SET, UNLIMITED), kind=4).error_code == ErrorCode.none
        for offset in (0, 6):
            wait_until("a cold read", lambda offset=offset: read(offset))  # type: ignore[misc]
