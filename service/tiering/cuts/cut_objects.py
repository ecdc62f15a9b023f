"""Read and write the objects of cuts: `CUT`, their documents, the tail of the metadata. Functions block."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError, UnknownVersion
from service.remote.format.cut_codec import (
    METADATA_TOPIC_ID,
    Cut,
    CutRef,
    Cuts,
    TailRef,
    decode_cuts,
    encode_cut,
    encode_cuts,
)
from service.remote.format.documents import is_damage_of
from service.remote.format.keys import (
    CUT_NAME,
    CUT_PREFIX,
    CutKey,
    TailKey,
    cut_key,
    parse_key,
    tail_key,
)
from service.remote.format.manifest_codec import MAX_SMALL_BYTES
from service.remote.format.stamp import Stamp
from service.remote.format.tail_object import TRAILER, TailFooter, TailSection, encode_footer
from service.remote.reading.tails import open_tail
from service.remote.stores import conditional
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore, Tagged
from service.tiering.cuts.ports import MetadataTail


class StoredCuts(NamedTuple):
    """`CUT` as it is in the bucket, None where there is none; `next_cut` is the number of the next one."""

    cuts: Cuts | None
    stored: Tagged | None
    next_cut: int


def read_stored(store: ObjectStore, owners: Collection[str]) -> StoredCuts:
    """Return `CUT`. Raises `CorruptionError` where it is damaged, of another cluster or of later software.

    Where there is none, the next number is above those of all cuts that a lost `CUT` may have named.
    """
    seen = conditional.tagged_or_none(store, CUT_NAME, max_size=MAX_SMALL_BYTES)
    if seen is None:
        return StoredCuts(None, None, _greatest_number(store) + 1)
    with naming(CUT_NAME):
        cuts = decode_cuts(seen.data)
        if cuts.cluster_id not in owners:
            raise CorruptionError(f"of cluster {cuts.cluster_id}")
    return StoredCuts(cuts, seen, cuts.newest.cut + 1)


def _greatest_number(store: ObjectStore) -> int:
    parsed = (parse_key(info.key) for info in store.list(CUT_PREFIX))
    return max((one.cut for one in parsed if isinstance(one, CutKey)), default=0)


def write_cut(store: ObjectStore, cut: Cut, uuid: UUID) -> CutRef:
    """Write a cut's document; return what `CUT` says of it, not yet complete.

    Raises `ValueError` where readers would refuse it.
    """
    data = encode_cut(cut)
    key = cut_key(CutKey(cut.cut, uuid))
    store.put_stream(key, [data], len(data))
    return CutRef(cut.cut, key, len(data), crc32c(data), cut.at_ms, cut.is_exact, is_complete=False)


def replace_stored(store: ObjectStore, before: StoredCuts, cuts: Cuts) -> StoredCuts | None:
    """Replace `CUT`, which must be as `before` has it; return it as it is stored now, None where another
    process has written it since.

    What is there with a few bytes changed counts as what this process wrote.
    """
    data = encode_cuts(cuts)
    seen = conditional.tagged_or_none(store, CUT_NAME, max_size=MAX_SMALL_BYTES)
    if not _is_same(seen, before.stored) or not conditional.write(store, CUT_NAME, data, seen):
        return None
    return StoredCuts(cuts, Tagged(data, ""), cuts.newest.cut + 1)


def _is_same(seen: Tagged | None, before: Tagged | None) -> bool:
    if seen is None or before is None:
        return seen is None and before is None
    if seen.data == before.data:
        return True
    try:
        decode_cuts(seen.data)
    except UnknownVersion:
        return False
    except CorruptionError:
        return is_damage_of(seen.data, before.data)
    return False


def prove_tails(
    store: ObjectStore, refs: Iterable[TailRef], owners: Collection[str], cut: int
) -> list[TailFooter]:
    """Return the footers of tails that brokers name for cut number `cut`: one ranged GET each.

    They were uploaded for it, or for an attempt at the one before: an older one may have been swept.

    Raises `CorruptionError` where one is not that, `ObjectNotFound` where it is gone.
    """
    footers = []
    for ref in refs:
        footer = open_tail(store, ref, owners)
        if not cut - 1 <= footer.cut <= cut:
            raise CorruptionError(f"{ref.key}: a tail of cut {footer.cut} cannot be named by cut {cut} first")
        footers.append(footer)
    return footers


def write_metadata_tail(
    store: ObjectStore,
    cluster_id: str,
    tail: MetadataTail,
    first: int,
    end: int,
    cut: int,
    uuid: UUID,
    stamp: Stamp,
) -> tuple[TailRef, TailSection]:
    """Write the metadata's records from `first` to `end`, exclusive, as a tail of the keeper."""
    section = TailSection(
        topic_id=METADATA_TOPIC_ID,
        partition=0,
        leader_epoch=tail.epoch,
        first_offset=first,
        end_offset=end,
        position=0,
        length=len(tail.data),
        crc32c=crc32c(tail.data),
        record_count=tail.records,
        max_timestamp=tail.max_timestamp,
        last_batch_epoch=tail.epoch,
    )
    footer = encode_footer(cluster_id, cut, 0, [section], stamp)
    key = tail_key(TailKey(cut, 0, stamp.writer.node_id, uuid))
    size = len(tail.data) + len(footer)
    store.put_stream(key, [tail.data, footer], size)
    _, crc, _ = TRAILER.unpack_from(footer, len(footer) - TRAILER.size)
    return TailRef(key, size, len(tail.data), crc), section
