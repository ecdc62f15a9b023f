"""Cost of the assignors with 1,000 members and 10,000 partitions, and the longest turn of the loop."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Final
from uuid import UUID

from bench.measures import Measured
from service.base.turn_queues import SLICE_S
from service.groups.assignors import range as range_assignor
from service.groups.assignors import uniform
from service.groups.assignors.spec import Targets, TopicSpec
from service.groups.consumer.target import Basis, make_targets
from service.node.gc_policy import MIDDLE, NEVER, YOUNG

MEMBERS = 1000
TOPICS = 1000
PARTITIONS = 10
ROUNDS = 5


def assignors() -> list[Measured]:
    """Measure each assignor's whole time and its longest turn, at its best of some rounds: the first
    assignment, and the one after a member has left."""
    figures = []
    gc.set_threshold(YOUNG, MIDDLE, NEVER)  # as a node does
    for name in (uniform.NAME, range_assignor.NAME):
        for kind in SUBSCRIPTIONS:
            fresh = [_stepped(name, kind, {}, 0) for _ in range(ROUNDS)]
            again = [_stepped(name, kind, fresh[0][2], 1) for _ in range(ROUNDS)]
            for what, found in ((f"{name}, {kind}", fresh), (f"{name}, {kind}, one has left", again)):
                figures += [
                    Measured(f"{what}: targets, records", "ms", 300, min(f[0] for f in found) * 1e3),
                    Measured(f"{what}: longest turn", "ms", 10, min(f[1] for f in found) * 1e3),
                ]
    return figures


SUBSCRIPTIONS: Final[Mapping[str, Callable[[int, list[str]], list[str]]]] = {
    "all to everything": lambda member, names: names,
    "each to its own hundred": lambda member, names: [
        names[(member * 7 + n * 9) % TOPICS] for n in range(100)
    ],
    "half to everything, half to half": lambda member, names: names if member % 2 else names[: TOPICS // 2],
    "each to all but one": lambda member, names: names[:member] + names[member + 1 :],
}
"""What each member is subscribed to."""


def _stepped(name: str, kind: str, targets: Targets, gone: int) -> tuple[float, float, Targets]:
    topics = {f"topic-{number:04}": TopicSpec(UUID(int=number + 1), PARTITIONS) for number in range(TOPICS)}
    names, of = sorted(topics), SUBSCRIPTIONS[kind]
    subscriptions: dict[str, tuple[str | None, frozenset[str]]] = {
        f"member-{member:04}": (None, frozenset(of(member, names))) for member in range(gone, MEMBERS)
    }
    gc.collect()  # a group's members are old
    steps = make_targets(Basis("g", 1, name, subscriptions, topics, targets))
    began = before = time.perf_counter()
    longest = 0.0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            now = time.perf_counter()
            return now - began, max(longest, now - before), e.value.targets
        now = time.perf_counter()
        if now - before >= SLICE_S:
            longest, before = max(longest, now - before), now
