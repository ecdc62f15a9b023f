"""The high watermark at start of a log whose archive was continued while its node was away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

import pytest

from service.metadata.records import RemoteLogRecord
from tests.support.one_of_three import ME, OTHER, TOPIC, one_of_three, partition, topic

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
