"""Common parts of all pages: head, navigation, tables, empty states and errors. [P]"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from service.console.web import words
from service.console.web.markup import Child, Markup, el, link

NAVIGATION: Final = (
    ("/", "Overview", "o"),
    ("/cluster", "Cluster", "n"),
    ("/topics", "Topics", "t"),
    ("/records", "Records", "r"),
    ("/groups", "Groups", "u"),
    ("/transactions", "Transactions", "x"),
    ("/bucket", "Bucket", "b"),
    ("/cold", "Cold reads", "c"),
    ("/configuration", "Configuration", "k"),
)


class PageContext(NamedTuple):
    """Environment of a page. `assets` has the address of each static file by its name."""

    bootstrap: str
    url: str | None
    assets: Mapping[str, str]
    now_ms: int
    version: str
    has_session: bool = False
    allows_changes: bool = False


def page(context: PageContext, title: str, path: str, *content: Child, lead: Child = None) -> str:
    """Return a whole document."""
    assets = context.assets
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", f"{title} · Firn"),
        el("link", rel="icon", type="image/svg+xml", href=assets["icon.svg"]),
        el("link", rel="stylesheet", href=assets["uPlot.css"]),
        el("link", rel="stylesheet", href=assets["console.css"]),
        el("script", src=assets["uPlot.js"], defer=True),
        el("script", src=assets["console.js"], defer=True),
    )
    body = el(
        "body",
        el("a", "To the content", class_="skip", href="#main"),
        _banner(context, path),
        el(
            "main",
            el("header", el("h1", title), el("p", lead, class_="lead") if lead else None, class_="page-head"),
            content,
            id="main",
            tabindex="-1",
        ),
        el(
            "footer",
            el("p", f"Firn {context.version} · {context.bootstrap}"),
            el("p", el("span", "", id="live", role="status"), class_="live"),
        ),
    )
    return "<!doctype html>\n" + el("html", head, body, lang="en")


def _banner(context: PageContext, path: str) -> Markup:
    items = [
        el(
            "li",
            el(
                "a", label, href=where, aria_current="page" if where == path else None, data_key=key,
                title=f"g {key}",
            ),
        )
        for where, label, key in NAVIGATION
    ]  # fmt: skip
    leave = None
    if context.has_session:
        leave = el(
            "form", el("button", "Sign out", type="submit", class_="quiet"), method="post", action="/logout"
        )
    return el(
        "header",
        el("a", _mark(), el("span", "Firn"), class_="brand", href="/", aria_label="Firn, overview"),
        el("nav", el("ul", items), aria_label="Pages"),
        leave,
        class_="banner",
    )


def _mark() -> Markup:
    """Return the logo: layers, the upper ones ice, the lowest water."""
    bars = [
        el("rect", class_=f"mark-{n}", x=2 + n, y=3 + 5 * n, width=20 - 2 * n, height=4, rx=1)
        for n in range(4)
    ]
    return el("svg", bars, viewBox="0 0 24 24", class_="mark", aria_hidden="true")


def live(name: str, *content: Child, data_tail: bool = False) -> Markup:
    """Return a part that the script replaces with that of a newer page, with `data_tail` at every look."""
    return el("div", content, id=f"live-{name}", data_live=True, data_tail=data_tail)


def utc_time(ms: int | None, *, seconds: bool = True) -> Markup:
    """Return a time in UTC, which the script shows as local time on request."""
    if ms is None or ms < 0:
        return el("time", words.NOTHING)
    said = words.moment(ms, seconds=seconds)
    return el("time", f"{said} UTC", datetime=words.iso_moment(ms))


def exact_time(ms: int) -> Markup:
    """Return a time in UTC with milliseconds."""
    if ms < 0:
        return el("time", words.NOTHING)
    return el("time", f"{words.exact_moment(ms)} UTC", datetime=words.iso_moment(ms))


def section(title: str, *content: Child, note: Child = None, id: str | None = None) -> Markup:
    return el(
        "section",
        el("div", el("h2", title), el("p", note, class_="note") if note else None, class_="section-head"),
        content,
        id=id,
    )


class Heading(NamedTuple):
    """A column of a table. `is_number`: right-aligned, with digits of equal width."""

    title: str
    is_number: bool = False
    hint: str | None = None


def numbers(*titles: str) -> list[Heading]:
    return [Heading(title, True) for title in titles]


def table(
    columns: Sequence[Heading],
    rows: Sequence[Sequence[Child]],
    *,
    caption: str,
    foot: Sequence[Child] = (),
) -> Markup:
    """Return a table that scrolls on a narrow screen. The first cell of a row is its head."""
    kinds = ["number" if column.is_number else None for column in columns]
    head = [
        el("th", column.title, scope="col", class_=kind, title=column.hint)
        for column, kind in zip(columns, kinds, strict=True)
    ]
    body = [
        el(
            "tr",
            el("th", row[0], scope="row", class_=kinds[0]),
            [el("td", cell, class_=kind) for cell, kind in zip(row[1:], kinds[1:], strict=True)],
        )
        for row in rows
    ]
    last = None
    if foot:
        cells = [el("td", cell, class_=kind) for cell, kind in zip(foot, kinds, strict=True)]
        last = el("tfoot", el("tr", cells))
    inner = el(
        "table",
        el("caption", caption, class_="unseen"),
        el("thead", el("tr", head)),
        el("tbody", body),
        last,
    )
    return el("div", inner, class_="table", tabindex=0, role="region", aria_label=caption)


def facts(*pairs: tuple[str, Child]) -> Markup:
    """Return a list of names and values."""
    return el("dl", [el("div", el("dt", name), el("dd", value)) for name, value in pairs], class_="facts")


class Tile(NamedTuple):
    """A number of the overview. `tone` is "", ``bad`` or ``warn``; `below` is a second line."""

    label: str
    value: str
    below: str = ""
    tone: str = ""


def tiles(*found: Tile) -> Markup:
    return el(
        "ul",
        [
            el(
                "li",
                el("span", one.label, class_="tile-label"),
                el("span", one.value, class_="tile-value"),
                el("span", one.below, class_="tile-below"),
                class_=f"tile {one.tone}".strip(),
            )
            for one in found
        ],
        class_=f"tiles tiles-{len(found)}",
    )


def empty(title: str, *words: Child) -> Markup:
    """Return the placeholder for an empty list."""
    return el("div", _mark(), el("h2", title), [el("p", word) for word in words], class_="state empty")


def failed(title: str, why: str, *words: Child) -> Markup:
    """Return the placeholder for data that could not be read, with the reason."""
    return el(
        "div",
        el("h2", title),
        el("p", why, class_="why"),
        [el("p", word) for word in words],
        class_="state failed",
        role="alert",
    )


def notice(tone: str, *words: Child) -> Markup:
    """Return a line about an error or missing data, beside the data."""
    return el("p", words, class_=f"notice {tone}")


def code(words: str) -> Markup:
    return el("code", words)


def badge(words: str, tone: str = "") -> Markup:
    return el("span", words, class_=f"badge {tone}".strip())


def pager(
    path: str, number: int, more: bool, total: int | None, /, **query: str | int | None
) -> Markup | None:
    """Return links to the pages before and after page `number` (from 1 on)."""
    if number == 1 and not more:
        return None
    before = (
        el("a", "Previous", href=link(path, **query, page=number - 1), rel="prev") if number > 1 else None
    )
    after = el("a", "Next", href=link(path, **query, page=number + 1), rel="next") if more else None
    where = f"Page {number}" + (f" of {total}" if total is not None else "")
    return el("nav", before, el("span", where), after, class_="pager", aria_label="Pages of this list")


def choices(
    label: str,
    path: str,
    name: str,
    chosen: str,
    options: Sequence[tuple[str, str]],
    /,
    **query: str | int | None,
) -> Markup:
    """Return a row of links of which one is chosen."""
    items = [
        el(
            "a", words, href=link(path, **{**query, name: value}),
            aria_current="true" if value == chosen else None,
        )
        for value, words in options
    ]  # fmt: skip
    return el("div", items, class_="choices", role="group", aria_label=label)


def changes(context: PageContext, *links: tuple[str, str]) -> Markup | None:
    """Return links (words and path) to forms that change something, where the console lets people."""
    if not context.allows_changes:
        return None
    return el(
        "nav", [el("a", label, href=where) for label, where in links], class_="changes", aria_label="Changes"
    )


def field(label: Child, control: Markup) -> Markup:
    return el("label", el("span", label), control, class_="field")


def search_form(path: str, label: str, wanted: str, longest: int, *hidden: Child) -> Markup:
    """Return a form that queries `path` for the text `wanted`, of at most `longest` characters."""
    return el(
        "form",
        *hidden,
        field(label, el("input", type="search", name="q", value=wanted, maxlength=longest, data_search=True)),
        el("button", "Find", type="submit"),
        method="get",
        action=path,
        class_="row-form",
        role="search",
    )


def select(name: str, chosen: str, options: Sequence[tuple[str, str]]) -> Markup:
    return el(
        "select",
        [el("option", words, value=value, selected=value == chosen) for value, words in options],
        name=name,
    )


def login_page(context: PageContext, wrong: str | None, to: str) -> str:
    """Return the page that asks for a token; works without a script."""
    form = el(
        "form",
        el("h1", "Firn"),
        el(
            "p", wrong or "This console asks for its token.", class_="why" if wrong else "note", role="status"
        ),
        el("input", type="hidden", name="to", value=to),
        field(
            "Token",
            el("input", type="password", name="token", autocomplete="current-password", autofocus=True),
        ),
        el("button", "Sign in", type="submit"),
        method="post",
        action="/login",
        class_="login",
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("title", "Firn"),
        el("link", rel="icon", type="image/svg+xml", href=context.assets["icon.svg"]),
        el("link", rel="stylesheet", href=context.assets["console.css"]),
    )
    return "<!doctype html>\n" + el(
        "html", head, el("body", el("main", _mark(), form, class_="alone")), lang="en"
    )
