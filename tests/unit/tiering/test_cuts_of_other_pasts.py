"""Cuts whose tails, chains or documents are not, or no longer, what the keeper would have expected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.remote.reading.tails import index_tails
from service.tiering.cuts.round import CutStep
from service.wire.cuts import TakeCutRequest, TakeCutResponse
from tests.unit.tiering.cut_world import GRACE_MS, OTHER, TOPIC, CutWorld, Log


@pytest.fixture
def world(tmp_path: Path) -> CutWorld:
    world = CutWorld(tmp_path)
    world.logs = {(TOPIC, 0): Log(1, 5), (TOPIC, 1): Log(2, 7), (OTHER, 0): Log(3, 2)}
    world.begin()
    return world


def test_tails_of_a_leader_before_complete_no_cut_of_one_with_other_records(world: CutWorld) -> None:
    """After an unclean election tails reach to the cut's end, but with records that were taken back."""
    world.round()
    log = world.logs[TOPIC, 1]
    log.leader, log.epoch, log.saved, log.end, log.waits = 3, 4, 0, 6, True
    world.round()
    assert (world.numbers(), world.complete()) == ([1, 2], [1])
    log.waits = False
    world.round()
    assert (world.numbers(), world.complete()) == ([1, 2, 3], [1, 3])


def test_a_chain_that_a_later_leader_continues_while_the_cut_is_saved_is_looked_at(world: CutWorld) -> None:
    world.logs[TOPIC, 0].waits = True
    answer = world.cluster.fakes[1].answer

    async def meanwhile(request: TakeCutRequest) -> TakeCutResponse:
        if request.step == CutStep.SAVE:
            world.commit_chain((TOPIC, 0), 9, epoch=8)
        return await answer(request)

    world.cluster.fakes[1].answer = meanwhile  # type: ignore[method-assign]
    world.round()
    assert (world.numbers(), world.complete()) == ([1], [])


def test_cuts_that_are_never_complete_are_forgotten_when_they_are_not_kept(world: CutWorld) -> None:
    log, looked = world.logs[TOPIC, 0], 0
    log.waits = True

    def entry(*place: Any) -> None:
        nonlocal looked
        looked += 1

    for _ in range(50):
        log.end += 1
        world.clock.advance(GRACE_MS)
        world.round()
    assert len(world.numbers()) < 5
    keeper = world.manager.cuts
    assert keeper is not None
    keeper._pending._entry_of = entry
    world.do(keeper._pending.move(world.manager._context))
    assert looked < 5


@pytest.mark.parametrize("lost", [1, 2])
def test_a_new_keeper_goes_on_although_the_newest_documents_are_lost(world: CutWorld, lost: int) -> None:
    world.round()
    for end in (20, 30, 40):
        world.logs[TOPIC, 1].end = end
        world.round()
    cuts = world.cuts_there()
    assert cuts is not None
    world.bucket.delete([ref.key for ref in cuts.kept[-lost:]])
    world.reboot()
    world.begin()
    for _ in range(2):
        world.logs[TOPIC, 1].end += 1
        world.round()
    assert (world.numbers(), world.voids()) == ([1, 2, 3, 4, 5, 6], 0)
    assert world.complete()[-2:] == [5, 6]
    tails = index_tails(world.bucket, world.newest().tails)
    assert tails.pieces((TOPIC, 1), 0, 42).reaches == 42
