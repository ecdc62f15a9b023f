"""Section of the bucket page on objects by size: what a merge would save. [P]"""

from __future__ import annotations

from service.console.web import words
from service.console.web.costs import Prices
from service.console.web.frame import Heading, notice, section, table
from service.console.web.markup import Child, Markup
from service.console.web.object_sizes import CLASSES, ObjectSizes

SEGMENT_GETS = 2
"""Requests for one object by who reads it whole: its footer, then its records."""


def objects_section(found: ObjectSizes, prices: Prices) -> Markup:
    """Return the section."""
    rows: list[list[Child]] = [
        [_class(kind), words.count(found.counts[kind]), words.size(found.sizes[kind])]
        for kind in range(len(CLASSES) + 1)
        if found.counts[kind]
    ]
    columns = [Heading("Size"), Heading("Objects", True), Heading("Bytes", True)]
    return section(
        "Objects by size",
        table(columns, rows, caption="Segments that published manifests name"),
        notice("", _merge(found, prices)),
    )


def _class(kind: int) -> str:
    if kind == len(CLASSES):
        return f"{words.size(CLASSES[-1])} and more"
    return f"below {words.size(CLASSES[kind])}"


def _merge(found: ObjectSizes, prices: Prices) -> str:
    if not found.before:
        return "No eight small objects lie beside each other: there is nothing to merge."
    saved = SEGMENT_GETS * (found.before - found.after)
    once = prices.writes(2 * found.after) + prices.reads(SEGMENT_GETS * found.before)
    return (
        f"Merging would make {words.counted(found.after, 'object')} of {words.count(found.before)} small "
        f"ones (firn.merge.enable): some {words.count(saved)} requests less for each reading of everything, "
        f"{words.money(prices.reads(saved), prices.currency)}; once it takes some "
        f"{words.money(once, prices.currency)}."
    )
