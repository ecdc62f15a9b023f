"""`python -m simulator.cluster --seed N --histories M`, or `--plants`, as `make sim WORLD=cluster`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from simulator.cluster.access_plants import OF_ACCESS
from simulator.cluster.cut_plants import OF_CUTS
from simulator.cluster.plants import PLANTS, SELDOM_SHOWS, tell_plants
from simulator.cluster.playing import (
    draw,
    draw_cutting,
    draw_rewriting,
    draw_secured,
    draw_transactional,
    play_apart,
    play_many,
)
from simulator.cluster.rewrite_plants import OF_REWRITES
from simulator.cluster.transaction_plants import OF_TRANSACTIONS
from simulator.history import Outcome, Plan
from simulator.shrink import kind_of, shrink
from simulator.transcript import transcript

_PROGRESS_S: Final = 20.0
_TOLD: Final = {
    "leaders": "controllers",
    "answered": "answered changes",
    "elections": "elections",
    "unclean": "unclean ones",
    "restarts": "restarts",
    "cuts": "truncations",
    "commits": "archive commits",
    "handovers": "chains handed over",
    "acknowledged": "records acknowledged",
    "consumed": "consumed",
}
_TOLD_OF_CUTS: Final = {
    "cuts_taken": "cuts",
    "cuts_exact": "complete and exact",
    "disasters": "disasters",
    "heirs": "that came back",
    "kills_in_puts": "kills within puts",
}
_TOLD_OF_REWRITES: Final = {
    "rewrites_begun": "rewrites",
    "rewrites": "committed",
    "merges": "merges",
    "orders": "orders to erase",
    "orders_done": "done",
    "restored_disks": "restored disks",
}
_TOLD_OF_ACCESS: Final = {
    "uses": "rights used",
    "refusals": "refused",
    "logins": "logins",
    "login_refusals": "refused logins",
    "throttles": "throttles",
}
_TOLD_OF_TRANSACTIONS: Final = {
    "offsets": "offsets committed",
    "decided": "transactions decided",
    "commits_told": "commits answered",
    "aborts_told": "aborts answered",
    "stable_reads": "reads at isolation 1",
}
Draw = Callable[[int, int | None], Plan]


def main(arguments: list[str] | None = None) -> int:
    """0 when every history was clean, or every planted bug found."""
    parser = argparse.ArgumentParser(prog="python -m simulator.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the first history; the others follow it")
    parser.add_argument("--histories", type=int, default=100)
    parser.add_argument("--nodes", type=int, choices=(3, 5), help="instead of a draw")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="histories at a time")
    parser.add_argument("--minutes", type=float, help="after which no history begins any more")
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="spent on each kind of failure")
    parser.add_argument("--kinds", type=int, default=5, help="kinds of failures that are told in full")
    parser.add_argument("--secured", action="store_true", help="SASL_SSL, users, an authorizer")
    parser.add_argument("--transactions", action="store_true", help="groups and transactions")
    parser.add_argument("--cuts", action="store_true", help="cuts, and everything is lost")
    parser.add_argument("--rewrites", action="store_true", help="segments are merged, keys erased")
    parser.add_argument("--trace", action="store_true", help="print every event, for one history")
    parser.add_argument("--plants", nargs="*", help="plant these bugs, or all, one at a time")
    given = parser.parse_args(arguments)
    if given.plants is not None:
        if unknown := set(given.plants) - set(PLANTS):
            parser.error(f"no such bugs: {', '.join(sorted(unknown))}; there are {', '.join(PLANTS)}")
        apart = OF_TRANSACTIONS | OF_CUTS | OF_REWRITES
        others = {name: one for name, one in PLANTS.items() if name not in apart}
        plainly = OF_REWRITES if given.rewrites else OF_CUTS if given.cuts else others
        those = OF_ACCESS if given.secured else OF_TRANSACTIONS if given.transactions else plainly
        names = given.plants or [name for name in those if name not in SELDOM_SHOWS]
        return 0 if tell_plants(names, given.seed, given.jobs) else 1
    plain: Draw = draw_rewriting if given.rewrites else draw_cutting if given.cuts else draw
    drawn: Draw = draw_secured if given.secured else draw_transactional if given.transactions else plain
    if given.histories == 1:
        return _one(drawn(given.seed, given.nodes), given.trace, given.shrink_seconds)
    began = told = time.monotonic()
    failed: dict[str, list[Outcome]] = {}
    events, virtual_s, cpu_s, count, calls = 0, 0.0, 0.0, 0, Counter[str]()
    seeds = range(given.seed, given.seed + given.histories)
    until_s = None if given.minutes is None else began + 60 * given.minutes
    for outcome in play_many(seeds, given.jobs, given.nodes, drawn, until_s=until_s):
        count += 1
        events += outcome.events
        virtual_s += outcome.virtual_s
        cpu_s += outcome.real_s
        calls.update(outcome.calls)
        if outcome.problem is not None:
            again = _again(drawn(outcome.seed, given.nodes))
            print(f"seed {outcome.seed}: {outcome.problem.splitlines()[0]}; again: {again}", flush=True)
            failed.setdefault(kind_of(outcome.problem), []).append(outcome)
        if time.monotonic() - told > _PROGRESS_S:
            told = time.monotonic()
            said = f"{told - began:.0f} s, {cpu_s / count:.2f} CPU s each"
            print(f"{count} of {given.histories}, up to seed {outcome.seed}, {said}", flush=True)
    seconds, bad = time.monotonic() - began, sum(map(len, failed.values()))
    for outcomes in sorted(failed.values(), key=len, reverse=True)[: given.kinds]:
        _tell_small(drawn(outcomes[0].seed, given.nodes), outcomes[0].problem or "", given.shrink_seconds)
    told_of = {
        **_TOLD,
        **(_TOLD_OF_CUTS if given.cuts or given.rewrites else {}),
        **(_TOLD_OF_REWRITES if given.rewrites else {}),
        **(_TOLD_OF_ACCESS if given.secured else {}),
        **(_TOLD_OF_TRANSACTIONS if given.transactions else {}),
    }
    if count < given.histories:
        print(f"{count} of {given.histories} histories were played in {given.minutes:g} minutes")
    each = max(count, 1)
    print(
        f"cluster: {count - bad} of {count} histories clean in {seconds:.0f} s on {given.jobs} core(s): "
        f"{cpu_s / each:.2f} CPU s each, {virtual_s / each:.0f} virtual s, {events // each} events, "
        + ", ".join(f"{calls[kind] / each:.2f} {said}" for kind, said in told_of.items())
    )
    print("in all: " + ", ".join(f"{calls[kind]} {said}" for kind, said in told_of.items()))
    return 0 if not failed else 1


def _one(plan: Plan, everything: bool, shrink_s: float) -> int:
    outcome = play_apart(plan, keep_all=everything)
    if everything:
        print("\n".join(map(str, outcome.lines)))
    if outcome.problem is not None:
        _tell_small(plan, outcome.problem, shrink_s)
    seconds = f"{outcome.virtual_s:.1f} virtual s"
    print(f"seed {plan.seed}: trace {outcome.digest}, {outcome.events} events, {seconds}")
    return 0 if outcome.problem is None else 1


def _tell_small(plan: Plan, problem: str, shrink_s: float) -> None:
    small, outcome = shrink(plan, problem, seconds=shrink_s, play=play_apart)
    print("\n".join(transcript(outcome, small, len(plan.acts), _again(plan))), end="\n\n", flush=True)


def _again(plan: Plan) -> str:
    """Return the command that plays one history again."""
    world = "-secured" if plan.secured else "-transactions" if plan.transactional else " WORLD=cluster"
    world = "-rewrites" if plan.rewriting else "-cuts" if plan.cutting else world
    return f"make sim{world} SEED={plan.seed} HISTORIES=1"


if __name__ == "__main__":
    sys.exit(main())
