"""Keeper's part in orders to erase keys: `CUT` lists them, cuts that still have the keys go, and they end.

An order is in `CUT` before the metadata has it, and until nothing of it is left, so that a restore from
whatever cut carries it out. Once all replicas and chains are clean, the newest complete cut (exact, if there
is an exact one) has to name clean tails and clean chains; the cuts before it are given up then, and the order
is *done*. A grace later, when no object that was dropped is left (`remains.py`), the order itself goes:
first from `CUT`, then from the metadata, its object last, so that nothing names an object that is gone.

What is known of an order is in memory alone; a new keeper finds it out again. Owned by the event loop, by
the task of `cuts.keeper.CutKeeper`, but for `start` and `cancel`, which wait for that task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.slices import Slice
from service.remote.catalog import Erasure
from service.remote.format.cut_codec import MAX_ERASURES, CutRef, Cuts, ErasureRef, MetadataEnd
from service.remote.format.erase_codec import ErasureOrder
from service.remote.format.keys import TailKey, parse_key
from service.remote.opened_order import Ends, OrderDocuments
from service.remote.reading.tails import open_cuts
from service.remote.stores.errors import UNREADABLE, ObjectNotFound, raise_of_the_store
from service.tiering.archive_attempt import TieringContext
from service.tiering.cuts.kept_documents import KeptDocuments
from service.tiering.cuts.needed_chains import NEVER_NAMED
from service.tiering.erasing.cluster_view import ErasureCluster
from service.tiering.erasing.hits import count_in_tail
from service.tiering.erasing.leftovers import Remains
from service.tiering.erasing.order_metrics import OrderStanding
from service.tiering.erasing.order_objects import OrderDiffers, remove_versions, write_order
from service.tiering.erasing.order_progress import PlacesLeft, places_left
from service.tiering.erasing.ports import ErasureCatalog
from service.tiering.erasing.remains import VersionsOf, entries_of, what_remains
from service.tiering.prefix_fence import Displaced, NotNamed
from service.tiering.tasks import is_worth_a_line

log = logging.getLogger(__name__)

_STRAY_MS: Final = 60_000
"""Time for which `CUT` goes on listing an order that the metadata lacks: its keeper may be about to start
it."""
_REMAINS_MS: Final = 600_000
"""At most so long until what was dropped is looked for again."""
_NOT_LOOKED_AT: Final = "it was not looked at yet"
_PATIENT_S: Final = 60
"""Longest wait of a start or a cancel for `CUT` to be written."""
_POLICY: Final = ErrorCode.policy_violation
_NOT_FOUND: Final = ErrorCode.resource_not_found


class OrderRefused(RequestError):
    """An order cannot be taken, or not any more."""


@dataclass(slots=True)
class _Known:
    """Knowledge of one order in the metadata."""

    ends: Ends
    left: PlacesLeft = PlacesLeft()  # noqa: RUF009  # immutable
    clean_from: int | None = None
    """tails of cuts from this number on were saved from clean logs"""
    over: MetadataEnd | None = None
    """the metadata's end at which all replicas and chains had told"""
    clean_tails: set[str] = field(default_factory=set)
    tails: int = 0
    """tails of the cut that may be the first one to stay"""
    accepted: int | None = None
    """number of the first cut that is kept"""
    why: str = _NOT_LOOKED_AT
    look_due_ms: int = 0
    """when to look for what remains, by the monotonic clock"""
    remains: Remains | None = None


@dataclass(slots=True)
class _Starting:
    """An order that is to be listed in `CUT` before the metadata has it."""

    erasure: Erasure
    listed: asyncio.Future[None]


class OrderKeeper:
    """Orders of one prefix, as one process keeps them while it is the keeper."""

    def __init__(
        self,
        context: TieringContext,
        catalog: ErasureCatalog,
        cluster: ErasureCluster,
        documents: KeptDocuments,
        orders: OrderDocuments,
        metadata_end: Callable[[], MetadataEnd | None],
        versions: VersionsOf | None = None,
    ) -> None:
        """`metadata_end` of the image; `versions` of the bucket, None where it has none."""
        self._context = context
        self._catalog = catalog
        self._cluster = cluster
        self._documents = documents
        self._orders = orders
        self._metadata_end = metadata_end
        self._versions = versions
        self._known: dict[UUID, _Known] = {}
        self._starting: dict[UUID, _Starting] = {}
        self._gone: set[UUID] = set()
        """orders of which nothing is left, or that were cancelled: `CUT` does not list them any more"""
        self._left: dict[UUID, str] = {}
        """objects of orders that the metadata does not have any more, by id"""
        self._strays: dict[UUID, tuple[ErasureRef, int]] = {}
        """orders in `CUT` that the metadata lacks, and since when, by the monotonic clock"""
        self._kept: tuple[CutRef, ...] = ()
        """cuts that are kept, as of the last look"""
        self._unread: dict[UUID, str] = {}
        """orders whose documents could not be read, and why"""
        self._cancelling: dict[UUID, asyncio.Future[None]] = {}
        """orders that are being cancelled: set once they are"""
        self._writing = 0
        """starts that write their order's document"""
        self._failures = 0
        self.wake: Callable[[], None] = lambda: None
        """called when `CUT` is to be written soon"""

    def forget(self) -> None:
        """Forget everything: another process may keep the prefix now."""
        self._known.clear()
        self._kept = ()
        self._context.metrics.orders = {}
        self._gone.clear()
        self._left.clear()
        self._strays.clear()
        self._unread.clear()
        for future in (*(one.listed for one in self._starting.values()), *self._cancelling.values()):
            if not future.done():
                future.set_exception(StorageError("this broker does not keep the prefix any more"))
                future.exception()  # who waited may have gone
        self._starting.clear()
        self._cancelling.clear()

    @property
    def is_pressed(self) -> bool:
        """True while somebody waits for `CUT` to be written."""
        is_starting = any(not one.listed.done() for one in self._starting.values())
        return is_starting or bool(self._left or self._cancelling)

    @property
    def has_orders(self) -> bool:
        """True while there is anything to look at."""
        return bool(self._starting or self._strays or self._left or self._catalog.erasures())

    # -- what `CUT` says

    def listed(self) -> tuple[ErasureRef, ...]:
        """Return the orders that `CUT` has to list."""
        found = [one for one in self._catalog.erasures().values() if one.id not in self._gone]
        found += [one.erasure for one in self._starting.values()]
        rows = {one.id: ErasureRef(one.id, one.key, one.stored_size, one.crc32c) for one in found}
        strays = [stray for stray, _ in self._strays.values() if stray.id not in rows]
        rows |= {stray.id: stray for stray in strays[: max(MAX_ERASURES - len(rows), 0)]}
        return tuple(rows[one] for one in sorted(rows))

    def differs(self, cuts: Cuts | None) -> bool:
        """Return whether `CUT` is to be written although no cut was made."""
        if cuts is None:
            return False
        return cuts.erasures != self.listed() or self.kept(cuts.kept) != cuts.kept

    def kept(self, cuts: tuple[CutRef, ...]) -> tuple[CutRef, ...]:
        """Return the cuts without those that still have the keys of an order."""
        first = max((one.accepted for one in self._known.values() if one.accepted is not None), default=0)
        return tuple(ref for ref in cuts if ref.cut >= first)

    def wants_cut(self) -> bool:
        """Return whether an order waits for a newer cut, or for one with other tails.

        Only tails of cuts before the newest one are deleted. Where nothing changes there would be no other
        cut; and after a restore, cuts have numbers again that those of the past had which was given up, so
        several may have to come.
        """
        newest = self._kept[-1].cut if self._kept else 1
        return any(
            (one.over is not None and one.accepted is None)
            or (one.remains is not None and one.remains.newest_tail >= newest)
            for one in self._known.values()
        )

    # -- rounds

    async def look(self, cuts: Cuts | None) -> None:
        """Judge the orders by `CUT` as it is. Errors are logged, and hold up nothing else."""
        self._kept = () if cuts is None else cuts.kept
        try:
            self._look_for_strays(cuts)
            await self._look(cuts)
        except (StorageError, CorruptionError, RequestError) as e:
            self._failures += 1
            if is_worth_a_line(self._failures):
                log.warning(
                    "orders to erase keys wait, failed %d times in a row, will retry: %s", self._failures, e
                )
        else:
            self._failures = 0
        self._report()

    def _report(self) -> None:
        """Tell health and metrics how far each order is."""
        self._context.metrics.orders = {
            one.id: self.standing(one) for one in self._catalog.erasures().values()
        }

    def standing(self, erasure: Erasure) -> OrderStanding:
        """Return how far an order is, as of the last look."""
        known = self._known.get(erasure.id)
        until_ms = -1 if erasure.is_open else erasure.done_ms + self._context.settings.grace_ms
        if known is None:
            why = self._unread.get(erasure.id, _NOT_LOOKED_AT)
            return OrderStanding(erasure.started_ms, erasure.done_ms, until_ms, why)
        cuts = self._kept if erasure.is_open else ()
        return OrderStanding(
            erasure.started_ms,
            erasure.done_ms,
            until_ms,
            known.why,
            known.left,
            tuple(ref for ref in cuts if known.accepted is None or ref.cut < known.accepted),
            known.tails,
            len(known.clean_tails),
            known.remains,
        )

    async def written(self, cuts: Cuts | None) -> None:
        """Go on with what waited for `CUT`, which is now as `cuts` say; None: there is none. What fails is
        tried again with the next round, and holds up no other order.

        Raises what the fence raises.
        """
        rows = {one.id for one in cuts.erasures} if cuts is not None else None
        for one in self._starting.values():
            if (rows is None or one.erasure.id in rows) and not one.listed.done():
                one.listed.set_result(None)
        for erasure in list(self._catalog.erasures().values()):
            try:
                await self._go_on(erasure, cuts, rows)
            except (Displaced, NotNamed):
                raise
            except (StorageError, RequestError) as e:
                self._waits(erasure.id, str(e))
        await self._delete_documents([one for one in self._left if rows is None or one not in rows])
        self._gone -= {
            one
            for one in self._gone
            if one not in self._catalog.erasures() and (rows is None or one not in rows)
        }

    async def _delete_documents(self, ids: Sequence[UUID]) -> None:
        """Delete the documents of orders that nothing names any more."""
        context, keys = self._context, [self._left[one] for one in ids]
        if not keys:
            return
        try:
            await remove_versions(context, self._versions, keys)
            await context.pool.run(context.store.delete, keys)
        except StorageError as e:
            log.warning("%s is not deleted yet: %s", ", ".join(keys), e)
        else:
            for one in ids:
                del self._left[one]

    async def _go_on(self, erasure: Erasure, cuts: Cuts | None, rows: set[UUID] | None) -> None:
        """End an order, or remove it, once `CUT` is as that needs it; `rows` are the orders that it lists."""
        known = self._known.get(erasure.id)
        if erasure.id in self._gone:
            if rows is None or erasure.id not in rows:
                await self._remove(erasure)
        elif erasure.is_open and known is not None and self._is_done(known, cuts):
            await self._context.fence.check_keeper()
            await self._catalog.finish_erasure(erasure.id, self._context.clock.now_ms())
            log.info("order %s to erase keys is done", erasure.id)

    async def _remove(self, erasure: Erasure) -> None:
        """Remove an order that `CUT` does not list any more from the metadata; its object goes next."""
        await self._context.fence.check_keeper()
        await self._catalog.remove_erasure(erasure.id)
        self._left[erasure.id] = erasure.key
        log.info("order %s to erase keys is removed", erasure.id)
        cancelling = self._cancelling.pop(erasure.id, None)
        if cancelling is not None and not cancelling.done():
            cancelling.set_result(None)

    def _waits(self, erasure_id: UUID, why: str) -> None:
        """Note why an order waits; log it if it is news."""
        known = self._known.get(erasure_id)
        before = self._unread.get(erasure_id) if known is None else known.why
        if known is None:
            self._unread[erasure_id] = why
        else:
            known.why = why
        if why != before:
            log.error("order %s to erase keys waits: %s", erasure_id, why)

    def _look_for_strays(self, cuts: Cuts | None) -> None:
        """Remember the orders in `CUT` that the metadata lacks, and forget them after a while."""
        now_ms = self._context.clock.monotonic_ms()
        known = {*self._catalog.erasures(), *self._starting}
        rows = () if cuts is None else cuts.erasures
        strays = {one.id: one for one in rows if one.id not in known and one.id not in self._gone}
        since = {one: at for one, (_, at) in self._strays.items()}
        self._strays = {
            one: (row, since.get(one, now_ms))
            for one, row in strays.items()
            if now_ms - since.get(one, now_ms) < _STRAY_MS
        }

    async def _look(self, cuts: Cuts | None) -> None:
        erasures = self._catalog.erasures()
        for gone in [one for one in self._known if one not in erasures]:
            del self._known[gone]
        self._unread = {one: why for one, why in self._unread.items() if one in erasures}
        for erasure in list(erasures.values()):
            try:
                await self._look_at(erasure, cuts)
            except (Displaced, NotNamed):
                raise
            except (StorageError, CorruptionError, RequestError) as e:
                self._waits(erasure.id, str(e))
                raise_of_the_store(e)

    async def _look_at(self, erasure: Erasure, cuts: Cuts | None) -> None:
        known = self._known.get(erasure.id)
        if known is None:
            known = self._known[erasure.id] = _Known(await self._orders.ends(erasure))
        if erasure.is_open:
            await self._judge(erasure, known, cuts)
        elif erasure.id not in self._gone:
            await self._look_for_remains(erasure, known, cuts)

    async def _judge(self, erasure: Erasure, known: _Known, cuts: Cuts | None) -> None:
        """Find out what an open order still waits for."""
        told = self._catalog.erased(erasure.id)
        known.left = await Slice().go_on(places_left(erasure.topics, told, self._cluster.replicas))
        if known.left.replicas:
            known.clean_from = known.over = known.accepted = None
            known.why = f"{known.left.replicas} replicas have not erased yet"
            return
        if known.clean_from is None:
            # An attempt at the next cut may be under way, with tails of logs as they were.
            known.clean_from = 0 if cuts is None else cuts.newest.cut + 2
        if known.left.chains:
            known.over = known.accepted = None
            known.why = f"{known.left.chains} archives have not been looked through yet"
            return
        known.over = known.over or self._metadata_end()
        if cuts is not None and known.over is not None and known.accepted is None:
            try:
                if self._cluster.cuts_are_off() and cuts.holds_chains is False:
                    why = await self._judge_old_cuts(erasure, known, cuts)
                else:
                    why = await self._judge_cut(erasure, known, known.over, cuts)
            except UNREADABLE as e:
                raise_of_the_store(e)
                why = str(e)
            if why is not None:
                no_cuts = self._cluster.why_no_cuts()
                known.why = f"{why}; {no_cuts}" if no_cuts else why

    async def _judge_old_cuts(self, erasure: Erasure, known: _Known, cuts: Cuts) -> str | None:
        """Accept all cuts that there are, as no newer one will come, if none of their tails has any of the
        keys; else return why not. Of chains they hold nothing: what an order drops goes all the same."""
        named: dict[str, CutRef] = {}
        for ref in cuts.kept:
            named |= {key: ref for key in await self._documents.tails_of(ref) if key not in named}
        known.tails, known.clean_tails = len(named), known.clean_tails & named.keys()
        for key, ref in named.items():
            if (why := await self._why_not_clean(erasure, known, key, ref)) is not None:
                return why
        known.accepted = 0
        known.why = "no kept cut has the keys"
        return None

    async def _why_not_clean(self, erasure: Erasure, known: _Known, key: str, ref: CutRef) -> str | None:
        """Return why a tail of a cut keeps an order open; None, and know it, if it has none of the keys."""
        assert known.clean_from is not None
        if key in known.clean_tails:
            return None
        parsed = parse_key(key)
        if not (isinstance(parsed, TailKey) and parsed.cut >= known.clean_from):
            order = await self._orders.open(erasure)
            hits = await self._context.pool.watch(partial(count_in_tail, self._context.store, key, order))
            if hits:
                return (
                    f"{key}, a tail of cut {ref.cut}, has {hits} records of the keys; newer ones are awaited"
                )
        known.clean_tails.add(key)
        return None

    async def _judge_cut(self, erasure: Erasure, known: _Known, over: MetadataEnd, cuts: Cuts) -> str | None:
        """Accept the cut that is to be the first one, if it has nothing of the keys; else return why it is
        not accepted."""
        ref = cuts.exact or cuts.complete
        if ref is None:
            return "no cut is complete yet"
        reached = self._documents.oldest_metadata([ref]) or NEVER_NAMED
        if reached < over:
            return f"cut {ref.cut} has the archives as they were; a newer complete one is awaited"
        named = await self._documents.tails_of(ref)
        known.tails, known.clean_tails = len(named), known.clean_tails.intersection(named)
        for key in named:
            if (why := await self._why_not_clean(erasure, known, key, ref)) is not None:
                return why
        known.accepted = ref.cut
        known.why = "cuts that still have the keys are about to go"
        return None

    def _is_done(self, known: _Known, cuts: Cuts | None) -> bool:
        """Return whether no live object, tail, kept cut or replica has the keys. A broker that is away may
        have files of a former replica, and be assigned one again."""
        if known.over is None or known.left.is_any:
            return False
        if cuts is not None and (known.accepted is None or self.kept(cuts.kept) != cuts.kept):
            return False
        away = self._brokers_away()
        if away:
            known.why = away
            return False
        return True

    def _brokers_away(self) -> str:
        away = sorted(self._cluster.fenced_brokers())
        if not away:
            return ""
        return (
            f"brokers {', '.join(map(str, away))} are away and may have files with the keys; bring them back "
            f"or unregister them"
        )

    # -- what is left of an order that is done

    async def _look_for_remains(self, erasure: Erasure, known: _Known, cuts: Cuts | None) -> None:
        """Find out whether all is gone that the order dropped, once the grace is over."""
        context = self._context
        now_ms, monotonic_ms = context.clock.now_ms(), context.clock.monotonic_ms()
        grace_ms = context.settings.grace_ms
        if now_ms < erasure.done_ms + grace_ms or monotonic_ms < known.look_due_ms:
            return
        known.look_due_ms = monotonic_ms + min(max(grace_ms, 1_000), _REMAINS_MS)
        if away := self._brokers_away():
            known.why = away
            return
        await context.fence.check_keeper()
        tails = frozenset() if cuts is None else (await self._documents.kept(cuts)).tails
        entries = await Slice().go_on(entries_of(known.ends, self._catalog.entry))
        known.remains = await context.pool.watch(
            partial(
                what_remains,
                context.store,
                context.chains,
                known.ends,
                entries,
                tails,
                erasure.done_ms,
                self._versions,
            )
        )
        known.why = known.remains.words
        if known.remains.is_nothing:
            self._gone.add(erasure.id)
            self.wake()

    # -- requests

    async def start(self, order: ErasureOrder) -> Erasure:
        """Take an order: write its object, have `CUT` list it, then tell the metadata. An order that is known
        already is answered as it is.

        Raises `OrderRefused`, what the store raises, or `StorageError` where the outcome is unknown, at last
        after `_PATIENT_S`; the same order may be given again.
        """
        context = self._context
        if (known := self._catalog.erasures().get(order.id)) is not None:
            return known
        if len(self.listed()) + self._writing >= MAX_ERASURES and order.id not in self._starting:
            raise OrderRefused(_POLICY, f"{MAX_ERASURES} orders are open; wait until one of them is gone")
        self._writing += 1
        try:
            await context.fence.check_keeper()
            erasure = await context.pool.run(write_order, context.store, order)
        except OrderDiffers as e:
            raise OrderRefused(_POLICY, str(e)) from e
        finally:
            self._writing -= 1
        starting = self._starting.get(order.id)
        if starting is None:
            starting = self._starting[order.id] = _Starting(
                erasure, asyncio.get_running_loop().create_future()
            )
        self.wake()
        try:
            await _patiently(starting.listed, f"order {order.id} is not started")
            await context.fence.check_keeper()
            await self._catalog.start_erasure(erasure)
        finally:
            self._starting.pop(order.id, None)
        return erasure

    async def cancel(self, erasure_id: UUID) -> Erasure:
        """End an order that is not done: what is erased stays erased, the rest stays. First `CUT` forgets it,
        then the metadata, so that no restore carries it out after that. One that is done, and whose document
        cannot be read, is ended, too: nobody can say what it has left, and no restore begins with it.

        Raises `OrderRefused` where there is no such order, or it is done; `StorageError` where the outcome is
        unknown, at last after `_PATIENT_S`.
        """
        erasure = self._catalog.erasures().get(erasure_id)
        if erasure is None:
            raise OrderRefused(_NOT_FOUND, f"there is no order {erasure_id}")
        if not erasure.is_open and erasure_id not in self._unread:
            raise OrderRefused(
                _POLICY, f"order {erasure_id} is done; it goes by itself once all that it dropped is gone"
            )
        await self._context.fence.check_keeper()
        cancelled = self._cancelling.get(erasure_id)
        if cancelled is None:
            cancelled = self._cancelling[erasure_id] = asyncio.get_running_loop().create_future()
        self._gone.add(erasure_id)
        self.wake()
        await _patiently(cancelled, f"order {erasure_id} is not cancelled")
        return erasure

    # -- status

    async def named_tails(self) -> tuple[str, ...]:
        """Return the keys of all tails that kept cuts name, in order. Raises what reading cuts raises."""
        try:
            cuts = await self._context.pool.run(open_cuts, self._context.store)
        except ObjectNotFound:
            return ()
        named: set[str] = set()
        for ref in cuts.kept:
            named.update(await self._documents.tails_of(ref))
        return tuple(sorted(named))


async def _patiently(written: asyncio.Future[None], what: str) -> None:
    """Wait for `CUT` to be written. Raises `StorageError` where that takes too long."""
    try:
        async with asyncio.timeout(_PATIENT_S):
            await asyncio.shield(written)
    except TimeoutError as e:
        raise StorageError(f"{what}: CUT was not written within {_PATIENT_S} s; it may be yet") from e
