"""Check of the orders to erase keys: `CUT` and the metadata name them, each has a whole document.

Documents that neither names are orphans: of an order that never began, or of one that is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from service.base.errors import CorruptionError
from service.inspect.committed import Committed
from service.inspect.fsck_report import FsckReport
from service.remote.catalog import Erasure
from service.remote.format.cut_codec import ErasureRef
from service.remote.format.keys import ERASE_PREFIX, ErasureKey, parse_key
from service.remote.reading.erasure_orders import open_order
from service.remote.reading.tails import open_cuts
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore


def check_erasures(
    store: ObjectStore,
    report: FsckReport,
    owners: Collection[str] | None,
    committed: Committed,
    listed: Sequence[ErasureRef] | None,
) -> None:
    """Check the orders of a bucket; errors and orphans are in the report.

    `listed` are those of `CUT`, None where it cannot be read, which the check of cuts names.
    """
    copied: Mapping[UUID, Erasure] = {} if committed.copy is None else committed.copy.image.erasures
    by_cut = {one.id: one for one in listed or ()}
    refs = {**{one.id: ErasureRef(*one[:4]) for one in copied.values()}, **by_cut}
    report.erasures = len(refs)
    for ref in refs.values():
        wrong = _why_wrong(store, ref, owners)
        if wrong is None:
            continue
        if ref.id not in by_cut:
            # The document goes before the order does, and the copy may be older than that.
            report.note(ref.key, f"{wrong}; the copy of the metadata has its order")
        elif _is_still_listed(store, ref, owners):
            report.error(ref.key, wrong)
    for info in store.list(ERASE_PREFIX):
        parsed = parse_key(info.key)
        if not isinstance(parsed, ErasureKey):
            report.note(info.key, "not a key of this layout")
        elif parsed.id not in refs and listed is not None:
            report.orphan(info.key, info.size)


def _is_still_listed(store: ObjectStore, ref: ErasureRef, owners: Collection[str] | None) -> bool:
    """Return whether `CUT`, read now, lists the order: it leaves the list before its document goes."""
    try:
        return ref in open_cuts(store, owners).erasures
    except (ObjectNotFound, CorruptionError):
        return False


def _why_wrong(store: ObjectStore, ref: ErasureRef, owners: Collection[str] | None) -> str | None:
    try:
        open_order(store, ref, owners)
    except (ObjectNotFound, CorruptionError) as e:
        return str(e)
    return None
