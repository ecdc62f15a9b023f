"""The bucket page: objects, bytes, cuts, requests and their cost, orphans, the last check. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from service.base.extras import install_extra
from service.console.web import words
from service.console.web.costs import DAY_MS, Prices
from service.console.web.frame import (
    Heading,
    PageContext,
    Tile,
    badge,
    code,
    empty,
    facts,
    failed,
    live,
    notice,
    page,
    section,
    table,
    tiles,
    utc_time,
)
from service.console.web.history import NodeSample
from service.console.web.markup import Child, Markup, el, link
from service.console.web.order_rows import OrdersShown
from service.console.web.pages.bucket_cuts import cuts_section
from service.console.web.pages.bucket_objects import objects_section
from service.console.web.pages.bucket_orders import orders_section
from service.console.web.pages.bucket_requests import requests_section
from service.console.web.survey import STANDARD, Findings, TopicSum, by_day

MOST_TOPICS: Final = 200


class Settings(NamedTuple):
    """Settings of the S3 bucket; None for unknown ones."""

    uploads: int | None
    oldest_upload_ms: int | None
    rules: Sequence[str]
    versioning: str | None
    encryption: str | None
    problems: Sequence[str]
    more_uploads: bool = False
    expires: bool = False


class Fsck(NamedTuple):
    """Shown part of the last report of `firn fsck --json`; `problem`: why there is none."""

    path: str
    at_ms: int | None = None
    clean: bool = False
    deep: bool = False
    segments: int = 0
    records: int = 0
    errors: Sequence[tuple[str, str]] = ()
    error_count: int = 0
    orphans: int = 0
    problem: str | None = None


class BucketPage(NamedTuple):
    """Data of the page. `found` is the newest survey, None before the first."""

    url: str | None
    endpoint: str | None
    found: Findings | None
    surveying: bool
    problem: str | None
    settings: Settings | None
    lacks_aioboto3: bool
    prices: Prices
    nodes: Sequence[NodeSample]
    fsck: Fsck | None
    topic: str | None = None
    orders: OrdersShown = OrdersShown()


def render(context: PageContext, found: BucketPage) -> str:
    if found.url is None:
        return page(
            context,
            "Bucket",
            "/bucket",
            empty(
                "No bucket",
                ["The cluster has no ", code("firn.remote.url"), ", and ", code("--url"), " names none."],
            )
            if found.problem is None
            else failed("The bucket is not known", found.problem),
        )
    lead: Child = [code(found.url), f" at {found.endpoint}" if found.endpoint else ""]
    parts: list[Child] = []
    if found.problem is not None:
        if found.found is None:
            parts.append(failed("The bucket cannot be read", found.problem, "The console retries by itself."))
        else:
            parts.append(notice("bad", f"The bucket cannot be read: {found.problem}. The data below is old."))
    if found.found is not None:
        parts += _survey(context, found, found.found)
    elif found.problem is None:
        parts.append(
            empty("The bucket is being surveyed", "The console reads its listing once; figures follow.")
        )
    if found.found is not None:
        cuts = found.found.cuts
        parts.append(objects_section(found.found.sizes, found.prices))
        parts.append(orders_section(found.orders, 0 if cuts is None else cuts.orders, context.now_ms))
        parts.append(cuts_section(cuts, context.now_ms))
    parts.append(requests_section(found.nodes, found.prices, context.now_ms))
    parts.append(_settings(context, found))
    parts.append(_fsck(context, found.fsck))
    return page(context, "Bucket", "/bucket", live("bucket", parts), lead=lead)


def _survey(context: PageContext, shown: BucketPage, found: Findings) -> list[Child]:
    prices = shown.prices
    if found.listed == 0:
        return [empty("Nothing in the bucket yet", "Sealed segments of tiered topics are uploaded.")]
    month, used = prices.month(found.by_class), found.by_class.most_common(3)
    parts: list[Child] = [
        tiles(
            Tile("Objects", words.count(found.objects), f"as of {words.ago(found.at_ms, context.now_ms)}"),
            Tile("Bytes", words.size(found.size), ", ".join(f"{words.size(n)} {kind}" for kind, n in used)),
            Tile("A month of it", words.money(month, prices.currency), "at the prices below"),
            Tile("Orphans", words.count(found.orphan_count), words.size(found.orphan_bytes),
                 "warn" if found.orphan_count else ""),
            Tile("New objects", words.count(found.young_count), "younger than an hour, in no manifest yet"),
        )
    ]  # fmt: skip
    if not found.is_whole:
        parts.append(notice("warn", f"Only the first {words.count(found.listed)} objects were listed."))
    if unpriced := sorted(prices.unpriced(found.by_class)):
        words_ = f"{', '.join(unpriced)}: at the price of {STANDARD}, because --price names no other."
        parts.append(notice("warn", words_))
    parts += [notice("warn", problem) for problem in found.problems]
    topics = sorted(found.topics.values(), key=lambda one: -one.size)
    parts.append(_topics(shown, topics))
    parts.append(_days(context, shown, topics))
    parts.append(_orphans(context, found))
    parts.append(
        el(
            "p",
            f"The survey took {words.span(found.took_ms / 1000)} and about {words.count(found.requests)} "
            "requests. "
            f"Prices: {prices.storage_gb_month:g} {prices.currency} for a GB and month"
            + "".join(f" ({kind}: {price:g})" for kind, price in prices.classes.items())
            + f", {prices.write_1000:g} for a thousand writes, {prices.read_1000:g} for a thousand reads"
            + "; other ones are given with --price. A GB is 2^30 bytes, a month has 30 days.",
            class_="note after",
        )
    )
    return parts


def _topics(shown: BucketPage, topics: Sequence[TopicSum]) -> Markup:
    prices = shown.prices
    rows: list[list[Child]] = []
    for one in topics[:MOST_TOPICS]:
        name: Child = (
            el("a", one.name, href=link("/bucket", topic=one.topic_id))
            if one.name is not None
            else [badge("unknown", "warn"), " ", code(one.topic_id)]
        )
        rows.append(
            [
                name,
                words.count(one.partitions),
                words.count(one.segments),
                words.count(one.other_objects),
                words.size(one.size),
                words.money(prices.day(one.by_class), prices.currency),
                words.money(prices.month(one.by_class), prices.currency),
                words.money(prices.writes(sum(one.writes_by_day.values())), prices.currency),
            ]
        )
    columns = [
        Heading("Topic"), Heading("Partitions", True), Heading("Segments", True),
        Heading("Manifests, HEADs", True),
        Heading("Bytes", True), Heading("Storage a day", True), Heading("A month", True),
        Heading("Writes so far", True, "what it took to write the objects that are there now"),
    ]  # fmt: skip
    total = [
        "All",
        words.count(sum(one.partitions for one in topics)),
        words.count(sum(one.segments for one in topics)),
        words.count(sum(one.other_objects for one in topics)),
        words.size(sum(one.size for one in topics)),
        words.money(sum(prices.day(one.by_class) for one in topics), prices.currency),
        words.money(sum(prices.month(one.by_class) for one in topics), prices.currency),
        words.money(prices.writes(sum(sum(one.writes_by_day.values()) for one in topics)), prices.currency),
    ]
    note = f"The largest {MOST_TOPICS} of {len(topics):,}." if len(topics) > MOST_TOPICS else None
    return section("Topics", table(columns, rows, caption="Topics in the bucket", foot=total), note=note)


def _days(context: PageContext, shown: BucketPage, topics: Sequence[TopicSum]) -> Markup:
    prices = shown.prices
    chosen = [one for one in topics if shown.topic is None or one.topic_id == shown.topic]
    name = chosen[0].name or shown.topic if shown.topic is not None and chosen else None
    days = by_day(chosen, context.now_ms)
    while len(days) > 1 and not days[-1].held:
        days.pop()  # from before there was anything
    most = max((day.added for day in days), default=0) or 1
    share = _standard_price(prices, chosen)
    rows: list[list[Child]] = [
        [
            words.moment(day.day * DAY_MS)[:10],
            _bar(day.added / most),
            words.size(day.added),
            words.count(day.writes),
            words.money(prices.writes(day.writes), prices.currency),
            words.size(day.held),
            words.money(share * day.held, prices.currency),
        ]
        for day in days
    ]
    columns = [
        Heading("Day"), Heading(""), Heading("Added", True), Heading("Writes", True),
        Heading("Writes cost", True),
        Heading("Held", True), Heading("Storage costs", True),
    ]  # fmt: skip
    note: Child = "Counts present objects only; objects deleted since are not counted."
    if name is not None:
        note = [note, " ", el("a", "All topics", href="/bucket")]
    return section(
        f"Days of {name}" if name else "Days", table(columns, rows, caption="Costs by day"), note=note
    )


def _standard_price(prices: Prices, topics: Sequence[TopicSum]) -> float:
    """Return the average cost of a byte and day, over the storage classes in use."""
    size = sum(one.size for one in topics)
    return sum(prices.day(one.by_class) for one in topics) / size if size else 0.0


def _bar(part: float) -> Markup:
    return el(
        "svg",
        el("rect", x=0, y=0, width=f"{100 * part:.1f}", height=8, class_="bar-part"),
        viewBox="0 0 100 8", preserveAspectRatio="none", class_="bar", aria_hidden="true",
    )  # fmt: skip


def _orphans(context: PageContext, found: Findings) -> Markup | None:
    if not found.orphan_count and not found.foreign_objects:
        return None
    parts: list[Child] = []
    if found.orphan_count:
        rows: list[list[Child]] = [
            [
                code(one.key),
                words.size(one.size),
                utc_time(one.modified_ms),
                words.ago(one.modified_ms, context.now_ms),
            ]
            for one in found.orphans
        ]
        columns = [Heading("Key"), Heading("Bytes", True), Heading("Written"), Heading("Age")]
        parts.append(table(columns, rows, caption="Objects that no manifest names"))
    if found.foreign_objects:
        parts.append(
            notice(
                "",
                f"{words.count(found.foreign_objects)} objects of {words.size(found.foreign_bytes)} "
                "are not of this layout.",
            )
        )
    return section(
        "Orphans",
        parts,
        note="No published manifest names these objects. The node's sweeper deletes them after its grace "
        "period; firn sweep deletes them by hand.",
    )


def _settings(context: PageContext, shown: BucketPage) -> Markup | None:
    if shown.lacks_aioboto3:
        return section(
            "The bucket's settings",
            notice(
                "",
                "Storage classes, unfinished uploads and lifecycle rules need aioboto3: ",
                install_extra("console"),
            ),
        )
    found = shown.settings
    if found is None:
        return None
    rules: Child = el("ul", [el("li", rule) for rule in found.rules]) if found.rules else "none"
    uploads = words.count(found.uploads) + (" and more" if found.more_uploads else "")
    if found.oldest_upload_ms is not None:
        uploads += f", the oldest begun {words.ago(found.oldest_upload_ms, context.now_ms)}"
    return section(
        "The bucket's settings",
        [notice("warn", problem) for problem in found.problems],
        facts(
            ("Unfinished uploads", uploads),
            ("Lifecycle rules", rules),
            ("Versioning", found.versioning or words.NOTHING),
            ("Encryption", found.encryption or words.NOTHING),
        ),
        notice("bad", "A lifecycle rule deletes objects: Firn's own must not expire.")
        if found.expires
        else None,
        notice("", "Old versions of objects are billed, too; this page does not count them.")
        if found.versioning == "Enabled"
        else None,
    )


def _fsck(context: PageContext, fsck: Fsck | None) -> Markup:
    if fsck is None:
        return section(
            "Last fsck",
            el(
                "p",
                "Pass the path of a report to the console: ",
                code("firn fsck URL --json > FILE"),
                " and ",
                code("firn console --fsck FILE"),
                ".",
                class_="note",
            ),
        )
    if fsck.problem is not None:
        return section("Last fsck", notice("warn", f"{fsck.path}: {fsck.problem}"))
    rows: list[list[Child]] = [[code(where), what] for where, what in fsck.errors]
    return section(
        "Last fsck",
        facts(
            ("Outcome", badge("clean", "good") if fsck.clean else badge(f"{fsck.error_count} errors", "bad")),
            ("When", [utc_time(fsck.at_ms), f" ({words.ago(fsck.at_ms, context.now_ms)})"]),
            ("How", "every batch" if fsck.deep else "footers only"),
            ("Checked", f"{words.count(fsck.segments)} segments, {words.count(fsck.records)} records"),
            ("Orphans", words.count(fsck.orphans)),
        ),
        table([Heading("Where"), Heading("What")], rows, caption="Errors") if rows else None,
    )


def fsck_of(path: str, at_ms: int, document: Mapping[str, Any]) -> Fsck:
    """Parse the report in `document`; one of another shape is a problem."""
    try:
        errors = [(str(one["where"]), str(one["what"])) for one in document["errors"][:50]]
        return Fsck(
            path, at_ms, bool(document["clean"]), bool(document["deep"]), int(document["segments"]),
            int(document["records"]), errors, int(document["error_count"]), int(document["orphan_count"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as e:
        return Fsck(path, problem=f"not a report of firn fsck --json ({type(e).__name__}: {e})")
