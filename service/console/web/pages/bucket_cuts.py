"""Section of the bucket page on cuts: how old the newest are, what is missing, which are kept. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.console.web import words
from service.console.web.cuts import CutsShown
from service.console.web.frame import Heading, badge, code, facts, notice, section, table, utc_time
from service.console.web.markup import Child, Markup
from service.remote.format.cut_codec import CutRef

MOST_KEPT: Final = 20


def cuts_section(found: CutsShown | None, now_ms: int) -> Markup:
    """Return the section; `found` is None where no cut was ever taken."""
    note = (
        "A cut is one moment of the whole cluster. What no segment has yet lies in tails beside it, so that "
        "all of it comes back from the bucket alone."
    )
    if found is None:
        return section("Cuts", notice("", "No cut was taken yet."), note=note)
    if found.problem is not None:
        return section("Cuts", notice("bad", f"The cuts cannot be read: {found.problem}"), note=note)
    newest = found.kept[-1]
    complete = next((ref for ref in reversed(found.kept) if ref.is_complete), None)
    exact = next((ref for ref in reversed(found.kept) if ref.is_complete and ref.is_exact), None)
    rows: list[list[Child]] = [
        [words.count(ref.cut), utc_time(ref.at_ms), words.ago(ref.at_ms, now_ms), *_kinds(ref)]
        for ref in reversed(found.kept[-MOST_KEPT:])
    ]
    columns = [Heading("Cut", True), Heading("Taken"), Heading("Age"), Heading(""), Heading("")]
    return section(
        "Cuts",
        facts(
            ("Newest", _age(newest, now_ms)),
            ("Newest complete", _age(complete, now_ms)),
            ("Newest complete and exact", _age(exact, now_ms)),
            ("Kept", f"{words.count(len(found.kept))}, the oldest {words.ago(found.kept[0].at_ms, now_ms)}"),
        ),
        None if newest.is_complete else _missing(found),
        table(columns, rows, caption="Newest cuts that are kept"),
        note=note,
    )


def _age(ref: CutRef | None, now_ms: int) -> Child:
    if ref is None:
        return badge("none", "bad")
    return [words.ago(ref.at_ms, now_ms), " (", code(str(ref.cut)), ")"]


def _kinds(ref: CutRef) -> Sequence[Child]:
    return (
        badge("complete", "good") if ref.is_complete else badge("incomplete", "warn"),
        "exact" if ref.is_exact else badge("loose", "warn"),
    )


def _missing(found: CutsShown) -> Child:
    if not found.missing_count:
        return notice("", "The newest cut lacks nothing any more; the keeper will say so with the next one.")
    rows: list[list[Child]] = [
        [
            f"{one.topic}-{one.partition}",
            f"{words.count(one.reached)} to {words.count(one.end - 1)}",
        ]
        for one in found.missing
    ]
    more = f"{words.count(found.missing_count)} in all." if found.missing_count > len(rows) else None
    return [
        table(
            [Heading("Partition"), Heading("Offsets that wait for a segment")],
            rows,
            caption="What keeps the newest cut from being complete",
        ),
        notice("", more) if more else None,
    ]
