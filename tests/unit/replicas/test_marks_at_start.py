"""The high watermark at start of a log whose archive was continued while its node was away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest

from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.metadata.records import RemoteLogRecord
from tests.support.one_of_three import ME, OTHER, TOPIC, one_of_three, partition, topic
from tests.unit.hot.logs import START_MS, batch

RECORDS, ARCHIVED = 3, 10
"""in our log, of epoch 4, none of them known to be committed; and in the archive"""


class Case(NamedTuple):
    isr: tuple[int, ...]
    committed_in: int
    """the epoch of the leader that has committed the archive's last manifest"""
    mark: int


@pytest.mark.parametrize(
    "case",
    [
        # The next leader has replaced what nobody else had of us: it is in the archive instead.
        pytest.param(Case((OTHER,), 5, 0), id="ours are not what the archive has"),
        # Who has records of an epoch has what its leader had below them.
        pytest.param(Case((OTHER,), 4, RECORDS), id="the archive is of our last leader"),
        pytest.param(Case((OTHER,), 3, RECORDS), id="the archive is of a leader before it"),
        pytest.param(Case((OTHER, ME), 5, RECORDS), id="who is in sync has what is committed"),
    ],
)
def test_a_log_of_the_archives_history_starts_with_its_high_watermark(case: Case, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with one_of_three(
            tmp_path, topic(), partition(0, ME, replicas=(ME, OTHER), leader_epoch=4)
        ) as node:
            for _ in range(RECORDS):
                await node.produce(acks=1)
        archive = RemoteLogRecord(
            topic_id=TOPIC,
            partition_id=0,
            version=1,
            manifest_key="manifest",
            leader_epoch=case.committed_in,
            start_offset=0,
            end_offset=ARCHIVED,
            segments=1,
            size_bytes=1000,
        )
        now = partition(0, OTHER, replicas=(ME, OTHER), isr=case.isr, leader_epoch=6)
        async with one_of_three(tmp_path, topic(), now, archive) as node:
            opened = node.broker.replicas.get(TOPIC, 0)
            assert opened is not None
            assert (opened.end_offset, opened.high_watermark) == (RECORDS, case.mark)

    asyncio.run(scenario())


def test_a_lost_high_watermark_does_not_show_half_of_a_transaction(tmp_path: Path) -> None:
    """The node's checkpoint is gone, and its log was flushed: nothing tells what is replicated of it."""

    async def scenario() -> None:
        replica = partition(0, ME, replicas=(ME, OTHER), leader_epoch=4)
        async with one_of_three(tmp_path, topic(), replica) as node:
            opened = node.broker.replicas.get(TOPIC, 0)
            assert opened is not None
            for sequence in range(2):
                one = batch(producer_id=7, epoch=0, sequence=sequence, is_transactional=True)
                opened.append(one, START_MS, VERIFICATION_OFF)
            opened.append_markers([Marker(7, 0, 1, True, 1)], START_MS)
        for checkpoint in tmp_path.rglob("replication-offset-checkpoint"):
            checkpoint.unlink()
        follows = partition(0, OTHER, replicas=(ME, OTHER), leader_epoch=5)
        async with one_of_three(tmp_path, topic(), follows) as node:
            opened = node.broker.replicas.get(TOPIC, 0)
            assert opened is not None
            ends = []
            for mark in (1, 2, 3):
                opened.set_follower_high_watermark(mark)
                ends.append((opened.high_watermark, opened.last_stable_offset))
            assert ends == [(1, 0), (2, 0), (3, 3)]

    asyncio.run(scenario())
