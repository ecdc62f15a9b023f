"""Read the footers of tails into the table of their sections, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Container, Sequence
from itertools import islice
from typing import Final

from service.base.errors import CorruptionError
from service.base.slices import Slice
from service.remote.format.cut_codec import Cut, TailRef
from service.remote.format.keys import TAIL_PREFIX, TailKey, parse_key
from service.remote.format.manifest_codec import ClusterFile
from service.remote.format.tail_object import TailFooter
from service.remote.reading.tails import OpenTail, find_tail, is_of_a_given_up_past, open_tail, owners_of
from service.remote.stores.errors import UNREADABLE, raise_of_the_store
from service.tiering.archive_attempt import TieringContext
from service.tiering.cuts.cut_objects import prove_tails
from service.tiering.cuts.tail_table import TailTable

_AT_ONCE: Final = 4
"""Calls on the offload pool at the same time; the others are for segments."""
_TRIES: Final = 3
"""Times that a damaged footer is read: bytes may have changed on their way."""


async def read_tails(
    context: TieringContext, table: TailTable, cut: Cut, owners: Collection[str]
) -> dict[str, Exception]:
    """Add the tails that a cut names; return those that cannot be read, and why.

    Raises a store's error that is not of one object.
    """
    lost: dict[str, Exception] = {}

    async def read(ref: TailRef) -> tuple[TailRef, TailFooter] | None:
        for left in reversed(range(_TRIES)):
            try:
                return ref, await context.pool.run(open_tail, context.store, ref, owners)
            except CorruptionError as e:
                if not left:
                    lost[ref.key] = e
            except UNREADABLE as e:
                raise_of_the_store(e)
                lost[ref.key] = e
                break
        return None

    piece, refs = Slice(), iter(cut.tails)
    while some := list(islice(refs, _AT_ONCE)):
        for found in await asyncio.gather(*map(read, some)):
            if found is not None:
                await piece.go_on(table.add(found[0], found[1].level, found[1].sections))
    return lost


async def read_listed(
    context: TieringContext, table: TailTable, numbers: Container[int], cluster: ClusterFile
) -> dict[str, Exception]:
    """Add the tails that lie in the bucket and were written for cuts of these numbers; return those that
    cannot be read, and why. Not those that an ancestor of `cluster` has written behind the cut which that was
    restored from: they may have other records at the same offsets.

    Raises a store's error that is not of one object.
    """

    def find() -> tuple[list[OpenTail], dict[str, Exception]]:
        found: list[OpenTail] = []
        lost: dict[str, Exception] = {}
        owners = owners_of(cluster)
        for info in context.store.list(TAIL_PREFIX):
            key = parse_key(info.key)
            if isinstance(key, TailKey) and key.cut in numbers:
                try:
                    one = find_tail(context.store, info.key, owners)
                except UNREADABLE as e:
                    raise_of_the_store(e)
                    lost[info.key] = e
                    continue
                if not is_of_a_given_up_past(cluster, one.footer):
                    found.append(one)
        return found, lost

    found, lost = await context.pool.run(find)
    piece = Slice()
    for one in found:
        await piece.go_on(table.add(one.ref, one.footer.level, one.footer.sections))
    return lost


async def add_proved(
    context: TieringContext, table: TailTable, refs: Sequence[TailRef], owners: Collection[str], number: int
) -> None:
    """Prove the tails of cut `number` that brokers have just uploaded, by their footers, and add them.

    Raises what `prove_tails` raises.
    """
    footers = await context.pool.run(prove_tails, context.store, refs, owners, number)
    piece = Slice()
    for footer, ref in zip(footers, refs, strict=True):
        await piece.go_on(table.add(ref, footer.level, footer.sections))
