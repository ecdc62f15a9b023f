"""Parts of a chain in which a run may lie: the entries of one page of level 0, or of the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.base.types import TopicIdPartition
from service.remote.format.manifest import Child, Load, Manifest, PageRef, SegmentEntry
from service.tiering.rewriting.report_check import RunChanged
from service.tiering.rewriting.rules import ChainRun


class Unit(NamedTuple):
    """Neighbouring entries that one document lists; `is_page`: no later commit but a rewrite changes them."""

    entries: tuple[SegmentEntry, ...]
    is_page: bool


def units_from(manifest: Manifest, load: Load, offset: int, least: int = 1) -> Iterator[Unit]:
    """Yield the units with live segments that reach `offset` or beyond, oldest first; raises what `load`
    raises. Pages with fewer than `least` segments are not read."""
    yield from _pages_from(manifest.pages, load, max(offset, manifest.start_offset), least)
    if manifest.entries and manifest.entries[-1].last_offset >= offset:
        yield Unit(manifest.entries, is_page=False)


def _pages_from(children: Sequence[Child], load: Load, offset: int, least: int) -> Iterator[Unit]:
    for child in children:
        if child.last_offset < offset or child.segments < least or not isinstance(child, PageRef):
            continue
        page = load(child)
        if page.level:
            yield from _pages_from(page.children, load, offset, least)
        else:
            segments = tuple(one for one in page.children if isinstance(one, SegmentEntry))
            yield Unit(segments, is_page=True)


def run_at(
    tip: TopicIdPartition, manifest: Manifest, load: Load, base_offset: int, last_offset: int
) -> ChainRun:
    """Return the run with these offsets, inclusive. Its first entry may begin below the chain's start, which
    stays where it is. Raises `RunChanged` unless entries of one unit begin and end there, all of them live,
    and what `load` raises."""
    start = manifest.start_offset
    for unit in units_from(manifest, load, base_offset):
        run = tuple(one for one in unit.entries if base_offset <= one.base_offset <= last_offset)
        borders = (run[0].base_offset, run[-1].last_offset) if run else None
        if borders == (base_offset, last_offset) and run[0].last_offset >= start:
            return ChainRun(tip, run)
        break
    raise RunChanged(f"{tip}: no objects of one page begin at {base_offset} and end at {last_offset}")
