"""What assignors cost: 1,000 members and 10,000 partitions, with the longest step, which holds the loop."""

from __future__ import annotations

import time
from uuid import UUID

from bench.measures import Measured
from service.groups.assignors import range as range_assignor
from service.groups.assignors import uniform
from service.groups.assignors.spec import Assignor, Targets, Topic
from service.groups.consumer.target import Basis, made

MEMBERS = 1000
TOPICS = 1000
PARTITIONS = 10
ROUNDS = 5


def assignors() -> list[Measured]:
    """Of each assignor, all of it and its longest step, at its best of some rounds: from nothing, and again
    after a member has left."""
    figures = []
    assigned: list[tuple[str, Assignor, bool]] = [
        ("uniform", uniform.assign, False),
        ("uniform, mixed subscriptions", uniform.assign, True),
        ("range", range_assignor.assign, False),
        ("range, mixed subscriptions", range_assignor.assign, True),
    ]
    for name, _, is_mixed in assigned:
        fresh = [_stepped(name.split(",")[0], is_mixed, {}, 0) for _ in range(ROUNDS)]
        targets = fresh[0][2]
        again = [_stepped(name.split(",")[0], is_mixed, targets, 1) for _ in range(ROUNDS)]
        for what, found in (("", fresh), (", one has left", again)):
            figures += [
                Measured(
                    f"{name}{what}: targets and their records", "ms", 300, min(f[0] for f in found) * 1e3
                ),
                Measured(f"{name}{what}: longest step", "ms", 10, min(f[1] for f in found) * 1e3),
            ]
    return figures


def subscriptions(is_mixed: bool, gone: int) -> dict[str, tuple[str | None, frozenset[str]]]:
    """Everybody to everything; or everybody to its own hundred topics of the thousand."""
    names = [f"topic-{number:04}" for number in range(TOPICS)]
    everything = frozenset(names)
    found = {}
    for member in range(gone, MEMBERS):
        own = frozenset(names[(member * 7 + step * 9) % TOPICS] for step in range(100))
        found[f"member-{member:04}"] = (None, own if is_mixed else everything)
    return found


def _stepped(name: str, is_mixed: bool, targets: Targets, gone: int) -> tuple[float, float, Targets]:
    topics = {f"topic-{number:04}": Topic(UUID(int=number + 1), PARTITIONS) for number in range(TOPICS)}
    steps = made(Basis("g", 1, name, subscriptions(is_mixed, gone), topics, targets))
    began = before = time.perf_counter()
    longest = 0.0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            now = time.perf_counter()
            return now - began, max(longest, now - before), e.value.targets
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
