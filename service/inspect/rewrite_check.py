"""Check of rewritten segments against the chains that they were made of, while these are still there.

Replaced manifests live for the grace of deleted objects. Those that this one came from, by `parent_key`, have
the runs as they were: what lies in their place has the same ends, borders that were there before, the same
leader epochs, and a greater generation. Where nothing older is left, nothing is compared.
Pages that both chains name are not read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from service.base.errors import CorruptionError
from service.remote.format.manifest import Child, Load, Manifest, ManifestPage, PageRef, SegmentEntry
from service.remote.format.run_check import check_rewritten
from service.remote.reading.chain_proof import ReportError
from service.remote.reading.object_reader import open_chain, open_page
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore

MAX_PARENTS: Final = 16
"""Most older manifests that are compared."""


def check_rewrites(store: ObjectStore, manifest: Manifest, load: Load, error: ReportError) -> None:
    """Report to `error` each segment that cannot have taken the place of what an older chain had there."""
    told: set[str] = set()
    for older in _parents(store, manifest):
        try:
            for old, new in _changed_runs(older, partial(_open_page, store, older), manifest, load):
                wrong = _why_wrong(old, new)
                if wrong is not None and new[0].key not in told:
                    told.add(new[0].key)
                    error(new[0].key, f"{wrong}, in the place of what manifest {older.version} has there")
        except (ObjectNotFound, CorruptionError):
            continue  # a page of the older chain is gone; one of this chain is named where it is walked along


def _why_wrong(old: Sequence[SegmentEntry], new: Sequence[SegmentEntry]) -> str | None:
    try:
        check_rewritten(old, new)
    except ValueError as e:
        return str(e)
    return None


def _open_page(store: ObjectStore, manifest: Manifest, ref: PageRef) -> ManifestPage:
    return open_page(store, ref, manifest)


def _parents(store: ObjectStore, manifest: Manifest) -> Iterator[Manifest]:
    """Yield the manifests that `manifest` came from by commits of the same cluster, the newest first.

    A restore begins with a chain of before, whose segments may be those of before a rewrite.
    """
    newer = manifest
    for _ in range(MAX_PARENTS):
        if newer.parent_key is None:
            return
        try:
            newer = open_chain(store, newer.parent_key).manifest
        except (ObjectNotFound, CorruptionError):
            return
        if not newer.children or newer.cluster_id != manifest.cluster_id:
            return
        yield newer


class _Cursor:
    """A place in a chain: its children from there on, pages unopened until something in them is wanted."""

    def __init__(self, manifest: Manifest, load: Load) -> None:
        self._load = load
        self._start = manifest.start_offset
        self._left: deque[Child] = deque(manifest.children)

    def peek(self) -> Child | None:
        """Return the next child that is live; None at the end."""
        while self._left and self._left[0].last_offset < self._start:
            self._left.popleft()
        return self._left[0] if self._left else None

    def take(self) -> SegmentEntry | None:
        """Return the next live segment, and go on behind it; None at the end."""
        while isinstance(self.peek(), PageRef):
            self.open()
        child = self.peek()
        if isinstance(child, SegmentEntry):
            self._left.popleft()
            return child
        return None

    def open(self) -> None:
        """Put what the next child, a page, lists in its place."""
        page = self._left.popleft()
        assert isinstance(page, PageRef)
        self._left.extendleft(reversed(self._load(page).children))

    def skip(self) -> None:
        """Go on behind the next child."""
        self._left.popleft()


def _changed_runs(
    older: Manifest, load_older: Load, newer: Manifest, load: Load
) -> Iterator[tuple[list[SegmentEntry], list[SegmentEntry]]]:
    """Yield the shortest runs with common ends that have other segments in `newer` than in `older`."""
    before, after = _Cursor(older, load_older), _Cursor(newer, load)
    is_first = True
    while (one := before.peek()) is not None and (other := after.peek()) is not None:
        if one.key == other.key:
            before.skip()
            after.skip()
        elif one.last_offset < other.base_offset:
            before.skip()  # it has left the chain at its start
            continue
        elif isinstance(one, PageRef) and not (isinstance(other, PageRef) and other.level > one.level):
            before.open()
            continue
        elif isinstance(other, PageRef):
            after.open()
            continue
        else:
            old, new = _run(before), _run(after)
            while old and new and old[-1].last_offset != new[-1].last_offset:
                behind, cursor = (old, before) if old[-1].last_offset < new[-1].last_offset else (new, after)
                segment = cursor.take()
                if segment is None:
                    return  # it ends behind the end of the older chain
                behind.append(segment)
            # The start of either chain may lie within the first run, and hide what it began with.
            if not is_first or old[0].base_offset == new[0].base_offset:
                yield old, new
        is_first = False


def _run(cursor: _Cursor) -> list[SegmentEntry]:
    segment = cursor.take()
    return [segment] if segment is not None else []
