"""Any fetch in a replica's name is answered, and no high watermark passes what followers have."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from tests.support.followers import ALL_THREE, EPOCH, SPREAD, Followed, produced
from tests.support.one_of_three import HIDDEN, OTHER, one_of_three

LEAST, MOST = -(2**63), 2**63 - 1
FETCHES = 1_500


@pytest.mark.parametrize("seed", range(4))
def test_nothing_that_is_asked_moves_the_mark_too_far(tmp_path: Path, seed: int) -> None:
    """Seed: the parameter."""
    chance = random.Random(seed)

    def small(value: int) -> int:
        return chance.choice([value, value, value, value - 1, value + 1, -1, -2, 0, 2**31 - 1, -(2**31)])

    def great(value: int) -> int:
        near = chance.choice([value, value, value, value - 1, value + 1, -1, LEAST, MOST])
        return max(LEAST, min(MOST, near))

    async def scenario() -> None:
        answers: Counter[ErrorCode] = Counter()
        async with asyncio.timeout(60), one_of_three(tmp_path, *SPREAD) as node:
            one = Followed(node)
            had = {OTHER: 0, HIDDEN: 0}
            mark = 0
            for number in range(FETCHES):
                if not number % 20:
                    await produced(node, 0, acks=1)
                answer = await one.fetch_all(
                    small(chance.choice(ALL_THREE)),
                    great(chance.randrange(one.partition.end_offset + 1)),
                    epoch=small(EPOCH),
                    last_epoch=chance.choice([-1, small(EPOCH)]),
                    broker_epoch=great(chance.choice([20, 30])),
                    start=great(0),
                    session_id=chance.choice([0, 0, small(5)]),
                    session_epoch=small(chance.choice([-1, 0, 1])),
                    most=small(1_000),
                    max_bytes=small(1_000),
                    min_bytes=small(1),
                )
                answers[ErrorCode(answer.error_code)] += 1
                for topic in answer.responses:
                    answers.update(ErrorCode(found.error_code) for found in topic.partitions)
                for follower in had:
                    had[follower] = max(had[follower], one.of(follower).end_offset)
                assert mark <= one.partition.high_watermark <= min(had.values())
                mark = one.partition.high_watermark
                assert max(had.values()) <= one.partition.end_offset
            assert mark > 0
            assert set(answers) >= {
                ErrorCode.none,
                ErrorCode.fenced_leader_epoch,
                ErrorCode.unknown_leader_epoch,
                ErrorCode.not_leader_or_follower,
                ErrorCode.offset_out_of_range,
                ErrorCode.fetch_session_id_not_found,
            }

    asyncio.run(scenario())
