"""Open cuts and tails, and index the sections of tails: blocking calls, for pool threads and offline tools.

Each object is checked against what names it: a cut by `CUT`, a tail's footer by the cut. What is missing,
damaged or of another cluster is an error that names the object, and never taken for something empty.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.remote.format.coverage import Coverage, Span, cover
from service.remote.format.cut_codec import (
    Cut,
    CutRef,
    Cuts,
    Place,
    TailRef,
    decode_cut,
    decode_cuts,
    open_cut,
)
from service.remote.format.documents import MAX_STORED_BYTES
from service.remote.format.keys import CUT_NAME, CUT_PREFIX, CutKey, TailKey, parse_key
from service.remote.format.manifest_codec import MAX_SMALL_BYTES, ClusterFile
from service.remote.format.tail_object import (
    MAX_FOOTER_BYTES,
    SUFFIX_HINT,
    TRAILER,
    TailFooter,
    decode_footer,
    footer_length,
)
from service.remote.reading.object_reader import read_suffix
from service.remote.stores.errors import UNREADABLE, ObjectTruncated, naming, raise_of_the_store
from service.remote.stores.store import ObjectStore

Offsets = tuple[int, int]
"""first offset, and the one behind the last"""

_GUESSES: Final = 2
_MOST_LISTED: Final = 256
_AT_ONCE: Final = 64


class OpenCut(NamedTuple):
    """A cut, and what `CUT` says of it."""

    ref: CutRef
    cut: Cut


class OpenTail(NamedTuple):
    """A tail whose footer was read."""

    ref: TailRef
    footer: TailFooter


def owners_of(cluster: ClusterFile) -> frozenset[str]:
    """Return the ids of the prefix's cluster and of its ancestors: what they wrote is the cluster's own."""
    return frozenset((cluster.cluster_id, *(one.cluster_id for one in cluster.ancestors)))


def open_cuts(store: ObjectStore, owners: Collection[str] | None = None) -> Cuts:
    """Return `CUT`; raise `ObjectNotFound` where no cut was ever written.

    Where `owners` are given, one of another cluster is a `CorruptionError`, here and below.
    """
    with naming(CUT_NAME):
        cuts = decode_cuts(store.get(CUT_NAME, max_size=MAX_SMALL_BYTES))
        _check_owner(cuts.cluster_id, owners)
    return cuts


def open_named_cut(store: ObjectStore, ref: CutRef, owners: Collection[str] | None = None) -> Cut:
    """Return the cut that `ref` names, its bytes checked against it."""
    with naming(ref.key):
        cut = open_cut(store.get(ref.key, max_size=MAX_STORED_BYTES), ref)
        _check_owner(cut.cluster_id, owners)
    return cut


def listed_cuts(
    store: ObjectStore, owners: Collection[str], report: Callable[[str, Exception], None]
) -> Iterator[OpenCut]:
    """Yield the cuts of these clusters whose documents lie in the bucket and can be read, the newest first;
    for where `CUT` cannot be. None is known to be complete.

    Those that cannot be read, and those of other clusters, are reported. Raises a store's error that is not
    of one object.
    """
    keys = [info.key for info in store.list(CUT_PREFIX) if isinstance(parse_key(info.key), CutKey)]
    for key in keys[: -_MOST_LISTED - 1 : -1]:
        try:
            data = store.get(key, max_size=MAX_STORED_BYTES)
            with naming(key):
                cut = decode_cut(data)
                parsed = parse_key(key)
                if not isinstance(parsed, CutKey) or parsed.cut != cut.cut:
                    raise CorruptionError(f"the document is of cut {cut.cut}")
                _check_owner(cut.cluster_id, owners)
        except UNREADABLE as e:
            raise_of_the_store(e)
            report(key, e)
            continue
        ref = CutRef(cut.cut, key, len(data), crc32c(data), cut.at_ms, cut.is_exact, is_complete=False)
        yield OpenCut(ref, cut)


def is_of_a_given_up_past(cluster: ClusterFile, written: Cut | TailFooter) -> bool:
    """Return whether a cluster took the cut, or wrote the tail for a cut, that the prefix's cluster was
    restored from an earlier cut of."""
    return any(
        one.cluster_id == written.cluster_id and one.until_cut < written.cut for one in cluster.ancestors
    )


def newest_readable(
    store: ObjectStore,
    cuts: Cuts,
    is_wanted: Callable[[CutRef], bool],
    report: Callable[[CutRef, Exception], None],
    owners: Collection[str] | None = None,
) -> OpenCut | None:
    """Return the newest wanted cut whose document can be read; None where there is none.

    Those that cannot be read are reported. Raises a store's error that is not of one object.
    """
    for ref in reversed(cuts.kept):
        if is_wanted(ref):
            try:
                return OpenCut(ref, open_named_cut(store, ref, owners))
            except UNREADABLE as e:
                raise_of_the_store(e)
                report(ref, e)
    return None


def open_tail(store: ObjectStore, ref: TailRef, owners: Collection[str] | None = None) -> TailFooter:
    """Return the footer of a tail that a cut names: one ranged GET, checked against the reference."""
    with naming(ref.key):
        length = ref.size - ref.footer_position
        if not 0 < length <= MAX_FOOTER_BYTES + TRAILER.size:
            raise CorruptionError(f"a footer of {length} bytes")
        try:
            data = store.get_range(ref.key, ref.footer_position, length)
        except ObjectTruncated as e:
            raise CorruptionError("shorter than the cut says") from e
        footer = decode_footer(data, ref.size)
        if (footer.position, footer.crc) != (ref.footer_position, ref.footer_crc):
            raise CorruptionError("not the footer that the cut names")
        _check_tail(ref.key, footer, owners)
    return footer


def find_tail(store: ObjectStore, key: str, owners: Collection[str] | None = None) -> OpenTail:
    """Return the footer of the tail under `key`, which no cut need name: a suffix GET, two for a long one."""
    with naming(key):
        suffix, size = read_suffix(store, key, SUFFIX_HINT, footer_length, _GUESSES)
        footer = decode_footer(suffix, size)
        _check_tail(key, footer, owners)
    return OpenTail(TailRef(key, size, footer.position, footer.crc), footer)


def _check_tail(key: str, footer: TailFooter, owners: Collection[str] | None) -> None:
    parsed = parse_key(key)
    if not isinstance(parsed, TailKey) or parsed[:2] != (footer.cut, footer.level):
        raise CorruptionError(f"the footer is of cut {footer.cut}, level {footer.level}")
    _check_owner(footer.cluster_id, owners)


def _check_owner(cluster_id: str, owners: Collection[str] | None) -> None:
    if owners is not None and cluster_id not in owners:
        raise CorruptionError(f"of cluster {cluster_id}, not of {', '.join(sorted(owners))}")


class TailIndex:
    """Sections of tails by partition: which of them have a partition's records behind its chain."""

    def __init__(self, limits: Mapping[Place, Offsets] | None = None) -> None:
        """`limits`: the partitions whose sections are held, and the offsets of which a section has some."""
        self._limits = limits
        self._spans: dict[Place, list[Span]] = {}

    def add(self, key: str, footer: TailFooter) -> None:
        """Add the sections of one tail."""
        for section in footer.sections:
            place = section.topic_id, section.partition
            if self._limits is not None:
                first, end = self._limits.get(place, (0, 0))
                if section.end_offset <= first or section.first_offset >= end:
                    continue
            self._spans.setdefault(place, []).append(Span(key, footer.level, section))

    def places(self) -> tuple[Place, ...]:
        """Return the partitions that have sections, in order."""
        return tuple(sorted(self._spans))

    def pieces(self, place: Place, start: int, end: int, *, last_epoch: int = -1) -> Coverage:
        """Return the sections to read for the offsets from `start` to `end`, exclusive.

        `last_epoch` is the leader epoch of the last batch below `start`: a section whose last batch is of an
        earlier one has records of before an unclean election, and other bytes than the log.
        """
        spans = self._spans.get(place, ())
        return cover((one for one in spans if one.section.last_batch_epoch >= last_epoch), start, end)


def index_tails(
    store: ObjectStore,
    refs: Sequence[TailRef],
    *,
    owners: Collection[str] | None = None,
    limits: Mapping[Place, Offsets] | None = None,
    pool: Executor | None = None,
) -> TailIndex:
    """Return the sections of these tails; with `pool` several footers are read at a time.

    Raises `ObjectNotFound` or `CorruptionError` for the first tail that cannot be read.
    """
    index = TailIndex(limits)
    work = partial(open_tail, store, owners=owners)
    for at in range(0, len(refs), _AT_ONCE):
        some = refs[at : at + _AT_ONCE]
        footers: Iterable[TailFooter] = map(work, some) if pool is None else pool.map(work, some)
        for ref, footer in zip(some, footers, strict=True):
            index.add(ref.key, footer)
    return index
