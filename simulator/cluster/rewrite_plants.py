"""Bugs of rewrites and erasures, planted one at a time: `python -m simulator.cluster --rewrites --plants`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from service.controller_client.catalog_image import CatalogImage
from service.controller_client.remote_log_catalog import RpcCatalog
from service.inspect.restore_records import _Heir
from service.metadata.controller import catalog_control
from service.records.batch import complete_headers
from service.records.compaction import empty_batch
from service.records.decode import records_of
from service.records.erasure import ErasureCopier
from service.remote.catalog import RewriteAnswer
from service.remote.format import run_check
from service.tiering.rewriting import rules
from service.tiering.sweeper import ChainState, Sweeper, _is_final

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
    """Rewrite without an intent in the metadata, and have such commits taken."""
    begun: dict[Any, Any] = {}

    def begin(_: Any) -> Any:
        async def unasked(self: Any, tip: Any, intent: Any) -> RewriteAnswer:
            begun[tip.topic_id, tip.partition] = intent
            return RewriteAnswer.BEGUN

        return unasked

    _swap(RpcCatalog, "begin_rewrite", begin)
    _swap(CatalogImage, "rewrite", lambda _: lambda self, topic_id, index: begun.get((topic_id, index)))
    _swap(
        catalog_control,
        "decide_commit",
        lambda decide: lambda current, **options: decide(current, **{**options, "rewrite_id": None}),
    )


OF_REWRITES: Final[dict[str, Plant]] = {
    one.__name__: one
    for one in (
        intent_ignored_by_the_sweeper,
        epochs_from_the_first_segment,
        null_keys_lost,
        order_forgotten_by_a_restore,
        commit_without_intent,
    )
}
WITHIN_OF_REWRITES: Final[dict[str, int]] = dict.fromkeys(OF_REWRITES, 200)
"""Histories in which each is to be found. An order that a restore forgets took 20 from seed 1; how soon the
other four show is not measured yet."""
