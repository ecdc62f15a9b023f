"""The page of all topics, in pages. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.console.web import words
from service.console.web.frame import (
    Heading,
    PageContext,
    badge,
    changes,
    choices,
    code,
    empty,
    failed,
    live,
    notice,
    page,
    pager,
    search_form,
    table,
)
from service.console.web.markup import Child, el, link
from service.console.web.survey import TopicSum
from service.console.web.topic_rows import TopicFigures, TopicSummary

PER_PAGE: Final = 50
SORTS: Final = ("name", "size", "rate", "partitions")
_SORTED: Final = (
    ("name", "By name"), ("size", "By size"), ("rate", "By rate"), ("partitions", "By partitions"),
)  # fmt: skip
SETTINGS: Final = ("remote.storage.enable", "retention.ms", "retention.bytes", "cleanup.policy")


class TopicsPage(NamedTuple):
    """Data of the page: `rows` of this page; `settings` by topic; `sums` of the survey and `figures` by topic
    id."""

    rows: Sequence[TopicSummary]
    settings: Mapping[str, Mapping[str, str | None]]
    sums: Mapping[str, TopicSum]
    number: int
    matching: int
    total: int
    wanted: str
    problem: str | None
    figures: Mapping[str, TopicFigures] = {}
    sort: str = "name"


_COLUMNS: Final = (
    Heading("Topic"), Heading("Partitions", True), Heading("Replicas", True, "replication factor"),
    Heading("State"), Heading("Records/s", True, "records written"),
    Heading("On disk", True, "one copy; each replica has as much"), Heading("In the bucket", True),
    Heading("Tiers"), Heading("Retention"),
)  # fmt: skip


def render(context: PageContext, found: TopicsPage) -> str:
    if found.problem is not None:
        return page(context, "Topics", "/topics", failed("The cluster does not answer", found.problem))
    create = changes(context, ("Create a topic", "/change/create-topic"))
    if found.total == 0:
        return page(
            context,
            "Topics",
            "/topics",
            create,
            empty(
                "No topics yet",
                ["Create one: ", code(f"firn topic create NAME --bootstrap-server {context.bootstrap}")],
            ),
        )
    pages = max(-(-found.matching // PER_PAGE), 1)
    return page(
        context,
        "Topics",
        "/topics",
        create,
        el(
            "div",
            search_form(
                "/topics",
                "Name contains",
                found.wanted,
                249,
                el("input", type="hidden", name="sort", value=found.sort) if found.sort != SORTS[0] else None,
            ),
            choices("Sort", "/topics", "sort", found.sort, _SORTED, q=found.wanted),
            class_="tools",
        ),
        live(
            "topics",
            table(_COLUMNS, [_row(found, one) for one in found.rows], caption="Topics")
            if found.rows
            else notice("", f"No topic's name contains {found.wanted!r}."),
        ),
        pager("/topics", found.number, found.number < pages, pages, q=found.wanted, sort=found.sort),
        lead=words.counted(found.total, "topic")
        + (f", {words.count(found.matching)} match" if found.wanted else ""),
    )


def _row(found: TopicsPage, one: TopicSummary) -> list[Child]:
    settings = found.settings.get(one.name, {})
    summed = found.sums.get(one.topic_id)
    figures = found.figures.get(one.topic_id) or TopicFigures(None, None)
    state: Child = badge("online", "good")
    if one.leaderless:
        state = badge(f"{one.leaderless} without leader", "bad")
    elif one.short_isr:
        state = badge(f"{one.short_isr} under-replicated", "warn")
    is_tiered = settings.get("remote.storage.enable") == "true"
    return [
        el("a", one.name, href=link("/topic", name=one.name)),
        words.count(one.partitions),
        words.count(one.replication) if one.replication else words.NOTHING,
        state,
        _rate(figures.rate),
        words.size(figures.size),
        words.size(summed.size) if summed is not None else words.NOTHING,
        badge("disk and bucket", "ice") if is_tiered else badge("disk", "water"),
        el("span", retention(settings), class_="one-line"),
    ]


def _rate(value: float | None) -> str:
    return words.NOTHING if value is None else words.decimal(value) if 0 < value < 10 else words.count(value)


def ordered(
    rows: Sequence[TopicSummary], figures: Mapping[str, TopicFigures], sums: Mapping[str, TopicSum], sort: str
) -> Sequence[TopicSummary]:
    """Return topics in the order of one of `SORTS`, the greatest first but for names; unknown ones last."""

    def rank(one: TopicSummary) -> float:
        found, summed = figures.get(one.topic_id), sums.get(one.topic_id)
        if sort == "size":
            sizes = (None if found is None else found.size, None if summed is None else summed.size)
            known = [value for value in sizes if value is not None]
            return -sum(known) if known else 1
        rate = None if found is None else found.rate
        return 1 if rate is None else -rate

    if sort == "partitions":
        return sorted(rows, key=lambda one: -one.partitions)
    return sorted(rows, key=rank) if sort in ("size", "rate") else rows


def retention(settings: Mapping[str, str | None]) -> str:
    """Return the retention as readable text."""
    if "delete" not in (settings.get("cleanup.policy") or "delete"):
        return "compacted"
    ms, bytes_ = _number(settings.get("retention.ms")), _number(settings.get("retention.bytes"))
    parts = [words.span(ms / 1000)] if ms is not None and ms >= 0 else []
    parts += [words.size(bytes_)] if bytes_ is not None and bytes_ >= 0 else []
    return ", ".join(parts) or ("no limit" if ms is not None else words.NOTHING)


def _number(value: str | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None
