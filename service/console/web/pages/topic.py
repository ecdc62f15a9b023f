"""The page of a topic: the tier layout of each partition as a line from ice to water. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.client.transaction_models import OldestTransaction, StableOffset
from service.console.web import line, words
from service.console.web.frame import (
    Heading,
    PageContext,
    Tile,
    badge,
    changes,
    choices,
    empty,
    facts,
    failed,
    field,
    live,
    notice,
    page,
    pager,
    section,
    table,
    tiles,
    utc_time,
)
from service.console.web.markup import Child, Markup, el, link
from service.console.web.pages.groups import state
from service.console.web.pages.topics import retention
from service.console.web.pages.transactions import id_link
from service.console.web.tier_layout import BUCKET, SCALES, TierLayout
from service.groups.admin_models import GroupSummary

PER_PAGE: Final = 20
MOST_SEGMENTS: Final = 200
MOST_GROUPS: Final = 50
SETTINGS: Final = (
    "remote.storage.enable", "retention.ms", "retention.bytes", "local.retention.ms", "local.retention.bytes",
    "segment.bytes", "segment.ms", "cleanup.policy",
)  # fmt: skip


class TopicPage(NamedTuple):
    """Data of the page: a page of partitions, or one partition with its segments (`single`).

    `pending`: number of partitions whose archive was not read in time; `store_problem`: why the bucket cannot
    be read; `disk_is_here`: whether log directories are on this machine; `status` is HTTP's; `stable`: the
    last stable offset of a single partition, or why it is not known; `all_groups`: no group was left out of
    `groups`, which read the topic.
    """

    name: str
    topic_id: str | None = None
    settings: Mapping[str, str | None] = {}  # never written to
    lines: Sequence[TierLayout] = ()
    scale: str = SCALES[0]
    number: int = 1
    pages: int | None = None
    more: bool = False
    single: bool = False
    problem: str | None = None
    store_problem: str | None = None
    pending: int = 0
    disk_is_here: bool = True
    status: int = 200
    stable: StableOffset | str | None = None
    groups: Sequence[GroupSummary] = ()
    all_groups: bool = True

    @property
    def has_bucket(self) -> bool:
        """Return whether something is, or will be, in the bucket."""
        return self.settings.get("remote.storage.enable") == "true" or any(
            one.bucket_end > one.start or one.is_tiered for one in self.lines
        )


def render(context: PageContext, found: TopicPage) -> str:
    if found.problem is not None:
        return page(context, found.name, "/topics", failed("This topic cannot be shown", found.problem))
    one = found.lines[0] if found.single and found.lines else None
    title = f"{found.name}-{one.partition}" if one is not None else found.name
    return page(
        context,
        title,
        "/topics",
        _changes(context, found),
        _tools(found),
        live("tiles", _cards(context, one)) if one is not None else None,
        live("lines", _notices(found), _lines(context, found)),
        live("stable", _stable(context, found.stable)) if found.stable is not None else None,
        _segments(one) if one is not None else None,
        live("topic-groups", _groups(found)) if not found.single else None,
        None
        if found.single
        else pager("/topic", found.number, found.more, found.pages, name=found.name, scale=found.scale),
        lead=_lead(found),
    )


def _changes(context: PageContext, found: TopicPage) -> Markup | None:
    partition = found.lines[0].partition if found.single and found.lines else None
    return changes(
        context,
        ("Produce a record", link("/change/produce", topic=found.name, partition=partition)),
        ("Change settings", link("/change/topic-settings", topic=found.name)),
        ("Add partitions", link("/change/add-partitions", topic=found.name)),
        ("Delete the topic", link("/change/delete-topic", topic=found.name)),
    )


def _lead(found: TopicPage) -> Child:
    parts: list[Child] = [el("code", found.topic_id or "")]
    tiered = found.settings.get("remote.storage.enable") == "true"
    parts.append(badge("disk and bucket", "ice") if tiered else badge("disk", "water"))
    parts.append(f"retention: {retention(found.settings)}")
    where = found.lines[0].partition if found.single and found.lines else None
    parts.append(el("a", "records", href=link("/records", topic=found.name, partition=where)))
    parts.append(el("a", "settings", href=link("/configuration", topic=found.name)))
    if found.single:
        parts.append(el("a", "all partitions", href=link("/topic", name=found.name, scale=found.scale)))
    return [[part, " "] for part in parts]


def _tools(found: TopicPage) -> Markup:
    where: dict[str, str | int | None] = {"name": found.name}
    if found.single and found.lines:
        where["partition"] = found.lines[0].partition
    elif found.number > 1:
        where["page"] = found.number
    go = el(
        "form",
        el("input", type="hidden", name="name", value=found.name),
        el("input", type="hidden", name="scale", value=found.scale),
        field("Partition", el("input", type="number", name="partition", min=0, max=2**31 - 1, required=True)),
        el("button", "Go", type="submit"),
        method="get",
        action="/topic",
        class_="row-form",
    )
    return el(
        "div",
        choices("Scale", "/topic", "scale", found.scale, line.scale_names(), **where),
        go,
        line.legend() if found.has_bucket else None,
        class_="tools",
    )


def _notices(found: TopicPage) -> list[Child]:
    parts: list[Child] = []
    if found.store_problem is not None:
        parts.append(
            notice(
                "bad",
                f"The bucket cannot be read: {found.store_problem}. Its data is drawn by offsets.",
            )
        )
    if found.pending:
        parts.append(notice("", f"The archives of {found.pending} partitions are still being read."))
    if not found.disk_is_here and found.lines:
        parts.append(
            notice(
                "",
                "The log directories are on another machine: disk segments are drawn as one, without bytes.",
            )
        )
    return parts


def _lines(context: PageContext, found: TopicPage) -> list[Child]:
    if not found.lines:
        return [empty("No partitions here", "This page of the topic is beyond its last partition.")]
    shared = line.domain(found.lines, found.scale)
    low, high = shared or (0.0, 1.0)
    rows: list[Child] = [_line(context, found, one, low, high) for one in found.lines]
    return [
        el("div", rows, None if shared is None else line.axis(found.scale, low, high), class_="lines"),
        _table(context, found),
    ]


def _line(context: PageContext, found: TopicPage, one: TierLayout, low: float, high: float) -> Markup:
    drawn: Child = line.drawing(one, found.scale, low, high, context.now_ms)
    if drawn is None:
        drawn = el("p", _why_not(found, one), class_="strata none")
    behind = words.size(one.waiting_bytes) if one.waiting_bytes else None
    return el(
        "div",
        el(
            "a", one.partition, class_="partition",
            href=link("/topic", name=found.name, partition=one.partition, scale=found.scale),
            title=f"Partition {one.partition}",
        ),
        drawn,
        el(
            "span",
            [el("b", behind), " waits"] if behind else words.count(one.records),
            class_="waiting" if behind else "records",
            title="sealed and not in the bucket" if behind else "records",
        ),
        class_="line",
    )  # fmt: skip


_PLURALS: Final = {"offset": "offsets", "time": "times", "bytes": "bytes"}


def _why_not(found: TopicPage, one: TierLayout) -> str:
    if one.problems:
        return one.problems[0]
    if one.records == 0:
        return "empty"
    return f"the {_PLURALS[found.scale]} of this partition are not known here"


_COLUMNS: Final = (
    Heading("Partition"), Heading("Leader", True), Heading("Replicas"), Heading("In sync"),
    Heading("Start", True, "first offset"), Heading("End", True, "next offset"), Heading("Disk", True),
    Heading("Segments", True),
)  # fmt: skip
_BUCKET_COLUMNS: Final = (
    Heading("On disk from", True), Heading("Bucket", True), Heading("Objects", True),
    Heading("Waiting for upload", True), Heading("Since"),
)  # fmt: skip


def _table(context: PageContext, found: TopicPage) -> Markup:
    """Return the partitions; a topic without a bucket has no columns about it."""
    rows = [
        _row(found, one) + (_bucket_cells(context, one) if found.has_bucket else []) for one in found.lines
    ]
    return table(_COLUMNS + (_BUCKET_COLUMNS if found.has_bucket else ()), rows, caption="Partitions")


def _row(found: TopicPage, one: TierLayout) -> list[Child]:
    short = len(one.isr) < len(one.replicas)
    isr: Child = ", ".join(map(str, one.isr)) or words.NOTHING
    return [
        el("a", one.partition, href=link("/records", topic=found.name, partition=one.partition)),
        badge("none", "bad") if one.leader < 0 else one.leader,
        ", ".join(map(str, one.replicas)) or words.NOTHING,
        [badge(f"{len(one.isr)} of {len(one.replicas)}", "warn"), " ", isr] if short else isr,
        words.count(one.start),
        words.count(one.end),
        words.size(one.disk_bytes),
        words.count(one.disk_segments),
    ]


def _bucket_cells(context: PageContext, one: TierLayout) -> list[Child]:
    return [
        words.count(one.local_start),
        words.size(one.bucket_bytes),
        words.count(one.bucket_objects),
        [words.size(one.waiting_bytes)]
        if one.waiting_bytes
        else (words.NOTHING if one.waiting_bytes is None else "0"),
        el("time", words.ago(one.waiting_since_ms, context.now_ms)),
    ]


def _cards(context: PageContext, one: TierLayout) -> Markup:
    return tiles(
        Tile("Records", words.count(one.records), f"{one.start:,} to {one.end:,}"),
        Tile("In the bucket", words.size(one.bucket_bytes), f"{words.count(one.bucket_objects)} objects"),
        Tile("On disk", words.size(one.disk_bytes), f"{words.count(one.disk_segments)} segments"),
        Tile(
            "Waits for upload", words.size(one.waiting_bytes), words.ago(one.waiting_since_ms, context.now_ms)
            if one.waiting_bytes else "nothing waits", "warn" if one.waiting_bytes else "",
        ),
    )  # fmt: skip


_GROUPS: Final = (
    Heading("Group"), Heading("State"), Heading("Members", True), Heading("Lag here", True),
)  # fmt: skip


def _groups(found: TopicPage) -> Markup:
    rows: list[list[Child]] = [
        [
            el("a", one.row.group_id or "(the empty id)", href=link("/group", id=one.row.group_id)),
            state(one.row.state),
            words.count(one.members),
            words.count(next((each.lag for each in one.topics if each.topic == found.name), None)),
        ]
        for one in found.groups[:MOST_GROUPS]
    ]
    parts: list[Child] = [table(_GROUPS, rows, caption="Groups")] if rows else []
    if not rows:
        parts.append(notice("", "No group has committed an offset in this topic, or has a partition of it."))
    if rest := len(found.groups) - len(rows):
        parts.append(notice("", f"{words.count(rest)} more groups."))
    if not found.all_groups:
        parts.append(notice("", "Only some of the cluster's groups were searched."))
    return section("Groups", parts)


def _stable(context: PageContext, found: StableOffset | str) -> Markup:
    """Return how far readers of committed records can read, and which transaction stops them."""
    note = "Readers with isolation.level=read_committed read up to the last stable offset."
    if isinstance(found, str):
        return section("Transactions", notice("bad", f"The last stable offset is not known: {found}"))
    pairs: list[tuple[str, Child]] = [
        ("Last stable offset", f"{found.last_stable:,}"),
        ("Behind the high watermark", f"{found.lag:,} offsets" if found.lag else "0"),
    ]
    if found.oldest is None:
        pairs.append(("Open transactions", "none"))
    else:
        pairs.append(("Open transactions", words.count(found.open)))
        pairs.append(("The oldest", _oldest(context, found.oldest)))
    return section("Transactions", facts(*pairs), note=note)


def _oldest(context: PageContext, oldest: OldestTransaction) -> Child:
    one = oldest.open
    who: Child = f"producer {one.producer_id}, epoch {one.producer_epoch}"
    if oldest.transactional_id is not None:
        who = [id_link(oldest.transactional_id), f" ({who})"]
    parts: list[Child] = [who]
    if oldest.since_ms is not None:
        age = words.ago(oldest.since_ms, context.now_ms)
        parts += [", since ", utc_time(oldest.since_ms), f" ({age})"]
    parts.append(f", from offset {one.first_offset:,} on")
    if oldest.info is None:
        parts += [" ", badge("no coordinator knows it", "bad")]
    return parts


def _segments(one: TierLayout) -> list[Child]:
    parts: list[Child] = []
    if one.edges:
        rows: list[list[Child]] = [
            [el("code", edge.what), _setting(edge.what, edge.value), f"{edge.offset:,.0f}"]
            for edge in one.edges
        ]
        parts.append(
            section(
                "Retention edges",
                table(
                    [
                        Heading("Setting"),
                        Heading("Value", True),
                        Heading("Lets go before offset", True),
                    ],
                    rows,
                    caption="Retention edges",
                ),
            )
        )
    newest = list(reversed(one.blocks))[:MOST_SEGMENTS]
    columns = [
        Heading("Offsets"), Heading("Tier"), Heading("Bytes", True), Heading("Segments", True),
        Heading("Newest record"), Heading("Name"),
    ]  # fmt: skip
    rows = [
        [
            el("span", f"{block.first:,} – {max(block.end - 1, block.first):,}", class_="one-line"),
            badge("bucket", "ice") if block.tier == BUCKET else badge("disk", "water"),
            words.size(block.size),
            words.count(block.segments),
            utc_time(block.max_ms),
            _name(block.name),
        ]
        for block in newest
    ]
    note = f"The newest {MOST_SEGMENTS} of {len(one.blocks):,}." if len(one.blocks) > MOST_SEGMENTS else None
    if rows:
        parts.append(
            section(
                "Segments and objects", live("segments", table(columns, rows, caption="Segments")), note=note
            )
        )
    return parts


def _name(name: str) -> Child:
    """Return an object as the end of its key; the whole key is the title."""
    if not name:
        return "a page of the manifest"
    return el("code", name.rpartition("/")[2], title=name)


def _setting(what: str, value: str) -> str:
    return words.span(int(value) / 1000) if what.endswith("ms") else words.size(int(value))
