"""Bugs of the assembly of a node, planted one at a time: `python -m simulator.cluster --plants`.

A bug is a patch of a history's own process, made here and nowhere else; what it names must be there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from service.broker.cluster_plane import ClusterPlane
from service.broker.lifecycle import Heartbeat, Lifecycle
from service.metadata.controller.controller import Controller
from service.metadata.controller.turns import Turns
from service.metadata.publication import Publication
from service.metadata.raft.log import MetadataLog
from simulator.cluster.playing import draw, play_apart, warm_up

Plant = Callable[[], None]
WITHIN: Final = 60
"""histories in which a planted bug is to be found"""
_OURS: Final = ("ended by a bug", "<locals>", "TypeError", "AttributeError")


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put `make(original)` in the place of an attribute that must be there."""
    setattr(owner, name, make(getattr(owner, name)))


def told_before_it_is_applied() -> None:
    """Heartbeats tell the image's offset, whether or not the broker is what the image says."""

    async def follow(self: Any) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._membership.published(self.metadata.image.offset)

    _swap(ClusterPlane, "_follow", lambda _: follow)


def answered_before_it_is_known_here() -> None:
    """A forwarded change is answered at once, before this node's own image has it."""

    async def at_once(self: Any) -> None:
        return None

    _swap(ClusterPlane, "_catch_up", lambda _: at_once)


def answered_before_the_commit() -> None:
    """A change counts once it is in the leader's own log."""

    async def at_once(self: Any, lead: Any, offset: int) -> None:
        return None

    _swap(Turns, "_reached", lambda _: at_once)


def published_before_the_commit() -> None:
    """What this node proposes is its image at once."""

    def make(proposed: Any) -> Any:
        def eager(self: Any, image: Any, delta: Any, size: int) -> None:
            proposed(self, image, delta, size)
            self._high_watermark = max(self._high_watermark, image.offset + 1)
            self._publish_proposed()

        return eager

    _swap(Publication, "proposed", make)


def stale_heartbeats_accepted() -> None:
    """A heartbeat counts for the broker's newest process, whatever epoch it bears."""

    def make(heartbeat: Any) -> Any:
        async def careless(self: Any, request: Any, **options: Any) -> Any:
            known = self._turns.latest.brokers.get(request.broker_id) if self._turns.is_open else None
            if known is not None:
                request = request._replace(broker_epoch=known.epoch)
            return await heartbeat(self, request, **options)

        return careless

    _swap(Controller, "heartbeat", make)


def unfenced_before_it_has_recovered() -> None:
    """A broker asks to be unfenced as soon as it is registered."""

    def make(step: Any) -> Any:
        def eager(self: Any, event: Any, now_ms: int) -> Any:
            effects = step(self, event, now_ms)
            return [replace(one, want_fence=False) if isinstance(one, Heartbeat) else one for one in effects]

        return eager

    _swap(Lifecycle, "step", make)


def metadata_not_flushed() -> None:
    """The metadata log counts as flushed, and is not."""
    _swap(MetadataLog, "flush", lambda _: lambda self, end_offset: None)


PLANTS: Final[dict[str, Plant]] = {
    one.__name__: one
    for one in (
        told_before_it_is_applied,
        answered_before_it_is_known_here,
        answered_before_the_commit,
        published_before_the_commit,
        unfenced_before_it_has_recovered,
        stale_heartbeats_accepted,
        metadata_not_flushed,
    )
}
SELDOM_SHOWS: Final = ("stale_heartbeats_accepted",)
"""A late heartbeat tells an offset below the new registration, so it unfences nobody."""


def find(plant: Plant, first: int = 1, within: int = WITHIN) -> tuple[int, str] | None:
    """How many histories it took until one failed that is clean without the bug, and how it failed."""
    for count, seed in enumerate(range(first, first + within), 1):
        problem = play_apart(draw(seed), before=plant).problem
        if problem is None:
            continue
        line = problem.splitlines()[0]
        if any(sign in problem for sign in _OURS):
            return count, f"NOT PLANTED WELL: {line}"
        if play_apart(draw(seed)).problem is None:
            return count, line
    return None


def tell_plants(names: Sequence[str], first: int, jobs: int | None = None) -> bool:
    """Print after how many histories each planted bug was found; whether all were."""
    missed = 0
    warm_up()
    with ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        began = time.monotonic()
        for name, found in zip(names, pool.map(lambda one: find(PLANTS[one], first), names), strict=True):
            missed += found is None
            after = "NOT FOUND" if found is None else f"after {found[0]:3}  {found[1][:110]}"
            print(f"{name:34} {after}", flush=True)
    print(f"{len(names) - missed} of {len(names)} planted bugs found, {time.monotonic() - began:.0f} s")
    return missed == 0
