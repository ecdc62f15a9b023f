"""The configuration page: every key of a node or a topic, with value, source and meaning. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from service.client.admin_models import ConfigEntry
from service.console.web import words
from service.console.web.frame import (
    Heading,
    PageContext,
    badge,
    changes,
    choices,
    empty,
    failed,
    page,
    search_form,
    table,
)
from service.console.web.markup import Child, Markup, el, link

_MOST_FILLED_IN: Final = 500
DEFAULT: Final = 5
"""source of a key that nobody has set"""
SOURCES: Final = {
    1: ("topic", "good"),
    2: ("node, changed", "good"),
    3: ("cluster, changed", "good"),
    4: ("configuration file", "good"),
    DEFAULT: ("default", ""),
}
KINDS: Final = {
    1: "boolean", 2: "string", 3: "int", 4: "short", 5: "long", 6: "double", 7: "list", 8: "class",
    9: "password",
}  # fmt: skip


class Configuration(NamedTuple):
    """Data of the page: the keys of a node, or of a topic if it is not None. `status` is HTTP's."""

    nodes: Sequence[int]
    node: int | None
    topic: str | None
    entries: Sequence[ConfigEntry]
    wanted: str
    only_set: bool
    problem: str | None
    status: int = 200


def render(context: PageContext, found: Configuration) -> str:
    title = f"Settings of {found.topic}" if found.topic is not None else "Configuration"
    if found.problem is not None:
        # The other nodes can still be chosen.
        return page(
            context, title, "/configuration", _tools(found) if found.nodes else None,
            failed("The settings cannot be read", found.problem),
        )  # fmt: skip
    kept = matching(found)
    return page(
        context,
        title,
        "/configuration",
        changes(context, *_forms(found)),
        _tools(found),
        _tables(context, found, kept)
        if kept
        else empty("No key matches", f"{found.wanted!r} matches no key."),
        lead=f"{len(kept)} of {len(found.entries)} keys." + ("" if context.allows_changes else " Read only."),
    )


def _forms(found: Configuration) -> list[tuple[str, str]]:
    if found.topic is not None:
        return [("Change settings", link("/change/topic-settings", topic=found.topic))]
    return [
        (f"Change settings of node {found.node}", link("/change/broker-settings", broker=found.node)),
        ("Change settings of all brokers", "/change/broker-settings"),
    ]


def _tables(context: PageContext, found: Configuration, kept: Sequence[ConfigEntry]) -> list[Child]:
    """Return the keys; those with their defaults are folded unless keys are searched for."""
    columns = [Heading("Key"), Heading("Value"), Heading("Source"), Heading("Meaning")]
    is_folded = not found.wanted and not found.only_set
    first = [one for one in kept if one.source != DEFAULT or not is_folded]
    rest = [one for one in kept if one.source == DEFAULT and is_folded]
    parts: list[Child] = []
    if first:
        parts.append(table(columns, [_row(context, found, one) for one in first], caption="Settings"))
    if rest:
        summary = el("summary", f"{words.counted(len(rest), 'key')} with default values")
        inner = table(columns, [_row(context, found, one) for one in rest], caption="Default settings")
        parts.append(el("details", summary, inner, class_="after", open=not first))
    return parts


def matching(found: Configuration) -> list[ConfigEntry]:
    """Return the matching entries, configured ones first."""
    wanted = found.wanted.lower()
    kept = [
        one
        for one in found.entries
        if (wanted in one.name.lower() or wanted in one.documentation.lower())
        and not (found.only_set and one.source == DEFAULT)
    ]
    return sorted(kept, key=lambda one: (one.source == DEFAULT, one.name))


def _tools(found: Configuration) -> Markup:
    where: dict[str, str | int | None] = {"topic": found.topic, "node": found.node, "q": found.wanted}
    parts: list[Child] = []
    if found.topic is None and len(found.nodes) > 1:
        options = [(str(node), f"Node {node}") for node in found.nodes]
        parts.append(choices("Node", "/configuration", "node", str(found.node), options, q=found.wanted))
    parts.append(
        choices(
            "Which", "/configuration", "set", "1" if found.only_set else "",
            (("", "All"), ("1", "Configured")), **where,
        )
    )  # fmt: skip
    parts.append(
        search_form(
            "/configuration", "Contains", found.wanted, 100,
            el("input", type="hidden", name="topic", value=found.topic) if found.topic is not None else None,
            el("input", type="hidden", name="node", value=found.node) if found.node is not None else None,
            el("input", type="hidden", name="set", value="1") if found.only_set else None,
        )
    )  # fmt: skip
    return el("div", parts, class_="tools")


def _row(context: PageContext, found: Configuration, one: ConfigEntry) -> list[Child]:
    label, tone = SOURCES.get(one.source, (f"source {one.source}", ""))
    value: Child
    if one.is_sensitive:
        value = el("span", "hidden", class_="none")
    elif one.value is None or one.value == "":
        value = el("span", "not set" if one.value is None else "empty", class_="none")
    else:
        value = [el("code", one.value), _meaning(one)]
    others = [
        el(
            "li",
            el("code", name),
            " = ",
            el("code", words.NOTHING if value is None else value),
            f" ({SOURCES.get(source, ('?', ''))[0]})",
        )
        for name, value, source in (() if one.is_sensitive else one.synonyms[1:])
    ]
    return [
        [el("code", one.name), el("span", KINDS.get(one.kind, ""), class_="kind")],
        value,
        [
            badge(label, tone),
            el("span", "needs a restart", class_="kind") if one.is_read_only else None,
            _change(found, one) if context.allows_changes and not one.is_read_only else None,
        ],
        [
            el("p", _marked(one.documentation or words.NOTHING), class_="doc"),
            el("details", el("summary", "overridden values"), el("ul", others)) if others else None,
        ],
    ]  # fmt: skip


def _change(found: Configuration, one: ConfigEntry) -> list[Child]:
    """Return a link to the form that changes this key, with the value that it has unless it is a password, or
    too long for an address: a part of it might be sent back for the whole."""
    value = one.value or ""
    if one.is_sensitive or len(value) > _MOST_FILLED_IN:
        value = ""
    put = f"{one.name}={value}"
    where = link("/change/broker-settings", broker=found.node, set=put)
    if found.topic is not None:
        where = link("/change/topic-settings", topic=found.topic, set=put)
    return [" ", el("a", "change", href=where, aria_label=f"change {one.name}")]


def _marked(documentation: str) -> list[Child]:
    """Return text with the parts between backticks as code."""
    parts = documentation.split("`")
    if len(parts) % 2 == 0:
        return [documentation]
    return [el("code", part) if at % 2 else part for at, part in enumerate(parts)]


def _meaning(one: ConfigEntry) -> Markup | None:
    """Return long numbers as readable text."""
    value = one.value or ""
    if not value.isdecimal() or len(value) > 15 or int(value) < 1000:
        return None
    if one.name.endswith((".ms", "_ms")):
        return el("span", words.span(int(value) / 1000), class_="kind")
    if one.name.endswith("bytes"):
        return el("span", words.size(int(value)), class_="kind")
    return None
