"""Draws and plays a history: first the kinds of acts (swarm testing), then the acts.

Each history runs in a forked process of its own: all begin in the same state, their side effects end with the
process, and the garbage collector need not run.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from simulator.acts import Act, perform
from simulator.apart import apart
from simulator.loop import Stuck
from simulator.model import Violation
from simulator.trace import Line
from simulator.world import SimWorld

ALWAYS: Final = {"create_topic": 4, "produce": 30, "wait": 10, "examine": 6}
SOMETIMES: Final = {
    "produce_idempotent": 20,
    "commit_offsets": 12,
    "join_group": 12,
    "delete_topic": 2,
    "delete_records": 6,
    "alter_topic": 3,
    "alter_cluster": 3,
    "kill": 6,
    "lose_power": 5,
    "stop": 4,
    "read_cold": 4,
    "pause": 3,
    "jump_clock": 3,
    "disk_faults": 5,
    "store_faults": 8,
}
"""How often each comes where it exists. A history has about half of them."""
SELDOM: Final = {
    "restore_disk": 5,
    "lose_partition": 2,
    "lose_metadata": 1,
    "flip_bit": 3,
    "clone_disk": 2,
    "roll_back_bucket": 4,
    "empty_bucket": 1,
    "new_disk": 2,
    "without_url": 2,
    "damage_shared": 4,
}
"""Those of which a history has one or none: after some of them little is left to be judged."""
BESIDE: Final = {"refuse_objects": 6}
"""Faults of some objects, with an oracle of their own. A few histories without a past have one."""
_BESIDE_IN: Final = 6
_WITH: Final = {
    "disk_faults": ("disk_heals", 4),
    "store_faults": ("store_heals", 4),
    "restore_disk": ("copy_disk", 8),
    "roll_back_bucket": ("copy_bucket", 8),
    "damage_shared": ("repair", 3),
}


@dataclass(frozen=True)
class Plan:
    """Parameters and acts of a history."""

    seed: int
    log_dirs: int
    acts: tuple[Act, ...]
    tiered: bool = False
    """in the cluster world: whether the nodes have a bucket"""
    secured: bool = False
    """in the cluster world: whether listeners are SASL_SSL, and an authorizer is asked"""
    transactional: bool = False
    """in the cluster world: whether there are groups and transactions"""
    cutting: bool = False
    """in the cluster world: whether cuts are taken often"""
    rewriting: bool = False
    """in the cluster world: whether keys are erased and segments merged; cuts are taken then, too"""


@dataclass
class Outcome:
    """Result of a history."""

    seed: int
    problem: str | None
    """the broken promise; None without one"""
    digest: str
    events: int
    virtual_s: float
    real_s: float
    lines: list[Line] = field(default_factory=list)
    """for the transcript; of failures only"""
    calls: dict[str, int] = field(default_factory=dict)


def draw(seed: int, only: Sequence[str] | None = None) -> Plan:
    """Draw the history of `seed`; `only`: the kinds of acts beside those that always exist."""
    random = Random(seed)
    odds = dict(ALWAYS)
    seldom = random.choice((*SELDOM, *[""] * 4))
    for kind, weight in {**SOMETIMES, **SELDOM, **(BESIDE if only else {})}.items():
        exists = kind == seldom if kind not in SOMETIMES else random.random() < 0.5
        if exists if only is None else kind in only:
            odds[kind] = weight
            if kind in _WITH:
                other, its_weight = _WITH[kind]
                odds[other] = its_weight
    kinds = random.choices(list(odds), weights=list(odds.values()), k=random.randint(15, 45))
    if only is None and seldom and seldom not in kinds:  # what comes back must have been kept before
        kinds[2 * len(kinds) // 3] = seldom
        if seldom in _WITH:
            kinds[random.randrange(len(kinds) // 3)] = _WITH[seldom][0]
    acts = [Act(kind, random.getrandbits(48)) for kind in ("create_topic", "create_topic", *kinds)]
    plan = Plan(seed, random.choice((1, 1, 2)), tuple(acts))
    apart = Random(seed ^ 0xBE51DE)
    if only is not None or seldom or apart.randrange(_BESIDE_IN):
        return plan
    acts.insert(apart.randrange(len(acts)), Act(apart.choice(list(BESIDE)), apart.getrandbits(48)))
    return replace(plan, acts=tuple(acts))


def play(plan: Plan, *, keep_all: bool = False, before: Callable[[], None] | None = None) -> Outcome:
    """Do what the plan says, in this process. `before` is called first (`simulator.plant`)."""
    began = time.perf_counter()
    if before is not None:
        before()
    world = SimWorld(plan.seed, log_dirs=plan.log_dirs, keep_all=keep_all)
    problem: str | None = None

    async def main() -> None:
        await world.start()
        for act in plan.acts:
            await perform(world, act)
            world.check()
        await world.revive()
        world.check()
        await world.archive_is_sound()
        await world.descriptors_are_bound()

    try:
        world.run(main())
    except (Violation, Stuck) as e:
        problem = f"{'' if isinstance(e, Violation) else 'stuck: '}{e}"
    except Exception as e:  # the simulator's own bug, or one of the node's that came through
        import traceback

        problem = f"{type(e).__name__}: {e}\n{traceback.format_exc()}"
    if problem is not None:
        world.tell(f"WRONG: {problem}")
    return Outcome(
        plan.seed,
        problem,
        world.trace.digest,
        world.trace.events,
        world.loop.time(),
        time.perf_counter() - began,
        world.trace.lines if problem is not None or keep_all else [],
    )


def play_apart(plan: Plan, *, keep_all: bool = False, before: Callable[[], None] | None = None) -> Outcome:
    """Do what `play` does in a child process, which ends afterwards with its side effects."""
    return apart(lambda: play(plan, keep_all=keep_all, before=before))


def warm_up() -> None:
    """Have what is loaded and worked out at its first use in memory before the first fork."""
    play(draw(7))
    gc.freeze()


def play_many(seeds: Sequence[int], only: Sequence[str] | None, jobs: int) -> Iterator[Outcome]:
    """Play the histories of these seeds, `jobs` at a time, in child processes."""
    warm_up()
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda seed: play_apart(draw(seed, only)), seeds)
