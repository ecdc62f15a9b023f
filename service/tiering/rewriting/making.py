"""Makers of the object of a run: who reads, verifies, lays out and uploads it.

An order has all that a maker needs to know, so it can go to another process (`making_child.py`). What is
decided meanwhile stays with the node: the pace of uploads, and whether the object is still wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol
from uuid import UUID

from service.remote.format.segment_object import SegmentIdentity
from service.remote.format.stamp import Stamp
from service.remote.stores.store import ObjectStore
from service.tiering.copier import CallProgress
from service.tiering.ports import SegmentRun
from service.tiering.rewriting.rules import ChainRun, Rule
from service.tiering.rewriting.run_object import MadeObject, RunMaker


class MakeOrder(NamedTuple):
    """An object that is to be made."""

    run: ChainRun
    rule: Rule
    identity: SegmentIdentity
    rewrite_id: UUID
    stamp: Stamp | None
    block_bytes: int


class ObjectMaker(Protocol):
    """Makes objects for a thread of the pool `rewrite`."""

    def make(
        self,
        order: MakeOrder,
        local: Sequence[SegmentRun],
        progress: CallProgress,
        spend: Callable[[int], None],
        /,
    ) -> MadeObject:
        """Return the object, uploaded and checked. Arguments and errors as of `RunMaker`. Blocks."""

    def rest(self) -> None:
        """Free what the next object would need: there is none for now. Blocks."""

    def close(self) -> None:
        """Do the same at the node's end, without waiting for calls that are cancelled."""


class MakerHere:
    """Makes objects on the calling thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def make(
        self,
        order: MakeOrder,
        local: Sequence[SegmentRun],
        progress: CallProgress,
        spend: Callable[[int], None],
    ) -> MadeObject:
        maker = RunMaker(
            self._store, order.run, order.rule, progress,
            local=local, block_bytes=order.block_bytes, spend=spend,
        )  # fmt: skip
        return maker.make(order.identity, order.rewrite_id, order.stamp)

    def rest(self) -> None:
        """Keep all of it: it is nothing."""

    def close(self) -> None:
        """Close nothing."""
