"""Progress of orders to erase keys, as the keeper of the prefix sees them: plain values. [P]"""

from __future__ import annotations

from typing import NamedTuple

from service.remote.format.cut_codec import CutRef
from service.tiering.erasing.leftovers import Remains
from service.tiering.erasing.order_progress import PlacesLeft


class OrderStanding(NamedTuple):
    """An order: when it was given, when it was done (-1: it is open), when the grace of what it dropped is
    over (-1 as long), and what it waits for. Wall clock.

    `left` are replicas and archives; `cuts` the kept cuts that may have the keys; `tails` those of the cut
    that is to be the first one, of which `clean_tails` have none; `remains` what a done order has dropped and
    is still there, None before it was looked for.
    """

    started_ms: int
    done_ms: int
    grace_until_ms: int
    why: str
    left: PlacesLeft = PlacesLeft()
    cuts: tuple[CutRef, ...] = ()
    tails: int = 0
    clean_tails: int = 0
    remains: Remains | None = None

    @property
    def is_open(self) -> bool:
        return self.done_ms < 0
