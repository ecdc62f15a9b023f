"""Moments that storms hardly ever meet, each as a scenario: it shows the planted bug, and nothing without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import pytest
from kio.schema.errors import ErrorCode

from service.replication.follower import FollowerSettings
from service.replication.follower_events import Append, FollowerFetchResponse, PartitionFetchResponse
from service.replication.leader import (
    BrokerStatus,
    LeaderSettings,
    Leadership,
    LeaderState,
    Unknown,
)
from service.replication.replica_fetch import ReplicaFetch
from tests.property.replication.model import ModelLog, tip_of
from tests.property.replication.plants import PLANTS, SELDOM_SHOW, Plant

SETTLE_MS: Final = 1_000
NONE: Final = ErrorCode.none
TIP: Final = tip_of(0)


class Header(NamedTuple):
    base_offset: int
    next_offset: int
    partition_leader_epoch: int


def log_of(end: int, epoch: int = 4) -> ModelLog:
    log = ModelLog()
    log.append(epoch, list(range(end)))
    return log


def leader_of(plant: Plant, isr: tuple[int, ...]) -> LeaderState:
    """Broker 1 leads in epoch 5, with ten records."""
    log = log_of(10)
    log.note_epoch(5, 10)
    return plant.leader(
        1,
        LeaderSettings(100, SETTLE_MS),
        {one: BrokerStatus(one, is_active=True) for one in (1, 2, 3)},
        log,
        Leadership(5, 1, (1, 2, 3), isr),
        high_watermark=0,
        min_insync_replicas=1,
        now_ms=0,
    )


def commits_what_a_follower_had_in_another_epoch(plant: Plant) -> bool:
    """Broker 1 hears of epochs 6, which 2 led, and 7, in which it leads again, at once. Broker 3 has cut its
    log for 2 since it said that it has ten records."""
    leader = leader_of(plant, (1, 2, 3))
    leader.fetched(ReplicaFetch(3, 3, 5, 10, 4), None, 1)
    leader.image(Leadership(7, 3, (1, 2, 3), (1, 3)), 2)
    return leader.high_watermark > 0


def forgets_a_proposal_that_may_still_be_decided_upon(plant: Plant) -> bool:
    """The first copy of a proposal hangs in the network, the second is refused as broker 3 is fenced for a
    moment. Broker 3 would be in sync by the first, and lack what was committed without it."""
    leader = leader_of(plant, (1, 2))
    leader.fetched(ReplicaFetch(2, 2, 5, 10, 4), None, 1)
    leader.fetched(ReplicaFetch(3, 3, 5, 10, 4), None, 1)
    assert leader.proposal is not None
    number = leader.proposal.number
    leader.answered(number, Unknown(), 1, 300)
    leader.answered(number, ErrorCode.ineligible_replica, 400, 500)
    return 3 not in leader.counted


def believes_an_answer_of_another_epoch(plant: Plant) -> bool:
    """The answer to a fetch of epoch 5 arrives when the partition follows in epoch 6; the leader is the same,
    and so is the log's end."""
    machine, log = plant.follower(FollowerSettings()), log_of(10)
    machine.assign(TIP, log, 5, 0, is_clean=True)
    fetch = machine.next_fetch(0)
    assert fetch is not None
    machine.assign(TIP, log, 6, 0, is_clean=True)
    return bool(
        machine.answered(
            fetch.number, FollowerFetchResponse(NONE, 1, [PartitionFetchResponse(TIP, size=9)]), 0
        )
    )


def appends_though_it_leads(plant: Plant) -> bool:
    """An answer is half appended when the node becomes the partition's leader."""
    machine = plant.follower(FollowerSettings())
    machine.assign(TIP, log_of(10), 5, 0, is_clean=True)
    fetch = machine.next_fetch(0)
    assert fetch is not None
    (append,) = machine.answered(
        fetch.number, FollowerFetchResponse(NONE, 1, [PartitionFetchResponse(TIP, size=9)]), 0
    )
    assert isinstance(append, Append)
    machine.remove(TIP)
    return machine.is_wanted(append.number)


def takes_what_its_leader_fetched_after_it_was_deposed(plant: Plant) -> bool:
    """The leader of epoch 5 looks at a fetch from offset 10, is deposed, cuts its log at 8, fetches what the
    leader of epoch 6 has, and only then reads what it sends."""
    log = log_of(10)
    found = plant.fits(
        [Header(10, 12, 6)],
        start_offset=0,
        end_offset=log.log_end_offset,
        latest_epoch=log.latest_epoch,
        leader_epoch=5,
        may_lack=False,
    )
    return found.accepted > 0


SCENARIOS: Final[dict[str, Callable[[Plant], bool]]] = {
    "EndsOfAnotherEpoch": commits_what_a_follower_had_in_another_epoch,
    "RestoresThoughACopyIsOnItsWay": forgets_a_proposal_that_may_still_be_decided_upon,
    "OldAnswersCount": believes_an_answer_of_another_epoch,
    "WorksOnForAnotherLeader": appends_though_it_leads,
    "later_epochs_fit": takes_what_its_leader_fetched_after_it_was_deposed,
}


@pytest.mark.parametrize("name", SELDOM_SHOW)
def test_the_moment_shows_the_planted_bug_and_nothing_else(name: str) -> None:
    assert SCENARIOS[name](PLANTS[name])
    assert not SCENARIOS[name](Plant())
