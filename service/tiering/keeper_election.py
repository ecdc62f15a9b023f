"""Election of the prefix's keeper: which broker becomes it, gives it up, or replaces one that fails.

The unfenced broker of lowest id is the keeper, and increments a counter in `cluster.json` (`renewals`). The
others read it, more often the lower their id. Where the counter has not changed for `KEEPER_TIMEOUT_MS` of a
reader's own clock, the next broker in the order of ids becomes keeper by a conditional write, as at a start
(`BucketMaintenance`); one of a lower id takes over again once it can. Time decides only who tries, never what
is written or deleted: the conditions and barriers of `fence` decide that, so two keepers at once do no harm.

A broker that no broker of its cluster has named takes a prefix over only where it is the cluster's: most of
the manifests that the metadata names exist there, or, where nothing was archived yet, most registered brokers
have read this `cluster.json` (`present`). So a broker with another `firn.remote.url` never becomes keeper.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Final
from uuid import UUID

from service.base.backoff import doubled
from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest_codec import ClusterFile
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import TieringContext
from service.tiering.ports import PrefixOwner
from service.tiering.prefix_fence import Displaced, NotNamed, incarnation_of
from service.tiering.tasks import Task

log = logging.getLogger(__name__)

RENEW_MS: Final = 10_000
"""Interval at which the keeper renews, and the next in line reads."""
KEEPER_TIMEOUT_MS: Final = 30_000
"""A keeper that has not renewed for this long loses its role to the first broker that notices."""
STAGGER_MS: Final = 5_000
"""Each broker waits this much longer than the one of the next lower id."""
_MAX_RANK: Final = 4
"""Greatest rank that counts: it bounds the wait and the pause between reads."""
_FIRST_PAUSE_MS: Final = 500
"""Pause before a second attempt; each pause is twice as long as the one before, up to `RENEW_MS`."""
_FEW_FAILURES: Final = 2
"""A broker that its keeper names at once need not add itself to the file."""
_DISPLACED_PAUSE_MS: Final = 60_000
LOG_AFTER_MS: Final = 10_000
"""A starting broker is named within a second or two; one that waits, or fails, this long logs a warning."""
_SAMPLE: Final = 16
_EXAMINED: Final = 1_000
_ENOUGH: Final = 50
"""This many brokers that use a prefix prove that it is the cluster's, however many brokers there are."""


class KeeperTimeout:
    """Time since the keeper's counter in `cluster.json` last changed, as read by this process. [P]

    >>> timeout = KeeperTimeout()
    >>> timeout.observe((None, 0), 0), timeout.unchanged_ms(29_000)
    (None, 29000)
    >>> timeout.observe((None, 1), 29_000), timeout.unchanged_ms(30_000)
    (None, 1000)
    """

    def __init__(self) -> None:
        self._seen: tuple[UUID | None, int] | None = None
        self._since_ms = 0

    def observe(self, renewed: tuple[UUID | None, int], now_ms: int) -> None:
        """Record the keeper and its count of renewals as just read."""
        if renewed != self._seen:
            self._seen, self._since_ms = renewed, now_ms

    def unchanged_ms(self, now_ms: int) -> int:
        """Return how long keeper and counter have not changed."""
        return 0 if self._seen is None else now_ms - self._since_ms


class KeeperElection:
    """One process's part in the election of the keeper. Owned by the event loop."""

    def __init__(
        self,
        context: TieringContext,
        owner: PrefixOwner,
        own: UUID,
        take_over: Callable[[ClusterFile | None], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        """`take_over` makes this process the keeper, or reports why not, and raises what the fence raises;
        `changed` is called when `may_write` of this process changes."""
        self._store = context.store
        self._fence = context.fence
        self._owner = owner
        self._pool = context.pool
        self._clock = context.clock
        self._own = own
        self._metrics = context.metrics
        self._take_over = take_over
        self._changed = changed
        self.role_changed: Callable[[], None] = lambda: None
        """called when this process has become the keeper, or is it no more"""
        self._was_keeper = False
        self._keeper_timeout = KeeperTimeout()
        self._wake_event = asyncio.Event()
        self._failures = 0
        self._failing_since_ms: int | None = None
        self._warn_after_ms = LOG_AFTER_MS
        self._due_ms = self._renew_due_ms = self._clock.monotonic_ms()
        self._is_proved = False
        """whether the prefix is known to be the cluster's: for good, as this process uses no other"""
        self._proved_for: tuple[UUID, ...] = ()
        """the members of whom most have read the file, where nothing was archived yet"""
        self._brokers_present: set[int] = set()
        """brokers that use this prefix, by all reads of this process"""
        self._logged: str | None = None

    def wake(self) -> None:
        """Act now: the brokers changed, or the HEADs were compared."""
        self._due_ms = 0
        self._wake_event.set()

    async def run(self) -> None:
        """Renew as keeper, or watch the keeper, until cancelled."""
        while True:
            self._wake_event.clear()
            await self.run_once()
            wait_ms = max(0, self._due_ms - self._clock.monotonic_ms())
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._wake_event.wait()
            except TimeoutError:
                continue

    async def run_once(self) -> FirnError | None:
        """Do what is due; return the error, which is reported and retried soon."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._due_ms:
            return None
        could_write, failure = self._fence.may_write, None
        try:
            await self._step(now_ms)
        except NotNamed as e:
            self._note_waiting(str(e))
            self._failures += 1
        except Displaced as e:
            self.note_displaced(e)
        except (StorageError, CorruptionError, RequestError) as e:
            failure = e
            self._failures += 1
            self._metrics.task_errors[Task.KEEP_PREFIX] += 1
            self._metrics.failing[Task.KEEP_PREFIX, None] = str(e)
            if not self._fence.may_write or isinstance(e, CorruptionError):
                self._note_waiting(f"{e}")
            self._log_failure(e, now_ms)
        else:
            self._failures, self._failing_since_ms = 0, None
            self._metrics.failing.pop((Task.KEEP_PREFIX, None), None)
        if self._fence.may_write and not isinstance(failure, CorruptionError):
            self._clear_waiting()
        self._due_ms = self._clock.monotonic_ms() + self._pause_ms()
        if self._fence.may_write != could_write:
            self._changed()
        if self._fence.is_ours != self._was_keeper:
            self._was_keeper = not self._was_keeper
            self.role_changed()
        return failure

    def _pause_ms(self) -> int:
        if self._fence.displaced is not None:
            return _DISPLACED_PAUSE_MS
        if self._failures:
            return doubled(self._failures, _FIRST_PAUSE_MS, RENEW_MS)
        return RENEW_MS * max(1, min(self._owner.rank(), _MAX_RANK))

    # -- steps

    async def _step(self, now_ms: int) -> None:
        fence, owner = self._fence, self._owner
        if not owner.members():
            if not fence.is_ours and fence.displaced is None:
                await self._take_over(None)
            return
        if fence.is_ours:
            self._keeper_timeout = KeeperTimeout()
            if fence.lacks_members or now_ms >= self._renew_due_ms:
                await self._renew(now_ms)
            return
        cluster = await fence.read_or_none()
        if fence.is_foreign(cluster):
            await fence.apply(cluster)
        self._keeper_timeout.observe((incarnation_of(cluster), cluster.renewals), now_ms)
        if fence.displaced is None and owner.is_unfenced() and self._is_next(cluster, now_ms):
            await self._try_take_over(cluster, now_ms)
        else:
            await self._join(cluster)

    async def _renew(self, now_ms: int) -> None:
        if not self._is_proved and self._proved_for != self._owner.members():
            cluster = await self._fence.read()
            if (why := await self._why_unproved(cluster)) is not None:
                self._fence.give_up()
                raise NotNamed(why)
        await self._fence.renew()
        self._renew_due_ms = now_ms + RENEW_MS

    def _is_next(self, cluster: ClusterFile, now_ms: int) -> bool:
        """Return whether this process is to become keeper: no broker of a lower id is registered, or
        renews."""
        if self._owner.is_keeper():
            return True
        found = incarnation_of(cluster)
        if found is not None and not cluster.renewals and self._owner.knows(found):
            return False  # of a version that does not renew
        turns = min(self._owner.rank() - 1, _MAX_RANK)
        return self._keeper_timeout.unchanged_ms(now_ms) >= KEEPER_TIMEOUT_MS + turns * STAGGER_MS

    async def _try_take_over(self, cluster: ClusterFile, now_ms: int) -> None:
        if self._fence.is_successor(cluster):
            self._is_proved = True
        elif (why := await self._why_unproved(cluster)) is not None:
            await self._sign_in(cluster)
            raise NotNamed(why)
        keeper, is_in_turn = self._keeper(cluster), self._owner.is_keeper()
        await self._take_over(cluster)
        if not self._fence.is_ours:
            raise NotNamed(self._metrics.take_over_refused or "the prefix was not taken over yet")
        self._renew_due_ms = now_ms + RENEW_MS
        if not is_in_turn:
            log.warning(
                "this broker is the prefix's keeper now, because %s for %d s: check whether brokers of "
                "lower ids reach the store",
                "there was none" if cluster.stamp is None else f"{keeper} has not renewed",
                self._keeper_timeout.unchanged_ms(now_ms) // 1000,
            )

    async def _join(self, cluster: ClusterFile) -> None:
        try:
            await self._fence.apply(cluster)
        except NotNamed as e:
            found = incarnation_of(cluster)
            is_ours = found is not None and self._owner.knows(found)
            if not is_ours or self._failures >= _FEW_FAILURES:
                await self._sign_in(cluster)
            if not is_ours:
                raise NotNamed(
                    f"no broker of this cluster keeps the prefix in firn.remote.url yet ({e})"
                ) from e
            raise NotNamed(f"it waits to be named by {self._keeper(cluster)}, the prefix's keeper") from e
        self._is_proved = True

    async def _sign_in(self, cluster: ClusterFile) -> None:
        if self._own not in cluster.present:
            await self._fence.sign_in()

    def _keeper(self, cluster: ClusterFile) -> str:
        stamp = cluster.stamp
        return "an unknown broker" if stamp is None else f"broker {stamp.writer.node_id}"

    # -- whose prefix it is

    async def _why_unproved(self, cluster: ClusterFile) -> str | None:
        """Return why the prefix may not be the cluster's; None where it is.

        Raises `StorageError` where the store does not tell.
        """
        live = (one for one in self._owner.archived() if one.segments and not one.is_given_up)
        sample = tuple(islice(islice(live, _EXAMINED), _SAMPLE))
        there = await self._pool.run(_count_there, self._store, sample) if sample else 0
        if sample and 2 * there >= len(sample):
            self._is_proved = True
            return None
        members = self._owner.members()
        brokers_now = {one: self._owner.broker_of(one) for one in members}
        found = incarnation_of(cluster)
        for one in (self._own, *cluster.present, *([] if found is None else [found])):
            if (broker := brokers_now.get(one)) is not None:
                self._brokers_present.add(broker)
        here = self._brokers_present.intersection(brokers_now.values())
        needed = len(members) if sample else len(members) // 2 + 1
        if len(here) >= min(needed, _ENOUGH):
            self._proved_for = members
            return None
        absent = sorted(one for one in brokers_now.values() if one is not None and one not in here)
        brokers = f"{len(here)} of {len(members)} brokers use it (not seen there: {_numbers(absent)})"
        if not sample:
            return (
                f"nothing was archived yet, and {brokers}: it is unknown whether the prefix in "
                "firn.remote.url is the cluster's until most of them do; compare it on all brokers"
            )
        return (
            f"the prefix in firn.remote.url has {there} of {len(sample)} manifests that the metadata "
            f"names, and {brokers}: it is not the cluster's, or was emptied; give this broker the "
            "firn.remote.url of the others"
        )

    # -- reports

    def _log_failure(self, error: FirnError, now_ms: int) -> None:
        """Log a failure, as a warning once failures have lasted: where nodes start, or a controller is
        replaced, a few are to be expected. Each further warning comes after twice the time."""
        is_first = self._failing_since_ms is None
        if self._failing_since_ms is None:
            self._failing_since_ms, self._warn_after_ms = now_ms, LOG_AFTER_MS
        lasted_ms = now_ms - self._failing_since_ms
        if lasted_ms >= self._warn_after_ms or (is_first and isinstance(error, CorruptionError)):
            self._warn_after_ms = 2 * max(lasted_ms, LOG_AFTER_MS)
            log.warning(
                "election of the prefix's keeper has failed %d times, for %d s: %s",
                self._failures,
                lasted_ms // 1000,
                error,
            )
        elif is_first:
            log.info("election of the prefix's keeper failed, and is tried again: %s", error)

    def _note_waiting(self, why: str) -> None:
        now_ms = self._clock.now_ms()
        metrics = self._metrics
        if metrics.waits_since_ms is None:
            metrics.waits_since_ms = now_ms
        since = datetime.fromtimestamp(metrics.waits_since_ms / 1000, UTC)
        metrics.waits = f"since {since:%Y-%m-%dT%H:%M:%SZ}: {why}"
        if why != self._logged and now_ms - metrics.waits_since_ms >= LOG_AFTER_MS:
            self._logged = why
            log.warning(
                "this broker copies, expires and sweeps nothing, and lets no local bytes go, since %s: %s "
                '(docs/operations.md, "a broker waits to be named")',
                f"{since:%H:%M:%S} UTC",
                why,
            )

    def _clear_waiting(self) -> None:
        if self._logged is not None:
            log.info("this broker may write to the prefix again")
        self._logged = self._metrics.waits = self._metrics.waits_since_ms = self._metrics.displaced = None

    def note_displaced(self, error: Displaced) -> None:
        """Report that another process displaced this one: it knows what is live, and this process does
        not."""
        metrics = self._metrics
        metrics.waits = metrics.waits_since_ms = None
        if metrics.displaced is None:
            metrics.displaced = str(error)
            log.error("%s", error)


def _numbers(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers[:10])) + (", …" if len(brokers) > 10 else "")


def _count_there(store: ObjectStore, entries: Sequence[CatalogEntry]) -> int:
    """Return how many of the manifests exist in the bucket. Runs on an offload thread."""
    found = 0
    for entry in entries:
        try:
            store.head(entry.manifest_key)
        except ObjectNotFound:
            continue
        found += 1
    return found
