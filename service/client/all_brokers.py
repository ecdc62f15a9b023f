"""Requests to many brokers at the same time, each on a connection of its own, by one deadline. Blocking.

A broker that hangs delays no other, and costs no more than what is left of the deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeVar

from service.base.errors import FirnError
from service.base.world import World
from service.client.admin import Cluster
from service.client.blocking_client import BlockingClient

T = TypeVar("T")
Ask = Callable[[int, BlockingClient], T]
"""(broker, its connection) -> what is wanted of it"""

MOST_AT_ONCE: Final = 64
"""Brokers that are asked at the same time."""


class CommandDeadline:
    """End of a whole command, `seconds` from now on, by the clock of ``world``."""

    def __init__(self, seconds: float, world: World) -> None:
        self.seconds: Final = seconds
        self.world: Final = world
        self._until_ms = world.clock.monotonic_ms() + 1000 * seconds

    @property
    def left_s(self) -> float:
        return max((self._until_ms - self.world.clock.monotonic_ms()) / 1000, 0.0)

    def late(self) -> TimeoutError:
        return TimeoutError(f"it did not answer within {self.seconds:g} s")


def ask_each(
    cluster: Cluster,
    brokers: Collection[int],
    ask: Ask[T],
    deadline: CommandDeadline,
) -> dict[int, T | FirnError | OSError]:
    """Return for each broker what `ask` returns for its connection, or why there is no answer."""
    if not brokers:
        return {}
    pool = deadline.world.threads.pool("ask", min(len(brokers), MOST_AT_ONCE))
    found: dict[int, T | FirnError | OSError] = {}
    try:
        running = {one: pool.submit(_ask, cluster, one, ask, deadline) for one in brokers}
        for broker, future in running.items():
            try:
                found[broker] = future.result(deadline.left_s)
            except (FirnError, OSError) as e:
                found[broker] = e if future.done() else deadline.late()
    finally:
        # Connections of calls that are late are silent no longer than the deadline allows.
        pool.shutdown(wait=False, cancel_futures=True)
    return found


def _ask(cluster: Cluster, broker: int, ask: Ask[T], deadline: CommandDeadline) -> T:
    left_s = deadline.left_s
    if not left_s:
        raise deadline.late()
    with cluster.apart(broker, left_s, left_s) as client:
        return ask(broker, client)
