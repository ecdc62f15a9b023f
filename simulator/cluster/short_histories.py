"""Draws of short histories: what bugs of cuts and rewrites need, one window of time, and little else.

Most defects show with few clients, few partitions and one fault at the right moment, and a history costs what
its virtual seconds cost. So most histories of these kinds begin with what has to be there, have one to three
acts in the window that matters, and end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

NODES: Final = (3, 3, 3, 3, 3, 3, 3, 5)
LONG_IN: Final = 24
"""One of so many histories is long: many acts of all kinds."""

CUT_WINDOWS: Final = {
    "short_chain": 12,
    "kill_within_put": 12,
    "elect_uncleanly": 6,
    "stream": 4,
    "produce_idempotent": 2,
    "elect": 2,
    "reassign": 2,
    "kill": 2,
    "stop": 1,
    "lose_power": 2,
    "pause": 1,
    "partition": 2,
    "slow_links": 1,
    "store_faults": 3,
    "delete_records": 1,
    "delete_topic": 1,
    "alter_topic": 2,
    "lag_behind": 1,
    "wipe_disk": 1,
    "cut_off_store": 1,
    "refuse_broker": 1,
}
"""Acts of a short history with cuts, with their odds, between the first cut and the end."""
_LOST_OF_TEN: Final = 9

BEGINNINGS: Final[Mapping[tuple[str, ...], int]] = {
    ("keyed_topic", "fill_chain"): 3,
    ("keyed_topic", "fill_chain", "fill_chain"): 2,
    ("keyed_topic", "fill_chain", "change_leader", "fill_chain"): 4,
    ("keyed_topic", "fill_chain", "kill", "start", "fill_chain"): 1,
}
"""Beginnings of a short history with rewrites: chains of small segments, of one leader epoch or several."""
WINDOWS: Final[Mapping[tuple[str, ...], int]] = {
    ("kill_amid_rewrite",): 8,
    ("kill_amid_rewrite", "fill_chain", "kill_amid_rewrite"): 2,
    ("slow_rewrite",): 5,
    ("change_leader", "settle_down"): 2,
    ("order_erasure",): 6,
    ("order_erasure", "kill_amid_rewrite"): 8,
    ("order_erasure", "kill_within_put"): 6,
    ("order_erasure", "slow_rewrite"): 3,
    ("order_erasure", "change_leader", "fill_chain"): 3,
    ("order_erasure", "lose_power"): 3,
    ("order_erasure", "kill", "order_erasure"): 2,
    ("order_erasure", "pause"): 1,
    ("order_erasure", "partition", "heal"): 2,
    ("order_erasure", "store_faults", "fill_chain"): 2,
    ("order_erasure", "delete_records"): 2,
    ("order_erasure", "delete_topic"): 1,
    ("order_erasure", "cancel_erasure"): 2,
    ("order_erasure", "reassign", "fill_chain"): 2,
    ("order_erasure", "wipe_disk"): 1,
    ("order_erasure", "kill_all"): 1,
    ("copy_disk", "order_erasure", "restore_old_disk"): 3,
    ("copy_disk", "fill_chain", "order_erasure", "settle_down", "restore_old_disk", "change_leader"): 3,
    ("elect_uncleanly", "order_erasure"): 2,
    ("order_erasure", "elect_uncleanly"): 2,
}
"""Windows of a short history with rewrites."""
_LAST: Final[Mapping[tuple[str, ...], int]] = {
    ("first_cut", "order_erasure", "lose_everything"): 4,
    ("first_cut", "order_erasure", "kill_amid_rewrite", "lose_everything"): 1,
    ("first_cut", "kill_amid_rewrite", "lose_everything"): 2,
    ("order_erasure", "settle_down", "lose_everything"): 1,
}
"""Windows of a short history with rewrites in which everything is lost."""
_LOST_OF_TEN_REWRITES: Final = 3
_ORDERS: Final[Mapping[tuple[str, ...], int]] = {
    ("order_for_deposed_leader",): 2,
    ("order_amid_unclean_election",): 1,
    ("lead_with_old_disk",): 1,
}
"""Histories of one order that one replica lacks: they make their own topic."""
_OF_ORDERS_IN: Final = 4
"""One of so many short histories with rewrites is one of these."""


def short_cutting(random: Random) -> list[str]:
    """Draw the acts of a short history with cuts; in most of them everything is lost in the end."""
    begins = ["create_topic"] * random.choice((1, 1, 1, 1, 2))
    count = random.choice((0, 1, 1, 1, 2, 2, 3))
    window = random.choices(list(CUT_WINDOWS), weights=list(CUT_WINDOWS.values()), k=count)
    last = "lose_everything" if random.randrange(10) < _LOST_OF_TEN else "short_chain"
    return [*begins, "first_cut", *window, last]


def short_rewriting(random: Random) -> list[str]:
    """Draw the acts of a short history with merges and erasures."""
    if not random.randrange(_OF_ORDERS_IN):
        return ["first_cut", *_one_of(random, _ORDERS)]
    begins = _one_of(random, BEGINNINGS)
    is_lost = random.randrange(10) < _LOST_OF_TEN_REWRITES
    return [*begins, *_one_of(random, _LAST if is_lost else WINDOWS)]


def _one_of(random: Random, odds: Mapping[tuple[str, ...], int]) -> Sequence[str]:
    return random.choices(list(odds), weights=list(odds.values()))[0]
