"""The office of the prefix's keeper: which broker has it, gives it up, or takes it from one that fails.

The unfenced broker of lowest id keeps the prefix, and says so by a counter in `cluster.json`
(`renewals`). The others read that, the lower their id the more often. Where the counter has stood still for
`HAND_ON_MS` of a reader's own clock, the next broker in the order of ids takes the office over by a
conditional write, as it would at a start (`Housekeeping`); one of a lower id takes it back once it can. The
time decides who tries, never what is written or deleted: that stays with the conditions and barriers of
`fence`, under which two keepers at once do no harm.

A broker that nobody of its cluster has named takes a prefix over only where it is the cluster's: most of
the manifests that the metadata names lie there, or, where nothing was archived yet, most registered brokers
have read this `cluster.json` (`present`). So one with another `firn.remote.url` keeps nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Final
from uuid import UUID

from service.base.clock import Clock
from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest_codec import ClusterFile
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from service.tiering.fence import Displaced, Fence, NotNamed, incarnation_of
from service.tiering.metrics import TieringMetrics
from service.tiering.offload import OffloadPool
from service.tiering.ports import House
from service.tiering.tasks import Task

log = logging.getLogger(__name__)

RENEW_MS: Final = 10_000
"""How often the keeper says that it keeps the prefix, and the next in line reads it."""
HAND_ON_MS: Final = 30_000
"""A keeper that has not said so for this long has lost the office to whoever reads that."""
STAGGER_MS: Final = 5_000
"""Each broker waits so much longer than the one of the next lower id."""
_MOST_TURNS: Final = 4
"""Nobody waits, nor pauses between reads, longer than so many brokers before him make it."""
_FIRST_PAUSE_MS: Final = 500
"""Before a second attempt; each pause is twice as long as the one before, up to `RENEW_MS`."""
_FEW_FAILURES: Final = 2
"""A broker that its keeper names at once need not add itself to the file."""
_DISPLACED_PAUSE_MS: Final = 60_000
TOLD_AFTER_MS: Final = 10_000
"""A start is named within a second or two; one that waits for so long says so in the log."""
_SAMPLE: Final = 16
_EXAMINED: Final = 1_000
_ENOUGH: Final = 50
"""So many brokers that use a prefix are convincing, however many there are."""


class Succession:
    """When the office counts as abandoned, by what this process has read of `cluster.json`. [P]

    >>> succession = Succession()
    >>> succession.saw((None, 0), 0), succession.abandoned_for_ms(29_000)
    (None, 29000)
    >>> succession.saw((None, 1), 29_000), succession.abandoned_for_ms(30_000)
    (None, 1000)
    """

    def __init__(self) -> None:
        self._seen: tuple[UUID | None, int] | None = None
        self._since_ms = 0

    def saw(self, renewed: tuple[UUID | None, int], now_ms: int) -> None:
        """The keeper that was read just now, and its count of renewals."""
        if renewed != self._seen:
            self._seen, self._since_ms = renewed, now_ms

    def abandoned_for_ms(self, now_ms: int) -> int:
        """How long nothing has changed in what was read."""
        return 0 if self._seen is None else now_ms - self._since_ms


class Office:
    """Who keeps the prefix, as seen and pursued by one process. Owned by the event loop."""

    def __init__(
        self,
        store: ObjectStore,
        fence: Fence,
        house: House,
        pool: OffloadPool,
        clock: Clock,
        own: UUID,
        metrics: TieringMetrics,
        take_over: Callable[[ClusterFile | None], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        """`take_over` makes this process the keeper, or tells why not, and raises what the fence raises;
        `changed` is called when this process may write, or may not any more."""
        self._store = store
        self._fence = fence
        self._house = house
        self._pool = pool
        self._clock = clock
        self._own = own
        self._metrics = metrics
        self._take_over = take_over
        self._changed = changed
        self._succession = Succession()
        self._news = asyncio.Event()
        self._failures = 0
        self._due_ms = self._renew_due_ms = clock.monotonic_ms()
        self._is_proved = False
        """whether the prefix is known to be the cluster's: for good, as this process uses no other one"""
        self._proved_for: tuple[UUID, ...] = ()
        """the members of whom most have read the file, where nothing was archived yet"""
        self._here: set[int] = set()
        """brokers that use this prefix, by what was read since this process runs"""
        self._told: str | None = None

    def go_on(self) -> None:
        """Brokers came or went, or the HEADs were looked at: act now."""
        self._due_ms = 0
        self._news.set()

    async def run(self) -> None:
        """Keep the office, or watch who does, until cancelled."""
        while True:
            self._news.clear()
            await self.act()
            wait_ms = max(0, self._due_ms - self._clock.monotonic_ms())
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def act(self) -> FirnError | None:
        """Do what is due. What failed is told, and tried again soon."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._due_ms:
            return None
        could_write, failure = self._fence.may_write, None
        try:
            await self._step(now_ms)
        except NotNamed as e:
            self._wait(str(e))
            self._failures += 1
        except Displaced as e:
            self.displaced(e)
        except (StorageError, CorruptionError, RequestError) as e:
            failure = e
            self._failures += 1
            self._metrics.task_errors[Task.OFFICE] += 1
            self._metrics.failing[Task.OFFICE, None] = str(e)
            if not self._fence.may_write or isinstance(e, CorruptionError):
                self._wait(f"{e}")
            if self._failures & (self._failures - 1) == 0:
                log.warning("the office of the prefix's keeper: %d failures in a row: %s", self._failures, e)
        else:
            self._failures = 0
            self._metrics.failing.pop((Task.OFFICE, None), None)
        if self._fence.may_write and not isinstance(failure, CorruptionError):
            self._is_in()
        self._due_ms = self._clock.monotonic_ms() + self._pause_ms()
        if self._fence.may_write != could_write:
            self._changed()
        return failure

    def _pause_ms(self) -> int:
        if self._fence.displaced is not None:
            return _DISPLACED_PAUSE_MS
        if self._failures:
            return min(_FIRST_PAUSE_MS << min(self._failures - 1, 10), RENEW_MS)
        return RENEW_MS * max(1, min(self._house.rank(), _MOST_TURNS))

    # -- steps

    async def _step(self, now_ms: int) -> None:
        fence, house = self._fence, self._house
        if not house.members():
            if not fence.is_ours and fence.displaced is None:
                await self._take_over(None)
            return
        if fence.is_ours:
            self._succession = Succession()
            if fence.lacks_members or now_ms >= self._renew_due_ms:
                await self._renew(now_ms)
            return
        cluster = await fence.read_or_none()
        if fence.is_foreign(cluster):
            await fence.judge(cluster)
        self._succession.saw((incarnation_of(cluster), cluster.renewals), now_ms)
        if fence.displaced is None and house.is_unfenced() and self._is_next(cluster, now_ms):
            await self._succeed(cluster, now_ms)
        else:
            await self._join(cluster)

    async def _renew(self, now_ms: int) -> None:
        if not self._is_proved and self._proved_for != self._house.members():
            cluster = await self._fence.read()
            if (why := await self._why_unproved(cluster)) is not None:
                self._fence.give_up()
                raise NotNamed(why)
        await self._fence.renew()
        self._renew_due_ms = now_ms + RENEW_MS

    def _is_next(self, cluster: ClusterFile, now_ms: int) -> bool:
        """Whether the office is this process's to take: none of a lower id is there, or keeps it."""
        if self._house.is_keeper():
            return True
        found = incarnation_of(cluster)
        if found is not None and not cluster.renewals and self._house.knows(found):
            return False  # of a version that does not say whether it keeps the prefix
        turns = min(self._house.rank() - 1, _MOST_TURNS)
        return self._succession.abandoned_for_ms(now_ms) >= HAND_ON_MS + turns * STAGGER_MS

    async def _succeed(self, cluster: ClusterFile, now_ms: int) -> None:
        if self._fence.is_successor(cluster):
            self._is_proved = True
        elif (why := await self._why_unproved(cluster)) is not None:
            await self._sign_in(cluster)
            raise NotNamed(why)
        keeper, is_in_turn = self._keeper(cluster), self._house.is_keeper()
        await self._take_over(cluster)
        if not self._fence.is_ours:
            raise NotNamed(self._metrics.take_over_refused or "the prefix was not taken over yet")
        self._renew_due_ms = now_ms + RENEW_MS
        if not is_in_turn:
            log.warning(
                "this broker keeps the prefix from now on, as %s for %d s: see whether brokers of lower ids "
                "reach the store",
                "no broker has done so" if cluster.stamp is None else f"{keeper} has not done so",
                self._succession.abandoned_for_ms(now_ms) // 1000,
            )

    async def _join(self, cluster: ClusterFile) -> None:
        try:
            await self._fence.judge(cluster)
        except NotNamed as e:
            found = incarnation_of(cluster)
            is_ours = found is not None and self._house.knows(found)
            if not is_ours or self._failures >= _FEW_FAILURES:
                await self._sign_in(cluster)
            if not is_ours:
                raise NotNamed(
                    f"no broker of this cluster keeps the prefix in firn.remote.url yet ({e})"
                ) from e
            raise NotNamed(f"it waits to be named by {self._keeper(cluster)}, which keeps the prefix") from e
        self._is_proved = True

    async def _sign_in(self, cluster: ClusterFile) -> None:
        if self._own not in cluster.present:
            await self._fence.sign_in()

    def _keeper(self, cluster: ClusterFile) -> str:
        stamp = cluster.stamp
        return "nobody" if stamp is None else f"broker {stamp.writer.node_id}"

    # -- whose prefix it is

    async def _why_unproved(self, cluster: ClusterFile) -> str | None:
        """Why the prefix may be another one than the cluster's; None where it is the cluster's.

        `StorageError` where nobody knows.
        """
        live = (one for one in self._house.archived() if one.segments and not one.is_given_up)
        sample = tuple(islice(islice(live, _EXAMINED), _SAMPLE))
        there = await self._pool.run(_count_there, self._store, sample) if sample else 0
        if sample and 2 * there >= len(sample):
            self._is_proved = True
            return None
        members = self._house.members()
        brokers_now = {one: self._house.broker_of(one) for one in members}
        found = incarnation_of(cluster)
        for one in (self._own, *cluster.present, *([] if found is None else [found])):
            if (broker := brokers_now.get(one)) is not None:
                self._here.add(broker)
        here = self._here.intersection(brokers_now.values())
        needed = len(members) if sample else len(members) // 2 + 1
        if len(here) >= min(needed, _ENOUGH):
            self._proved_for = members
            return None
        absent = sorted(one for one in brokers_now.values() if one is not None and one not in here)
        brokers = f"{len(here)} of {len(members)} brokers use it (not seen there: {_numbers(absent)})"
        if not sample:
            return (
                f"nothing was archived yet, and {brokers}: nobody knows whether the prefix in "
                "firn.remote.url is the cluster's until most of them do; compare it on all brokers"
            )
        return (
            f"the prefix in firn.remote.url has {there} of {len(sample)} manifests that the metadata "
            f"names, and {brokers}: it is not the cluster's, or was emptied; give this broker the "
            "firn.remote.url of the others"
        )

    # -- what is told

    def _wait(self, why: str) -> None:
        now_ms = self._clock.now_ms()
        metrics = self._metrics
        if metrics.waits_since_ms is None:
            metrics.waits_since_ms = now_ms
        since = datetime.fromtimestamp(metrics.waits_since_ms / 1000, UTC)
        metrics.waits = f"since {since:%Y-%m-%dT%H:%M:%SZ}: {why}"
        if why != self._told and now_ms - metrics.waits_since_ms >= TOLD_AFTER_MS:
            self._told = why
            log.warning(
                "this broker copies, expires and sweeps nothing, and lets no local bytes go, since %s: %s "
                '(docs/operations.md, "a broker waits to be named")',
                f"{since:%H:%M:%S} UTC",
                why,
            )

    def _is_in(self) -> None:
        if self._told is not None:
            log.info("this broker may write to the prefix again")
        self._told = self._metrics.waits = self._metrics.waits_since_ms = self._metrics.displaced = None

    def displaced(self, error: Displaced) -> None:
        """Whoever displaced this process knows what is live, and we do not."""
        metrics = self._metrics
        metrics.waits = metrics.waits_since_ms = None
        if metrics.displaced is None:
            metrics.displaced = str(error)
            log.error("%s", error)


def _numbers(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers[:10])) + (", …" if len(brokers) > 10 else "")


def _count_there(store: ObjectStore, entries: Sequence[CatalogEntry]) -> int:
    """On an offload thread: how many of the manifests lie in the bucket."""
    found = 0
    for entry in entries:
        try:
            store.head(entry.manifest_key)
        except ObjectNotFound:
            continue
        found += 1
    return found
