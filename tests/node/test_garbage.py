"""The garbage of a node is collected in short runs: little growth is collected, much is frozen."""

from __future__ import annotations

import gc
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from service.base.turns import TurnTimes
from service.node.gc_policy import MIDDLE, MOST_COLLECTED, YOUNG, GcPolicy

LITTLE = YOUNG * (MIDDLE + 3)  # so that something has become old
MUCH = 2 * MOST_COLLECTED


class Thing:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture
def full_looks() -> Iterator[list[int]]:
    """A number for each look at the oldest generation."""
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    looks: list[int] = []

    def told(phase: str, info: Mapping[str, Any]) -> None:
        if phase == "start" and info["generation"] == 2:
            looks.append(1)

    gc.callbacks.append(told)
    yield looks
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def test_python_does_not_look_at_all_that_lives_by_itself(full_looks: list[int]) -> None:
    GcPolicy(TurnTimes(), time.monotonic).begin()
    full_looks.clear()
    alive = [[n] for n in range(MUCH)]
    assert not full_looks
    assert len(alive) == MUCH


def test_a_heap_that_grew_little_is_collected(full_looks: list[int]) -> None:
    garbage = GcPolicy(TurnTimes(), time.monotonic)
    garbage.begin()
    full_looks.clear()
    thing = Thing()
    gone = weakref.ref(thing)
    alive = [[n] for n in range(LITTLE)]
    del thing
    garbage.check()
    assert len(full_looks) == 1
    assert gone() is None
    garbage.check()
    assert len(full_looks) == 1, "nothing has grown"
    assert alive


def test_a_heap_that_grew_much_is_frozen_until_it_doubles(
    full_looks: list[int],
) -> None:
    garbage = GcPolicy(TurnTimes(), time.monotonic, many=4 * MUCH)  # three blocks of memory each
    garbage.begin()
    full_looks.clear()
    thing = Thing()
    gone = weakref.ref(thing)
    alive = [[n] for n in range(MUCH)]
    del thing
    garbage.check()
    assert not full_looks
    assert gone() is not None
    while not full_looks:
        alive += [[n] for n in range(MUCH)]
        garbage.check()
        assert len(alive) < 50 * MUCH
    assert gone() is None


def test_objects_made_while_loading_are_frozen_uncollected(full_looks: list[int]) -> None:
    loading = True
    garbage = GcPolicy(TurnTimes(), time.monotonic, many=MUCH, is_loading=lambda: loading)
    garbage.begin()
    full_looks.clear()
    alive: list[object] = []
    for _ in range(5):
        alive += [[n] for n in range(MUCH)]
        garbage.check()
    alive += [[n] for n in range(MUCH)]
    loading = False
    garbage.check()
    garbage.check()
    assert not full_looks
    while not full_looks:
        alive += [[n] for n in range(MUCH)]
        garbage.check()
        assert len(alive) < 50 * MUCH


def test_nothing_is_looked_at_while_long_requests_are_answered(full_looks: list[int]) -> None:
    slices = 0
    garbage = GcPolicy(TurnTimes(), time.monotonic, many=MUCH, slices_taken=lambda: slices)
    garbage.begin()
    full_looks.clear()
    decoded: list[object] = []
    for _ in range(6 + sys.getallocatedblocks() // MUCH):  # as much again, whatever ran in this process
        decoded += [[n] for n in range(MUCH)]
        slices += 100
        garbage.check()
    assert not full_looks
    decoded += [[n] for n in range(MUCH)]
    garbage.check()
    assert len(full_looks) == 1, "there is time for it now"
    assert decoded


def test_garbage_of_long_requests_is_found_while_others_are_answered(full_looks: list[int]) -> None:
    """A refusal refers to itself by the frames that it came through, and they to the request."""
    slices = 0
    garbage = GcPolicy(TurnTimes(), time.monotonic, slices_taken=lambda: slices)
    garbage.begin()
    refused = Thing()
    gone = weakref.ref(refused)
    del refused
    decoded = []
    for n in range(LITTLE):
        slices += 1
        decoded.append([n])
    assert gone() is None
    assert not full_looks[1:], "by a look at the young alone"


def test_a_long_collection_is_named_as_what_held_the_loop(
    full_looks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = TurnTimes()
    GcPolicy(turns, time.monotonic).begin()
    monkeypatch.setattr("service.node.gc_policy.NOTICED_S", 0.0)
    gc.collect()
    turns.note_turn(0.0, 1.0)
    assert turns.longest[0].who.startswith("a collection of garbage, generation 2: ")
