"""Draws a history of the cluster world and plays it in a process of its own."""

from __future__ import annotations

import gc
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any, Final

from simulator.acts import Act
from simulator.apart import apart
from simulator.cluster.access_acts import ACCESS_ACTS
from simulator.cluster.acts import ACTS
from simulator.cluster.begin_acts import begin_anew
from simulator.cluster.chain_acts import CHAIN_ACTS, CuttingWorld
from simulator.cluster.cut_acts import CUT_ACTS
from simulator.cluster.direct_acts import DIRECT_ACTS
from simulator.cluster.examining import revive
from simulator.cluster.group_acts import GROUP_ACTS
from simulator.cluster.late_batches import late_batch
from simulator.cluster.losing_acts import LOSING_ACTS
from simulator.cluster.order_acts import ORDER_ACTS
from simulator.cluster.pipelines import consume_transform
from simulator.cluster.put_acts import PUT_ACTS
from simulator.cluster.rewrite_acts import REWRITE_ACTS, RewritingWorld
from simulator.cluster.secured import SecuredWorld
from simulator.cluster.short_histories import LONG_IN, short_cutting, short_rewriting
from simulator.cluster.short_histories import NODES as NODES_OF_SHORT
from simulator.cluster.stall_acts import stall_followers
from simulator.cluster.transaction_acts import TRANSACTION_ACTS
from simulator.cluster.transaction_examining import examine_transactions
from simulator.cluster.transactional import TransactionalWorld
from simulator.cluster.unclean_acts import UNCLEAN_ACTS
from simulator.cluster.user_acts import USER_ACTS
from simulator.cluster.users import examine_access
from simulator.cluster.world import START_S, ClusterWorld
from simulator.history import Outcome, Plan
from simulator.loop import Stuck
from simulator.model import Violation

NODES: Final = (3, 3, 3, 5)
ALWAYS: Final = {"create_topic": 8, "produce": 12, "wait": 5, "examine": 3, "start": 3}
SOMETIMES: Final = {
    "produce_idempotent": 8,
    "consume": 6,
    "elect": 4,
    "reassign": 4,
    "delete_topic": 3,
    "alter_topic": 6,
    "kill": 6,
    "stop": 3,
    "lose_power": 3,
    "pause": 3,
    "jump_clock": 1,
    "partition": 6,
    "reset_connections": 4,
    "slow_links": 2,
    "disk_faults": 3,
    "wipe_disk": 3,
    "refuse_broker": 6,
    "no_room": 4,
    "kill_all": 4,
}
"""How often each comes where it exists. A history has about half of them."""
OF_TIERS: Final = {
    "store_faults": 6,
    "delete_records": 4,
    "lag_behind": 6,
    "alter_topic": 3,
    "consume": 4,
    "cut_off_store": 3,
    "other_prefix": 2,
    "foreign_owner": 1,
}
ALWAYS_OF_TIERS: Final = {"create_topic": 2, "stream": 14, "settle_down": 6}
"""Likewise, where there is a bucket."""
_WITH: Final = {
    "partition": ("heal", 4),
    "slow_links": ("heal", 4),
    "refuse_broker": ("heal", 4),
    "disk_faults": ("disk_heals", 3),
    "no_room": ("disk_heals", 3),
    "store_faults": ("store_heals", 4),
}


_REFUSED_IN: Final = 4
"""Drawn apart: in one of so many histories with a bucket objects of a topic are refused for a while."""

OF_REPLICAS: Final = {"stream": 14, "produce": 4, "consume": 6, "wait": 8, "start": 3, "examine": 2}
STORM: Final = {
    "kill": 6,
    "stop": 3,
    "lose_power": 4,
    "pause": 4,
    "partition": 8,
    "reset_connections": 3,
    "slow_links": 3,
    "elect": 6,
    "reassign": 4,
    "create_topic": 1,
    "wipe_disk": 4,
    "refuse_broker": 6,
    "no_room": 4,
    "kill_all": 4,
}
"""Likewise, of histories in which much is written to few partitions while this and that goes on."""


OF_ACCESS: Final = {
    "create_topic": 3,
    "stream": 3,
    "wait": 6,
    "start": 3,
    "examine": 2,
    "grant": 16,
    "revoke": 10,
    "set_password": 6,
    "user_produces": 10,
    "user_fetches": 10,
    "user_lingers": 10,
}
"""Likewise, of secured histories: always, and half of the others."""
SOMETIMES_OF_ACCESS: Final = {
    "deny": 8,
    "delete_user": 5,
    "set_quota": 5,
    "user_commits": 10,
    "user_asks_controllers": 8,
    "revoke_while_waiting": 12,
    "flip_bits": 4,
    "restore_metadata": 6,
    "kill": 6,
    "stop": 3,
    "lose_power": 4,
    "pause": 4,
    "jump_clock": 3,
    "partition": 6,
    "reset_connections": 4,
    "slow_links": 3,
    "elect": 3,
    "reassign": 3,
    "delete_topic": 2,
    "kill_all": 3,
    "refuse_broker": 3,
}
_WITH_ACCESS: Final = {
    **_WITH,
    "flip_bits": ("heal", 4),
    "restore_metadata": ("copy_metadata", 4),
}
_FIRST_OF_ACCESS: Final = ("create_topic", "set_password", "set_password", "grant", "grant", "grant")
_ACTS: Final[dict[str, Callable[[Any, Random], Awaitable[None]]]] = {
    **ACTS,
    **ACCESS_ACTS,
    **USER_ACTS,
    **GROUP_ACTS,
    **TRANSACTION_ACTS,
    **DIRECT_ACTS,
    **CUT_ACTS,
    **CHAIN_ACTS,
    **LOSING_ACTS,
    **REWRITE_ACTS,
    **ORDER_ACTS,
    **PUT_ACTS,
    **UNCLEAN_ACTS,
    "consume_transform": consume_transform,
    "late_batch": late_batch,
    "begin_anew": begin_anew,
    "stall_followers": stall_followers,
}
KINDS: Final = frozenset(_ACTS)
"""all kinds of acts"""
Drawn = Callable[..., Plan]
"""Draws the plan of a seed, for as many nodes, if they are given."""


def _drawn(
    random: Random,
    always: Mapping[str, int],
    sometimes: Mapping[str, int],
    together: Mapping[str, tuple[str, int]],
    least: int,
    most: int,
) -> list[str]:
    """Draw the kinds of `least` to `most` acts by their weights: those of `always`, and each of `sometimes`
    with odds of a half, with the one that it needs `together`."""
    odds = dict(always)
    for kind, weight in sometimes.items():
        if random.random() < 0.5:
            odds[kind] = weight
            if kind in together:
                other, its_weight = together[kind]
                odds[other] = its_weight
    return random.choices(list(odds), weights=list(odds.values()), k=random.randint(least, most))


def draw_secured(seed: int, nodes: int | None = None) -> Plan:
    """Draw the history of `seed` of a cluster with users, a third of them with a bucket."""
    random = Random(seed)
    number, is_tiered = random.choice(NODES), random.random() < 0.3
    kinds = _drawn(random, OF_ACCESS, SOMETIMES_OF_ACCESS, _WITH_ACCESS, 20, 45)
    acts = tuple(Act(kind, random.getrandbits(48)) for kind in (*_FIRST_OF_ACCESS, *kinds))
    return Plan(seed, nodes or number, acts, tiered=is_tiered, secured=True)


OF_TRANSACTIONS: Final = {
    "create_topic": 2,
    "wait": 6,
    "start": 8,
    "examine": 2,
    "commit_offsets": 4,
    "read_offsets": 3,
    "transact": 16,
    "read_committed": 8,
}
"""Likewise, of histories with groups and transactions: always, and half of the others."""
SOMETIMES_OF_TRANSACTIONS: Final = {
    "zombie": 8,
    "kill_between": 12,
    "append_directly": 16,
    "cut_off_markers": 6,
    "late_batch": 20,
    "elect_coordinator": 6,
    "consume_transform": 12,
    "stream": 6,
    "consume": 4,
    "elect": 6,
    "reassign": 3,
    "delete_topic": 1,
    "kill": 8,
    "stop": 3,
    "lose_power": 3,
    "pause": 4,
    "jump_clock": 1,
    "partition": 8,
    "reset_connections": 5,
    "slow_links": 3,
    "disk_faults": 2,
    "wipe_disk": 1,
    "kill_all": 3,
}


OF_BOTH_TIERS: Final = {"store_faults": 4, "lag_behind": 4, "begin_anew": 6, "lag_behind_archive": 6}
"""Likewise, where there is a bucket."""

OF_LOGS: Final = {
    "create_topic": 2,
    "wait": 4,
    "start": 5,
    "examine": 2,
    "append_directly": 8,
    "cut_off_markers": 8,
    "read_committed": 6,
    "transact": 4,
}
"""Likewise, of histories in which replicas of few partitions are cut, begin anew or lag behind the archive
while transactions overlap there: always, where there is a bucket, and half of the others."""
OF_BOTH_TIERS_OF_LOGS: Final = {"settle_down": 4, "begin_anew": 6, "lag_behind_archive": 14}
SOMETIMES_OF_LOGS: Final = {
    "elect": 4,
    "reassign": 3,
    "kill": 4,
    "stop": 3,
    "lose_power": 3,
    "pause": 3,
    "partition": 4,
    "slow_links": 3,
    "disk_faults": 2,
    "wipe_disk": 3,
}
_OF_LOGS_IN: Final = 2
"""One of so many histories with transactions is of this kind."""
_STALLED_IN: Final = 2
"""Drawn apart: in one of so many of the other kind followers of an internal topic stand still for a while."""


def draw_transactional(seed: int, nodes: int | None = None, *, tiered: bool = False) -> Plan:
    """Draw the history of `seed` of a cluster with groups and transactions, half of them with a bucket."""
    random = Random(seed ^ 0x7A45AC)
    number, is_tiered = random.choice(NODES), random.random() < 0.5 or tiered
    is_of_logs = not random.randrange(_OF_LOGS_IN)
    if is_of_logs:
        odds = {**OF_LOGS, **(OF_BOTH_TIERS_OF_LOGS if is_tiered else {})}
        kinds = _drawn(random, odds, SOMETIMES_OF_LOGS, _WITH, 8, 18)
    else:
        odds = {**OF_TRANSACTIONS, **({"settle_down": 4} if is_tiered else {})}
        chosen = {**SOMETIMES_OF_TRANSACTIONS, **(OF_BOTH_TIERS if is_tiered else {})}
        kinds = _drawn(random, odds, chosen, _WITH, 12, 35)
    first = ("create_topic", "make_internal_topics")
    acts = [Act(kind, random.getrandbits(48)) for kind in (*first, *kinds)]
    apart = Random(seed ^ 0x57A11)
    if not is_of_logs and not apart.randrange(_STALLED_IN):
        at = apart.choice((len(first), apart.randrange(len(first), len(acts))))
        acts.insert(at, Act("stall_followers", apart.getrandbits(48)))
    return Plan(seed, nodes or number, tuple(acts), tiered=is_tiered, transactional=True)


def draw(seed: int, nodes: int | None = None, *, tiered: bool = False) -> Plan:
    """Draw the history of `seed`, with a bucket if `tiered`. `Plan.log_dirs` is the number of nodes."""
    random = Random(seed)
    number = random.choice(NODES)
    is_storm, is_tiered = random.random() < 0.7, random.random() < 0.5 or tiered
    odds = dict(OF_REPLICAS if is_storm else ALWAYS)
    if is_tiered:
        odds |= {kind: max(weight, odds.get(kind, 0)) for kind, weight in ALWAYS_OF_TIERS.items()}
    chosen = {**(STORM if is_storm else SOMETIMES), **(OF_TIERS if is_tiered else {})}
    kinds = _drawn(random, odds, chosen, _WITH, 12, 35)
    acts = [Act(kind, random.getrandbits(48)) for kind in ("create_topic", *kinds)]
    apart = Random(seed ^ 0xBE51DE)
    if is_tiered and not apart.randrange(_REFUSED_IN):
        acts.insert(apart.randrange(1, len(acts)), Act("refuse_objects", apart.getrandbits(48)))
    return Plan(seed, nodes or number, tuple(acts), tiered=is_tiered)


_CHAINS: Final = (1, 2, 4)
_LOST_OF_TEN: Final = 6
"""Histories of ten with cuts in which everything is lost, and comes back."""
_STILL_REFUSED_IN: Final = 4
"""One of so many acts in which objects are refused stays: it takes a minute and a half, and histories without
cuts have it."""


def draw_cutting(seed: int, nodes: int | None = None) -> Plan:
    """Draw the history of `seed` of a cluster with a bucket that takes cuts often, while clients produce what
    follows from what they know; in most of them everything is lost in the end."""
    apart = Random(seed ^ 0xC5A15)
    if not apart.randrange(LONG_IN):
        return draw_long_cutting(seed, nodes)
    number = apart.choice(NODES_OF_SHORT)
    acts = tuple(Act(kind, apart.getrandbits(48)) for kind in short_cutting(apart))
    return Plan(seed, nodes or number, acts, tiered=True, cutting=True)


def draw_long_cutting(seed: int, nodes: int | None = None) -> Plan:
    """Draw a long history of that kind."""
    plan, apart = draw(seed, nodes, tiered=True), Random(seed ^ 0xC5A15)
    acts = list(plan.acts)
    if Random(seed ^ 0x2EF).randrange(_STILL_REFUSED_IN):
        acts = [act for act in acts if act.kind != "refuse_objects"]
    for _ in range(apart.choice(_CHAINS)):
        acts.insert(apart.randrange(1, len(acts) + 1), Act("chain", apart.getrandbits(48)))
    if apart.randrange(10) < _LOST_OF_TEN:
        del acts[apart.randrange(2, len(acts) + 1) :]
        acts.insert(1, Act("first_cut", apart.getrandbits(48)))
        acts.append(Act("lose_everything", apart.getrandbits(48)))
    return replace(plan, acts=tuple(acts), cutting=True)


OF_REWRITES: Final = {
    "create_topic": 2,
    "stream": 3,
    "fill_chain": 12,
    "wait": 3,
    "settle_down": 6,
    "start": 4,
    "examine": 2,
    "order_erasure": 5,
    "kill_amid_rewrite": 6,
}
"""Likewise, of histories in which keys are erased and segments merged: always, and half of the others."""
SOMETIMES_OF_REWRITES: Final = {
    "cancel_erasure": 2,
    "restore_old_disk": 6,
    "consume": 4,
    "elect": 5,
    "reassign": 4,
    "delete_topic": 1,
    "delete_records": 3,
    "lag_behind": 3,
    "kill": 5,
    "stop": 3,
    "lose_power": 4,
    "pause": 3,
    "partition": 5,
    "slow_links": 2,
    "disk_faults": 2,
    "wipe_disk": 3,
    "store_faults": 5,
    "kill_all": 3,
}
_WITH_REWRITES: Final = {**_WITH, "restore_old_disk": ("copy_disk", 6)}
_FIRST_OF_REWRITES: Final = ("create_topic", "fill_chain", "fill_chain")
_LOST_OF_TEN_REWRITES: Final = 3


def draw_rewriting(seed: int, nodes: int | None = None) -> Plan:
    """Draw the history of `seed` of a cluster whose segments are merged and from which keys are erased; in
    some of them everything is lost in the end."""
    random = Random(seed ^ 0xE7A5E)
    if not random.randrange(LONG_IN):
        return draw_long_rewriting(seed, nodes)
    number = random.choice(NODES_OF_SHORT)
    acts = tuple(Act(kind, random.getrandbits(48)) for kind in short_rewriting(random))
    return Plan(seed, nodes or number, acts, tiered=True, cutting=True, rewriting=True)


def draw_long_rewriting(seed: int, nodes: int | None = None) -> Plan:
    """Draw a long history of that kind."""
    random = Random(seed ^ 0xE7A5E)
    number = random.choice(NODES)
    kinds = _drawn(random, OF_REWRITES, SOMETIMES_OF_REWRITES, _WITH_REWRITES, 10, 28)
    acts = [Act(kind, random.getrandbits(48)) for kind in (*_FIRST_OF_REWRITES, *kinds)]
    if random.randrange(10) < _LOST_OF_TEN_REWRITES:
        del acts[random.randrange(len(_FIRST_OF_REWRITES) + 2, len(acts) + 1) :]
        acts.insert(len(_FIRST_OF_REWRITES), Act("first_cut", random.getrandbits(48)))
        if random.random() < 0.6:
            acts.append(Act("order_erasure", random.getrandbits(48)))
        acts.append(Act("lose_everything", random.getrandbits(48)))
    return Plan(seed, nodes or number, tuple(acts), tiered=True, cutting=True, rewriting=True)


def play(plan: Plan, *, keep_all: bool = False, before: Callable[[], None] | None = None) -> Outcome:
    """Do what the plan says, in this process. `before` is called first (`simulator.cluster.plants`)."""
    began = time.process_time()
    if before is not None:
        before()
    plain = RewritingWorld if plan.rewriting else CuttingWorld if plan.cutting else ClusterWorld
    kind = SecuredWorld if plan.secured else TransactionalWorld if plan.transactional else plain
    world = kind(plan.seed, nodes=plan.log_dirs, tiered=plan.tiered, keep_all=keep_all)
    random = Random(plan.seed ^ 0x5EED)
    problem: str | None = None

    async def main() -> None:
        for machine in world.machines:
            world.start(machine)
        for machine in world.machines:
            if not await world.until_ready(machine, START_S):
                raise Violation(f"{machine.name} does not become ready at first")
        for act in plan.acts:
            await _ACTS[act.kind](world, Random(act.seed))
            if world.is_lost:
                return
        await world.settle()
        await revive(world, random)
        if isinstance(world, SecuredWorld):
            await examine_access(world, random)
        if isinstance(world, TransactionalWorld):
            await examine_transactions(world, random)

    try:
        world.run(main())
    except (Violation, Stuck) as e:
        problem = f"{'' if isinstance(e, Violation) else 'stuck: '}{e}"
    except Exception as e:  # the simulator's own bug, or one of the node's that came through
        problem = f"{type(e).__name__}: {e}\n{traceback.format_exc()}"
    if problem is not None:
        world.tell(f"WRONG: {problem}")
    return Outcome(
        plan.seed,
        problem,
        world.trace.digest,
        world.trace.events,
        world.loop.time(),
        time.process_time() - began,
        world.trace.lines if problem is not None or keep_all else [],
        {
            "answered": world.answered,
            "leaders": len(world.oracle.leaders),
            "consumed": world.consumed,
            "acknowledged": world.acknowledged,
            "elections": world.oracle.replicas.elections,
            "cuts": world.oracle.replicas.cuts,
            "commits": world.oracle.tiers.commits,
            "handovers": world.oracle.tiers.handovers,
            "unclean": world.unclean,
            "restarts": world.restarts,
            "kills_in_puts": world.kills_in_puts,
            **(world.access.counted if isinstance(world, SecuredWorld) else {}),
            **(world.counted if isinstance(world, TransactionalWorld | CuttingWorld) else {}),
        },
    )


def play_apart(plan: Plan, *, keep_all: bool = False, before: Callable[[], None] | None = None) -> Outcome:
    """Do what `play` does in a child process, which ends afterwards with its side effects."""
    return apart(lambda: play(plan, keep_all=keep_all, before=before))


_WARM: Final = ("keyed_topic", "fill_chain", "first_cut", "order_erasure", "lose_everything")


def warm_up(*, transactional: bool = False, cutting: bool = False) -> None:
    """Have what is loaded and worked out at its first use in memory before the first fork."""
    if not cutting:
        play(draw(7, 3))
    if transactional:
        play(draw_transactional(4, 3, tiered=True))
    if cutting:
        acts = tuple(Act(kind, number) for number, kind in enumerate(_WARM))
        play(Plan(1, 3, acts, tiered=True, cutting=True, rewriting=True))
    gc.freeze()


def play_many(
    seeds: Iterable[int],
    jobs: int,
    nodes: int | None = None,
    drawn: Drawn = draw,
    *,
    until_s: float | None = None,
) -> Iterator[Outcome]:
    """Play the histories that `drawn` makes of these seeds, `jobs` at a time, in child processes; yield them
    in their order. `until_s`: of `time.monotonic`, when none begins any more."""
    if until_s is not None and time.monotonic() >= until_s:
        return
    is_cutting = drawn in (draw_cutting, draw_rewriting)
    warm_up(transactional=drawn is draw_transactional, cutting=is_cutting)

    def one(seed: int) -> Outcome:
        try:
            return play_apart(drawn(seed, nodes))
        except RuntimeError as e:
            return Outcome(seed, f"its process did not end: {e}", "", 0, 0.0, 0.0)

    with ThreadPoolExecutor(jobs) as pool:
        waiting: deque[Future[Outcome]] = deque()
        for seed in seeds:
            if until_s is not None and time.monotonic() >= until_s:
                break
            waiting.append(pool.submit(one, seed))
            if len(waiting) > 2 * jobs:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
