"""Times at which the keeper takes cuts, and for how long it lets gates be closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service.tiering.cuts.round import CutStep
from tests.unit.tiering.cut_world import OTHER, TOPIC, CutWorld, Harm, Log

BEGIN, TAKE = CutStep.BEGIN, CutStep.TAKE


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    world = CutWorld(tmp_path)
    world.logs = {(TOPIC, 0): Log(1, 5), (TOPIC, 1): Log(2, 7), (OTHER, 0): Log(3, 2)}
    world.begin()
    return world


def test_brokers_that_miss_the_hold_have_more_time_at_the_next_tries(world: CutWorld) -> None:
    world.cluster.harm = lambda broker_id, step: Harm.REFUSED if (broker_id, step) == (2, TAKE) else None
    for _ in range(7):
        world.round()
    holds = [hold_ms for step, _, hold_ms in world.cluster.fakes[1].asked if step is BEGIN]
    assert holds == [20, 20, 40, 40, 80, 80, 160]
    assert world.manager.metrics.cut_keeper.hold_ms == 160
    world.cluster.harm = lambda broker_id, step: None
    for _ in range(17):
        world.round()
    assert world.newest().is_exact
    assert world.manager.metrics.cut_keeper.hold_ms == 80


def test_a_broker_that_refuses_gets_no_more_time(world: CutWorld) -> None:
    world.cluster.harm = lambda broker_id, step: Harm.REFUSED if (broker_id, step) == (2, BEGIN) else None
    for _ in range(7):
        world.round()
    assert world.manager.metrics.cut_keeper.hold_ms == 20


def test_a_process_that_becomes_the_keeper_takes_a_cut_at_once(tmp_path: Path) -> None:
    world = CutWorld(tmp_path, brokers=(1,))
    world.logs = {(TOPIC, 0): Log(1, 5)}
    keeper = world.manager.cuts
    assert keeper is not None

    async def become_keeper() -> None:
        running = asyncio.create_task(keeper.run())
        await asyncio.sleep(0)
        assert not keeper.may_cut
        for _ in range(2):
            await world.manager.run_once()
        async with asyncio.timeout(5):
            while world.cuts_there() is None:
                await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])

    world.do(become_keeper())
