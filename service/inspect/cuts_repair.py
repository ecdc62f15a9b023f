"""Repair of `CUT`, from the documents of cuts that lie in the bucket.

The newest document that can be read becomes the one cut that is kept: what it names is there, as tails go
only once a later cut names them no more. Earlier cuts are given up, as their tails may be gone. It is not
said to be complete; the keeper of the prefix looks at that when it goes on from there. All orders to erase
keys that lie in the bucket are listed, so that no restore brings the keys back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from service.base.errors import ConfigError, CorruptionError, UnknownVersion
from service.inspect.head_repair import Unrepairable
from service.remote.format.cut_codec import MAX_ERASURES, Cuts, ErasureRef, decode_cut
from service.remote.format.documents import MAX_STORED_BYTES
from service.remote.format.keys import CUT_NAME, CUT_PREFIX, CutKey, parse_key
from service.remote.format.manifest_codec import MAX_SMALL_BYTES
from service.remote.reading.erasure_orders import open_order, orders_to_restore
from service.remote.reading.object_reader import open_cluster_file
from service.remote.reading.tails import is_of_a_given_up_past, listed_cuts, open_cuts, owners_of
from service.remote.stores import conditional
from service.remote.stores.errors import UNREADABLE, ObjectNotFound, raise_of_the_store
from service.remote.stores.store import ObjectStore, Tagged


class CutsRepair(NamedTuple):
    """The repair of `CUT`."""

    wrong: str
    cuts: Cuts
    expected: Tagged | None
    """the object to replace"""

    def __str__(self) -> str:
        return f"{CUT_NAME}: {self.wrong}; to be made from {self.cuts.newest.key}, earlier cuts are given up"


def find_cuts_repair(store: ObjectStore) -> CutsRepair | Unrepairable | None:
    """Return the repair of `CUT`; None where nothing is wrong with it. Changes nothing.

    Raises a store's error that is not of one object.
    """
    wrong = "it is gone"
    try:
        open_cuts(store)
        return None
    except ObjectNotFound:
        if not is_cut_lost(store):
            return None
    except UnknownVersion as e:
        return Unrepairable(CUT_NAME, str(e))
    except CorruptionError as e:
        wrong = str(e)
    try:
        cluster = open_cluster_file(store)
        expected = conditional.tagged_or_none(store, CUT_NAME, max_size=MAX_SMALL_BYTES)
    except UNREADABLE as e:
        raise_of_the_store(e)
        return Unrepairable(CUT_NAME, f"{wrong}; {e}: repair that first")
    try:
        orders = orders_to_restore(store, None, owners_of(cluster))
    except ConfigError as e:
        return Unrepairable(CUT_NAME, f"{wrong}; {e}")
    erasures = tuple(ErasureRef(one.id, one.key, one.stored_size, one.crc32c) for one in orders)
    if len(erasures) > MAX_ERASURES:
        return Unrepairable(CUT_NAME, f"{wrong}; there are {len(erasures)} orders to erase keys")
    for found in listed_cuts(store, owners_of(cluster), lambda key, error: None):
        if not is_of_a_given_up_past(cluster, found.cut):
            return CutsRepair(wrong, Cuts(found.cut.cluster_id, (found.ref,), erasures), expected)
    return Unrepairable(
        CUT_NAME, f"{wrong}; no document of a cut can be read: delete it, and cuts begin anew"
    )


def damaged_orders(store: ObjectStore) -> Iterator[Unrepairable]:
    """Yield the orders to erase keys that `CUT` lists, and that cannot be read."""
    try:
        erasures = open_cuts(store).erasures
    except (ObjectNotFound, CorruptionError):
        return
    for ref in erasures:
        try:
            open_order(store, ref)
        except UNREADABLE as e:
            raise_of_the_store(e)
            yield Unrepairable(ref.key, f"{e}; nothing else has its keys: give the order anew (firn erase)")


def is_cut_lost(store: ObjectStore) -> bool:
    """Return whether `CUT`, which is not there, has been there: some cut followed another. The first cut's
    document is written before it, and those of attempts that could not write it.

    Raises a store's error that is not of one object.
    """
    keys = [info.key for info in store.list(CUT_PREFIX)]
    return any(isinstance(one := parse_key(key), CutKey) and _follows(store, key, one) for key in keys[::-1])


def _follows(store: ObjectStore, key: str, named: CutKey) -> bool:
    """Return whether the document tells of a cut before it, as far as can be known."""
    if named.cut == 1:
        return False
    try:
        cut = decode_cut(store.get(key, max_size=MAX_STORED_BYTES))
    except UNREADABLE as e:
        raise_of_the_store(e)
        return not isinstance(e, ObjectNotFound)
    return cut.follows != 0
