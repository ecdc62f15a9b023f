"""The page of all topics, in pages. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.console.web import words
from service.console.web.frame import (
    Heading,
    PageContext,
    badge,
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
from service.console.web.topic_rows import TopicSummary

PER_PAGE: Final = 50
SETTINGS: Final = ("remote.storage.enable", "retention.ms", "retention.bytes", "cleanup.policy")


class TopicsPage(NamedTuple):
    """Data of the page: `rows` of this page; `settings` by topic; `sums` of the survey by topic id."""

    rows: Sequence[TopicSummary]
    settings: Mapping[str, Mapping[str, str | None]]
    sums: Mapping[str, TopicSum]
    number: int
    matching: int
    total: int
    wanted: str
    problem: str | None


_COLUMNS: Final = (
    Heading("Topic"), Heading("Partitions", True), Heading("State"), Heading("Tiers"), Heading("Retention"),
    Heading("In the bucket", True), Heading("Objects", True),
)  # fmt: skip


def render(context: PageContext, found: TopicsPage) -> str:
    if found.problem is not None:
        return page(context, "Topics", "/topics", failed("The cluster does not answer", found.problem))
    if found.total == 0:
        return page(
            context,
            "Topics",
            "/topics",
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
        search_form("/topics", "Name holds", found.wanted, 249),
        live(
            "topics",
            table(_COLUMNS, [_row(found, one) for one in found.rows], caption="Topics")
            if found.rows
            else notice("", f"No topic's name contains {found.wanted!r}."),
        ),
        pager("/topics", found.number, found.number < pages, pages, q=found.wanted),
        lead=f"{words.count(found.total)} topics"
        + (f", {words.count(found.matching)} match" if found.wanted else ""),
    )


def _row(found: TopicsPage, one: TopicSummary) -> list[Child]:
    settings = found.settings.get(one.name, {})
    summed = found.sums.get(one.topic_id)
    state: Child = badge("online", "good")
    if one.leaderless:
        state = badge(f"{one.leaderless} without leader", "bad")
    elif one.short_isr:
        state = badge(f"{one.short_isr} under-replicated", "warn")
    is_tiered = settings.get("remote.storage.enable") == "true"
    return [
        el("a", one.name, href=link("/topic", name=one.name)),
        words.count(one.partitions),
        state,
        badge("disk and bucket", "ice") if is_tiered else badge("disk", "water"),
        retention(settings),
        words.size(summed.size) if summed is not None else words.NOTHING,
        words.count(summed.objects) if summed is not None else words.NOTHING,
    ]


def retention(settings: Mapping[str, str | None]) -> str:
    """Return the retention as readable text."""
    if "delete" not in (settings.get("cleanup.policy") or "delete"):
        return "compacted"
    ms, bytes_ = _number(settings.get("retention.ms")), _number(settings.get("retention.bytes"))
    parts = [words.span(ms / 1000)] if ms is not None and ms >= 0 else []
    parts += [words.size(bytes_)] if bytes_ is not None and bytes_ >= 0 else []
    return ", ".join(parts) or ("for ever" if ms is not None else words.NOTHING)


def _number(value: str | None) -> int | None:
    try:
        return None if value is None else int(value)
    except ValueError:
        return None
