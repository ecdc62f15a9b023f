"""The records page: records of a partition or of all, from any offset or time, in either tier. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.console.web import words
from service.console.web.frame import (
    PageContext,
    badge,
    changes,
    empty,
    exact_time,
    failed,
    field,
    live,
    notice,
    page,
    select,
)
from service.console.web.markup import Child, Markup, el, link
from service.console.web.record_query import MOST_PARTITIONS, written_positions
from service.console.web.rows import FORMATS, PREVIEW, Decoded, Shown, most_shown, shown
from service.records.decode import Record

LIMITS: Final = (20, 50, 100, 500)
WHERE: Final = (
    ("end", "newest first"),
    ("start", "from the start"),
    ("offset", "from offset"),
    ("time", "from time"),
)
_FORM_WORDS: Final = {"auto": "as it is", "text": "text", "json": "JSON", "hex": "hex"}


MOST_HEADERS: Final = 100
MOST_POSITIONS: Final = 3_000
"""Longest positions of partitions in an address."""
MOST_NAME: Final = 200
_EMPTY: Final = el("code", "empty", class_="none")


class FetchTiming(NamedTuple):
    """One fetch: its tier, offset, size and time."""

    tier: str
    offset: int
    size: int
    took_ms: float


class FoundRecords(NamedTuple):
    """Result of a query. `next_offset`: where to continue; `is_cut`: time or bytes ran out before the end."""

    records: tuple[Record, ...]
    turns: tuple[FetchTiming, ...]
    start: int
    local_start: int
    end: int
    begin: int
    next_offset: int
    scanned: int
    is_cut: bool
    problem: str | None
    partition: int = 0


class PlacedRecord(NamedTuple):
    """A record with its partition; `is_cold`: it lies in the bucket alone."""

    partition: int
    record: Record
    is_cold: bool


class MergedRecords(NamedTuple):
    """Records of several partitions in the order of their times, the newest first if `is_down`.

    `positions`: where each partition goes on; `is_whole`: nothing is left to read; `unread`: number of
    partitions that time or bytes did not suffice for; `left_out`: the topic has more partitions; `start` and
    `end`: sums over the partitions.
    """

    records: tuple[PlacedRecord, ...]
    turns: tuple[FetchTiming, ...]
    positions: Mapping[int, int]
    is_whole: bool
    scanned: int
    unread: int
    problems: tuple[str, ...]
    is_down: bool = True
    left_out: bool = False
    start: int = 0
    end: int = 0


class Form(NamedTuple):
    """The form's fields, as entered. An empty `partition` is all; `is_tail`: the page follows the end."""

    topic: str = ""
    partition: str = ""
    where: str = "end"
    at: str = ""
    most: int = 50
    holds: str = ""
    form: str = "auto"
    is_tail: bool = False


class Records(NamedTuple):
    """Data of the page. `found` is None before a query, or after a failed one: `problem`. `status` is
    HTTP's; `decoded` has values by partition, offset and part (``key``, ``value``)."""

    form: Form
    topics: Sequence[str]
    found: FoundRecords | MergedRecords | None = None
    problem: str | None = None
    status: int = 200
    decoded: Mapping[tuple[int, int, str], Decoded] = {}


def render(context: PageContext, data: Records) -> str:
    topic = data.form.topic or None
    produce = changes(context, ("Produce a record", link("/change/produce", topic=topic)))
    parts: list[Child] = [produce, _form(data)]
    if data.problem is not None:
        parts.append(failed("These records cannot be shown", data.problem))
    elif isinstance(data.found, MergedRecords):
        parts.append(live("records", _merged(data, data.found), data_tail=data.form.is_tail))
    elif data.found is not None:
        parts += _found(data, data.found)
    elif not data.topics:
        parts.append(empty("No topics yet", "Records are shown here once there is a topic."))
    else:
        parts.append(empty("Choose a topic", "Any offset or time, hot or cold: one query for both tiers."))
    return page(context, "Records", "/records", parts)


def _form(data: Records) -> Markup:
    form = data.form
    options = el("datalist", [el("option", value=name) for name in data.topics[:1000]], id="topics")
    return el(
        "form",
        field(
            "Topic",
            el(
                "input", name="topic", value=form.topic, list="topics", required=True, maxlength=249,
                autocomplete="off",
            ),
        ),
        options,
        field(
            "Partition",
            el(
                "input", type="number", name="partition", value=form.partition, min=0, max=2**31 - 1,
                placeholder="all",
            ),
        ),
        field("Order", select("where", form.where, WHERE)),
        field(
            "Offset, or time (UTC)",
            el("input", name="at", value=form.at, placeholder="12345 or 2026-01-31T12:00", maxlength=40),
        ),
        field(
            "Contains",
            el(
                "input", type="search", name="holds", value=form.holds, maxlength=200,
                placeholder="text in key, value, headers",
            ),
        ),
        field("Show", select("form", form.form, [(name, _FORM_WORDS[name]) for name in FORMATS])),
        field("At most", select("most", str(form.most), [(str(n), str(n)) for n in LIMITS])),
        el("button", "Read", type="submit"),
        method="get",
        action="/records",
        class_="row-form wide",
    )  # fmt: skip


def _query(form: Form, **changed: str | int) -> str:
    query: dict[str, str | int | None] = {
        "topic": form.topic, "partition": form.partition, "where": form.where, "at": form.at,
        "holds": form.holds, "form": form.form, "most": form.most,
    }  # fmt: skip
    return link("/records", **{**query, **changed})


def _merged(data: Records, found: MergedRecords) -> list[Child]:
    """Return records of several partitions, or the newest of one."""
    form = data.form
    parts: list[Child] = [_tail_switch(form), _answered(found.turns)]
    parts += [notice("bad", one) for one in found.problems]
    if found.left_out:
        parts.append(
            notice("warn", f"Only the first {MOST_PARTITIONS} partitions are shown: choose another one.")
        )
    if found.unread and found.records:
        parts.append(
            notice(
                "warn", f"{words.counted(found.unread, 'partition')} could not be read in time: choose one."
            )
        )
    if found.records:
        most = most_shown(len(found.records))
        parts.append(el("ol", [_row(data, *one, most) for one in found.records], class_="records"))
    elif found.start == found.end:
        parts.append(empty("No records", "Nothing has been written yet, or retention has deleted it."))
    else:
        said = f"None of {found.scanned:,} records read contains {form.holds!r}." if form.holds else ""
        parts.append(
            empty("No records here", said or "Offsets exist, but no records: they are compacted away.")
        )
    onward = None
    if not found.is_whole and not form.is_tail:
        at = written_positions([found.positions[p] for p in sorted(found.positions)])
        if len(at) <= MOST_POSITIONS:
            onward = el(
                "a", "Earlier" if found.is_down else "Later", href=_query(form, positions=at), rel="next"
            )
        else:
            parts.append(notice("", "Choose a partition to go on from here."))
    save = _lines_link(form, found)
    if onward is not None or save is not None:
        parts.append(el("nav", onward, save, class_="pager", aria_label="Neighbouring records"))
    return parts


def _tail_switch(form: Form) -> Markup | None:
    """Return the link that follows the end of the log, or ends that."""
    if form.where != "end":
        return None
    if form.is_tail:
        note = el("span", "The newest records, again every two seconds.", class_="note")
        return el("p", el("a", "Stop the live tail", href=_query(form)), " ", note, class_="answered")
    return el("p", el("a", "Live tail", href=_query(form, tail=1)), class_="answered")


def _lines_link(form: Form, found: MergedRecords) -> Markup | None:
    """Return the download of records of one partition."""
    if not found.records or len(found.positions) != 1 or form.is_tail:
        return None
    return _download_lines(form, min(one.record.offset for one in found.records))


def _found(data: Records, found: FoundRecords) -> list[Child]:
    form = data.form
    parts: list[Child] = [_answered(found.turns, _range(found))]
    if found.problem is not None:
        parts.append(notice("bad", found.problem))
    if found.is_cut and found.problem is None:
        parts.append(
            notice(
                "",
                f"Read {found.scanned:,} records, up to offset {found.next_offset:,}. ",
                el("a", "Go on", href=_query(form, where="offset", at=found.next_offset)),
            )
        )
    if not found.records:
        if found.end == found.start:
            parts.append(empty("No records", "This partition is empty."))
        else:
            words_ = f"Offsets {found.start:,} to {found.end - 1:,} exist."
            if form.holds:
                words_ = f"None of {found.scanned:,} records read contains {form.holds!r}. {words_}"
            parts.append(empty("No records here", words_))
    else:
        most = most_shown(len(found.records))
        rows = [
            _row(data, found.partition, record, record.offset < found.local_start, most)
            for record in found.records
        ]
        parts.append(el("ol", rows, class_="records"))
    parts.append(_pager(form, found))
    return parts


def _range(found: FoundRecords) -> Markup:
    return el(
        "li",
        f"offsets {found.start:,} to {max(found.end - 1, found.start):,}, on disk from {found.local_start:,}",
        class_="note",
    )


def _answered(fetches: Sequence[FetchTiming], *more: Markup) -> Markup:
    """Return the tiers that answered, with their times."""
    items = []
    for tier in ("bucket", "disk"):
        turns = [turn for turn in fetches if turn.tier == tier]
        if turns:
            took = sum(turn.took_ms for turn in turns)
            items.append(
                el(
                    "li",
                    badge("bucket", "ice") if tier == "bucket" else badge("disk", "water"),
                    f" answered in {words.span(took / 1000) if took else 'under 1 ms'}: "
                    f"{words.size(sum(turn.size for turn in turns))} in {len(turns)} "
                    f"fetch{'es' if len(turns) != 1 else ''}",
                    data_tier=tier,
                )
            )
    return el("ul", items, more, class_="answered")


def _row(data: Records, partition: int, record: Record, cold: bool, most: int) -> Markup:
    form = data.form
    where: dict[str, str | int | None] = {
        "topic": form.topic, "partition": partition, "offset": record.offset,
    }  # fmt: skip
    place = f"{partition}:{record.offset:,}" if not form.partition else f"{record.offset:,}"
    total = len(record.key or b"") + len(record.value or b"")
    headers = _headers(form, record, most) if record.headers else None
    return el(
        "li",
        el(
            "div",
            el(
                "a",
                place,
                href=_query(form, partition=partition, where="offset", at=record.offset),
                class_="offset",
                title=f"partition {partition}, offset {record.offset}",
            ),
            badge("bucket", "ice") if cold else badge("disk", "water"),
            exact_time(record.timestamp),
            el("span", words.size(total), class_="note"),
            el("a", "value", href=link("/records/download", **where, part="value"), download=True)
            if record.value is not None
            else None,
            el("a", "key", href=link("/records/download", **where, part="key"), download=True)
            if record.key is not None
            else None,
            class_="record-head",
        ),
        [
            el(
                "div",
                el("span", part, class_="label"),
                _part(form, bytes_, data.decoded.get((partition, record.offset, part)), most),
                class_="part",
            )
            for part, bytes_ in (("key", record.key), ("value", record.value))
        ],
        el("div", el("span", "headers", class_="label"), headers, class_="part") if headers else None,
        class_="record",
    )


def _part(form: Form, data: bytes | None, decoded: Decoded | None, most: int) -> list[Child]:
    """Return a key or value: decoded by its schema, or its bytes with the reason why it is not."""
    if decoded is None:
        return [_body(shown(data, form.form, most))]
    if decoded.text is None:
        return [_body(shown(data, form.form, most)), el("span", decoded.what, class_="note")]
    is_cut = len(decoded.text) > most
    one = Shown(decoded.text[:most], decoded.what, len(data or b""), is_cut)
    return [_body(one), " ", badge(decoded.what)]


def _headers(form: Form, record: Record, most: int) -> list[Markup]:
    """Return headers in their order, repeated names included, as many as fit."""
    pairs: list[Markup] = []
    room = most
    for name, value in record.headers[:MOST_HEADERS]:
        one = shown(value, form.form, PREVIEW)
        written = _cut(_name(name), MOST_NAME, is_cut=False)
        room -= len(written) + len(one.text)
        if room < 0 and pairs:
            break
        words_ = el("code", _cut(one.text, PREVIEW, is_cut=one.is_cut), class_=None if value else "none")
        pairs.append(el("div", el("dt", written), el("dd", words_ if value != b"" else _EMPTY)))
    parts = [el("dl", pairs, class_="headers")]
    if rest := len(record.headers) - len(pairs):
        parts.append(
            el("p", f"and {rest:,} more headers, which the download of these lines has", class_="note")
        )
    return parts


def _name(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "backslashreplace")


def _cut(text: str, most: int, *, is_cut: bool) -> str:
    """Return at most `most` characters, with an ellipsis if some are missing."""
    return f"{text[:most]}…" if is_cut or len(text) > most else text


def _body(one: Shown) -> Markup:
    """Return a short value unfolded, a long one folded."""
    if one.size is None:
        return el("code", "null", class_="none")
    if one.size == 0:
        return _EMPTY
    more = "" if not one.is_cut else f"\n… {words.size(one.size)} in all"
    if len(one.text) <= PREVIEW and one.text.count("\n") <= 12 and not more:
        return el("pre", one.text, class_=one.what.lower())
    return el(
        "details",
        el(
            "summary",
            el("code", " ".join(one.text[:150].split())),
            " ",
            badge(one.what),
        ),
        el("pre", one.text + more, class_=one.what.lower()),
    )  # fmt: skip


def _download_lines(form: Form, offset: int) -> Markup:
    return el(
        "a", "Download these as JSON lines", download=True,
        href=link(
            "/records/download", topic=form.topic, partition=form.partition or 0, offset=offset,
            most=form.most, holds=form.holds, part="lines",
        ),
    )  # fmt: skip


def _pager(form: Form, found: FoundRecords) -> Markup:
    before = max(found.begin - form.most, found.start)
    left = right = None
    if found.begin > found.start:
        left = el("a", "Earlier", href=_query(form, where="offset", at=before), rel="prev")
    if found.next_offset < found.end:
        right = el("a", "Later", href=_query(form, where="offset", at=found.next_offset), rel="next")
    save = _download_lines(form, found.begin) if found.records else None
    return el("nav", left, right, save, class_="pager", aria_label="Neighbouring records")
