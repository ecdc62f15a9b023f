"""Tier layout of a partition as an SVG line: ice for the bucket, water for the disk. [P]

It has no inline style, because of the strict content security policy; classes give the colours. Its text is a
title, which browsers show on hover and the console's script shows as a card.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.console.web import words
from service.console.web.markup import Markup, el
from service.console.web.tier_layout import (
    BUCKET,
    BYTES,
    LOWER,
    OFFSETS,
    TIME,
    UPPER,
    LinePiece,
    Scale,
    TierBlock,
    TierLayout,
    lay_out_pieces,
    scale_of,
)

WIDTH: Final = 1000
HEIGHT: Final = 28
_HALF: Final = HEIGHT / 2
_THINNEST: Final = 0.003
_SHADES: Final = 5


def domain(lines: Sequence[TierLayout], kind: str) -> tuple[float, float] | None:
    """Return the range that all of `lines` share, so that they can be compared; None if none is known."""
    scales = [scale for one in lines if (scale := scale_of(one, kind)).is_usable]
    if not scales:
        return None
    return min(scale.low for scale in scales), max(scale.high for scale in scales)


def drawing(layout: TierLayout, kind: str, low: float, high: float, now_ms: int) -> Markup | None:
    """Return the line; None if it is empty, or `kind` needs unknown values."""
    scale = scale_of(layout, kind)
    if not scale.is_usable:
        return None
    pieces = lay_out_pieces(layout, scale, low, high, _THINNEST)
    marks = [_mark(layout, scale, low, high, edge.what, edge.value, edge.offset) for edge in layout.edges]
    label = (
        f"Partition {layout.partition}: offsets {layout.start} to {layout.end}, in the bucket up to "
        f"{layout.bucket_end}, on disk from {layout.local_start}"
    )
    shapes = [_shape(piece, layout, now_ms) for piece in pieces]
    return el(
        "svg",
        el("rect", class_="bed", x=0, y=0, width=WIDTH, height=HEIGHT),
        shapes,
        marks,
        class_="strata",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        tabindex=0,
        aria_label=label,
    )


def _shape(piece: LinePiece, layout: TierLayout, now_ms: int) -> Markup:
    y = _HALF if piece.lane == LOWER else 0
    height = HEIGHT if piece.lane not in (UPPER, LOWER) else _HALF
    return el(
        "rect",
        el("title", _words(piece.blocks, layout, now_ms)),
        class_=f"piece {_class(piece, layout)}",
        x=_number(WIDTH * piece.x),
        y=_number(y),
        width=_number(max(WIDTH * (piece.x_end - piece.x), 1)),
        height=_number(height),
    )


def _class(piece: LinePiece, layout: TierLayout) -> str:
    """Return the class: older ice is paler; water is deeper if not yet in the bucket, deepest if active."""
    last = piece.blocks[-1]
    if last.tier == BUCKET:
        span = max(layout.bucket_end - layout.start, 1)
        shade = int(_SHADES * (last.end - 1 - layout.start) / span)
        return f"ice ice-{min(max(shade, 0), _SHADES - 1)}"
    if last.is_active:
        return "water water-active"
    waits = layout.is_tiered and last.end > layout.bucket_end
    return "water water-waiting" if waits else "water water-copied"


def _words(blocks: Sequence[TierBlock], layout: TierLayout, now_ms: int) -> str:
    first, last = blocks[0], blocks[-1]
    segments = (
        None if any(one.segments is None for one in blocks) else sum(one.segments or 0 for one in blocks)
    )
    bytes_ = None if any(one.size is None for one in blocks) else sum(one.size or 0 for one in blocks)
    thing = "objects in the bucket" if first.tier == BUCKET else "segments on disk"
    if segments == 1:
        thing = "object in the bucket" if first.tier == BUCKET else "segment on disk"
    state = ""
    if first.tier != BUCKET:
        state = (
            ", being written" if last.is_active
            else "" if not layout.is_tiered
            else ", waits for its upload" if last.end > layout.bucket_end
            else ", also in the bucket"
        )  # fmt: skip
    lines = [
        f"{words.count(segments) if segments is not None else 'some'} {thing}{state}",
        f"offsets {first.first:,} to {last.end - 1:,}",
    ]
    if bytes_ is not None:
        lines.append(words.size(bytes_))
    if last.max_ms is not None and last.max_ms >= 0:
        begin = first.min_ms if first.min_ms is not None and first.min_ms >= 0 else None
        lines.append(
            f"{words.moment(begin)} to {words.moment(last.max_ms)} UTC" if begin is not None
            else f"up to {words.moment(last.max_ms)} UTC"
        )  # fmt: skip
        lines.append(f"newest record {words.ago(last.max_ms, now_ms)}")
    if len(blocks) == 1 and first.name:
        lines.append(first.name)
    return "\n".join(lines)


def _mark(
    layout: TierLayout, scale: Scale, low: float, high: float, what: str, value: str, offset: float
) -> Markup:
    x = _number(WIDTH * min(max((scale(offset) - low) / max(high - low, 1e-9), 0.0), 1.0))
    kind = "edge-local" if what.startswith("local") else "edge-total"
    title = f"{what} = {value}\ndeleted next: offsets below {offset:,.0f}"
    return el(
        "rect", el("title", title), class_=f"edge {kind}", x=x, y=0, width=2, height=HEIGHT,
    )  # fmt: skip


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def axis(kind: str, low: float, high: float) -> Markup:
    """Return five labels below the lines."""
    labels = [_label(kind, low + (high - low) * step / 4) for step in range(5)]
    return el("div", [el("span", label) for label in labels], class_="axis", aria_hidden="true")


def _label(kind: str, value: float) -> str:
    if kind == TIME:
        return f"{words.moment(int(value), seconds=False)} UTC"
    return words.size(value) if kind == BYTES else words.count(value)


def legend() -> Markup:
    """Return the legend of the colours."""
    kinds = (
        ("ice-0", "in the bucket, old"),
        ("ice-4", "in the bucket, new"),
        ("water-copied", "on disk"),
        ("water-waiting", "on disk, waits for its upload"),
        ("water-active", "being written"),
        ("edge-total", "retention"),
        ("edge-local", "local retention"),
    )
    items = [el("li", el("span", class_=f"swatch {kind}"), word) for kind, word in kinds]
    return el("ul", items, class_="legend")


def scale_names() -> tuple[tuple[str, str], ...]:
    return ((OFFSETS, "Offsets"), (TIME, "Time"), (BYTES, "Bytes"))
