"""Bugs of rewrites and erasures, planted one at a time: `python -m simulator.cluster --rewrites --plants`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from service.base.types import NO_LEADER_EPOCH
from service.controller_client.catalog_image import CatalogImage
from service.controller_client.remote_log_catalog import RpcCatalog
from service.hot.cleaning.erasure_copy import ErasureCopy, HitSearch
from service.hot.erased_orders import ErasedOrders
from service.inspect.restore_records import _Heir
from service.metadata.controller import erase_control
from service.records.batch import complete_headers
from service.records.compaction import empty_batch
from service.records.decode import records_of
from service.records.erasure import ErasureCopier
from service.remote import opened_order
from service.remote.catalog import IN_BUCKET, RewriteAnswer
from service.remote.format import run_check
from service.replicas import local_erasures
from service.replicas.erasure_guard import ErasureGuard
from service.replicas.local_erasures import LocalErasures
from service.tiering.rewriting import rules, run_object
from service.tiering.sweeper import ChainState, Sweeper, _is_final
from simulator.process import CURRENT

Plant = Callable[[], None]


def _swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


def intent_ignored_by_the_sweeper() -> None:
    """Delete what a rewrite that lives has made, at the second sight."""
    _swap(ChainState, "is_rewritten", lambda _: lambda self, key: False)
    _swap(Sweeper, "_is_overdue", lambda _: lambda self, orphan, before, now_ms: _is_final(orphan, before))


def epochs_from_the_first_segment() -> None:
    """Give a rewritten object the leader epochs of its run's first segment, and let nobody compare them."""
    _swap(rules, "run_epochs", lambda _: lambda entries: entries[0].leader_epochs)
    _swap(run_object, "_check_epochs", lambda _: lambda epochs, found, run: None)
    _swap(run_check, "_clipped", lambda _: lambda epochs, segment: ())


def null_keys_lost() -> None:
    """Erase what has no key along with an order's keys, where a batch has nothing else."""

    def make(copy: Any) -> Any:
        def losing(self: Any, piece: Any, batches: Any) -> Iterator[memoryview]:
            for part in (*map(bytes, copy(self, piece, batches)), *map(bytes, self.rest())):
                yield memoryview(b"".join(_without_null_keys(part)))

        return losing

    _swap(ErasureCopier, "copy", make)


def _without_null_keys(data: bytes) -> Iterator[bytes]:
    for header in complete_headers(data):
        keys = [one.key for one in records_of(data, header)] if not header.is_control else []
        is_lost = bool(keys) and not any(keys)
        yield bytes(empty_batch(header)) if is_lost else data[header.position : header.end]


def order_forgotten_by_a_restore() -> None:
    """Bring a cluster back without the orders that `CUT` lists."""
    _swap(_Heir, "erasures", lambda _: lambda self, listed: iter(()))


def commit_without_intent() -> None:
    """Rewrite without an intent in the metadata: the node alone knows of it, and commits as without one."""
    begun: dict[tuple[str, Any, int], Any] = {}

    def place(topic_id: Any, partition: int) -> tuple[str, Any, int]:
        return CURRENT.get().name, topic_id, partition

    async def unasked(self: Any, tip: Any, intent: Any) -> RewriteAnswer:
        begun[place(tip.topic_id, tip.partition)] = intent
        return RewriteAnswer.BEGUN

    async def forgotten(self: Any, tip: Any, rewrite_id: Any) -> None:
        begun.pop(place(tip.topic_id, tip.partition), None)

    def make(commit: Any) -> Any:
        async def plain(self: Any, commits: Any) -> Any:
            results = await commit(self, [one._replace(rewrite_id=None) for one in commits])
            for one in commits:
                if one.rewrite_id is not None:
                    begun.pop(place(one.tip.topic_id, one.tip.partition), None)
            return results

        return plain

    _swap(RpcCatalog, "begin_rewrite", lambda _: unasked)
    _swap(RpcCatalog, "give_up_rewrite", lambda _: forgotten)
    _swap(RpcCatalog, "commit", make)
    _swap(CatalogImage, "rewrite", lambda _: lambda self, topic_id, index: begun.get(place(topic_id, index)))


def one_record_more_erased() -> None:
    """Erase one record more than the order has from a local log: the one at its end."""

    def search(init: Any) -> Any:
        def one_more(self: Any, segment: Any, keys: Any, end_offset: int, *rest: Any) -> None:
            init(self, segment, keys, end_offset + 1, *rest)

        return one_more

    def copy(init: Any) -> Any:
        def one_more(
            self: Any, state: Any, old: Any, segment_end: Any, keys: Any, end_offset: int, *rest: Any
        ) -> None:
            init(self, state, old, segment_end, keys, end_offset + 1, *rest)

        return one_more

    _swap(HitSearch, "__init__", search)
    _swap(ErasureCopy, "__init__", copy)


def erased_above_the_high_watermark() -> None:
    """Carry an order out in a log whose records below its end are not known to be committed, and tell it
    although the replica is not in sync."""

    def make(why_not: Any) -> Any:
        def careless(self: Any, key: Any, partition: Any, end: int) -> str | None:
            why: str | None = why_not(self, key, partition, end)
            return None if why is not None and why.startswith("the high watermark") else why

        return careless

    def places(found: Any) -> Any:
        def all_in_sync(self: Any, image: Any, order: Any) -> Iterator[Any]:
            for place, replica in found(self, image, order):
                yield place, replica._replace(isr=replica.replicas)

        return all_in_sync

    def knows(partition: Any, broker_id: int, sender: Any) -> bool:
        is_bucket = broker_id == IN_BUCKET
        return partition.has_leader if is_bucket else broker_id in partition.replicas

    _swap(LocalErasures, "_why_not", make)
    _swap(LocalErasures, "_places", places)
    _swap(erase_control, "_knows", lambda _: knows)


def ends_without_leader_epochs() -> None:
    """Take an order's end for an offset alone: records of later leader epochs below it go, too."""

    def make(end_of: Any) -> Any:
        return lambda *args: end_of(*args)._replace(leader_epoch=NO_LEADER_EPOCH)

    for module in (local_erasures, opened_order):
        _swap(module, "end_of", make)


def truncated_logs_stay_erased() -> None:
    """Keep what a log notes of orders although it was cut below their ends."""
    _swap(ErasedOrders, "cut", lambda _: lambda self, end_offset: None)


def copied_before_it_is_erased() -> None:
    """Copy segments of a log that lacks an order whose part in the bucket is over."""
    _swap(ErasureGuard, "may_copy", lambda _: lambda self, topic_id, partition, log: True)


_LOST: Final = ("T24", "P9", "was acknowledged", " follows ")
SIGNS_OF_REWRITES: Final[dict[Plant, tuple[str, ...]]] = {
    intent_ignored_by_the_sweeper: ("T25",),
    epochs_from_the_first_segment: ("T23",),
    null_keys_lost: _LOST,
    order_forgotten_by_a_restore: ("T26",),
    commit_without_intent: ("T25",),
    one_record_more_erased: _LOST,
    erased_above_the_high_watermark: ("T26", *_LOST),
    ends_without_leader_epochs: (*_LOST, "P3"),
    truncated_logs_stay_erased: ("T26",),
    copied_before_it_is_erased: ("T26",),
}
"""Each with the invariant that it breaks: what is lost shows to consumers, too."""
OF_REWRITES: Final[dict[str, Plant]] = {one.__name__: one for one in SIGNS_OF_REWRITES}
WITHIN_OF_REWRITES: Final[dict[str, int]] = dict.fromkeys(OF_REWRITES, 200)
"""Histories in which each is to be found. `docs/simulator.md` says how soon they were."""
