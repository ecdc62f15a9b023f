"""Judgement of every block and every piece of code of the documents, and the numbers of it.

``python -m tests.support.doc_judging`` prints the table.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from service.base.errors import ConfigError
from service.base.properties import MalformedProperty, parse_property_lines
from service.cli.client_properties import _NOT_KAFKAS
from service.config.client import parse_client
from service.config.parsing import effective
from service.config.settings import BrokerConfig
from tests.support.doc_blocks import NOT_CHECKED, NOT_RUN, Block, blocks, pages, spans
from tests.support.doc_programs import check
from tests.support.doc_shell import commands, typed

_COMMAND = re.compile(
    r"(\$ )?((\S*/)?bin/)?"
    r"(firn|make|pip|python3?|(kafka|connect)-[a-z-]+(\.sh)?|(localstack|\.ci)/[a-z-]+)( |$)"
)
_ENDS = re.compile(r" (\||>|>>|&&|\|\|) |;")


_OF_CLIENTS = ("security.protocol", "sasl.mechanism", "sasl.username", "firn.http.ssl.ca.location")


class Finding(NamedTuple):
    """Something that is wrong in a document."""

    place: str
    what: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}: {self.why}"


def commands_of(block: Block) -> list[tuple[str, ...]]:
    """Return the commands of a block of a shell. Raises `ValueError`."""
    return commands(typed(block.text) if block.language == "console" else block.text)


def judge(block: Block) -> Iterator[Finding]:
    """Yield what is wrong with a block, as far as that can be seen without running it."""
    if block.mark == NOT_CHECKED:
        return
    if block.mark == NOT_RUN and not block.is_shell and block.language != "python":
        yield Finding(block.place, block.language, "is never run: mark it 'not checked', or not at all")
    if block.is_shell:
        yield from _judge_shell(block)
    elif block.language == "properties":
        if (why := judge_properties(block.text)) is not None:
            yield Finding(block.place, "properties", why)
    elif block.language == "json" and "…" not in block.text:
        try:
            json.loads(block.text)
        except ValueError as e:
            yield Finding(block.place, "json", str(e))


def _judge_shell(block: Block) -> Iterator[Finding]:
    try:
        found = commands_of(block)
    except ValueError as e:
        yield Finding(block.place, "a shell would not take it", str(e))
        return
    if not found:
        yield Finding(block.place, block.language, "no command in it (a console's begin with '$ ')")
    for words in found:
        if not block.mark and "…" in " ".join(words):
            yield Finding(block.place, " ".join(words), "nobody can run '…': write it out, or mark the block")
        if (why := check(words)) is not None:
            yield Finding(block.place, shlex.join(words), why)


def judge_span(text: str) -> str | None:
    """Return what is wrong with a command within a sentence, or None for that, and for what is none."""
    if not _COMMAND.match(text):
        return None
    text = re.sub(r"\$\([^()]*\)", "…", text.removeprefix("$ "))
    words = _ENDS.split(text, maxsplit=1)[0].replace("[", " ").replace("]", " ").split()
    several = next((word for word in words if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", word)), None)
    for one in [None] if several is None else several.split("|"):
        why = check([one if word == several and one else word for word in words], whole=False)
        if why is not None:
            return why
    return None


def judge_properties(text: str) -> str | None:
    """Return why neither a node nor a client takes these properties, or None."""
    try:
        given = {line.key: line.value for line in parse_property_lines(text)}
    except MalformedProperty as e:
        return str(e)
    given = {key: value for key, value in given.items() if not key.startswith("config.providers")}
    try:
        if any(key in given for key in _OF_CLIENTS):
            parse_client({key: value for key, value in given.items() if key not in _NOT_KAFKAS})
        else:
            BrokerConfig.from_properties(effective(given))
    except ConfigError as e:
        return str(e)
    return None


def findings() -> Iterator[Finding]:
    """Yield what is wrong in any document."""
    for page in pages():
        for block in blocks(page):
            yield from judge(block)
        for span in spans(page):
            if (why := judge_span(span.text)) is not None:
                yield Finding(span.place, f"`{span.text}`", why)


# -- numbers


class Numbers(NamedTuple):
    """Commands and blocks of one page, by what is done with them; `reasons` of those that are not run."""

    commands: Counter[str]
    blocks: Counter[str]
    reasons: Counter[str]
    spans: int


def numbers(page: str) -> Numbers:
    """Count a page."""
    done, found, reasons = Counter[str](), Counter[str](), Counter[str]()
    for block in blocks(page):
        if not block.is_shell:
            continue
        what = block.mark or "run"
        count = len(commands_of(block)) if block.mark != NOT_CHECKED else 1
        done[what] += count
        found[what] += 1
        if block.reason:
            reasons[f"{block.mark}: {block.reason}"] += count
    return Numbers(done, found, reasons, sum(_COMMAND.match(one.text) is not None for one in spans(page)))


def table() -> str:
    """Return the numbers of all pages as text."""
    lines = [f"{'page':34} {'blocks':>7} {'run':>5} {'checked':>8} {'neither':>8} {'in sentences':>13}"]
    total, reasons = Counter[str](), Counter[str]()
    for page in pages():
        one = numbers(page)
        count = sum(one.blocks.values())
        total.update({"blocks": count, "spans": one.spans, **one.commands})
        reasons.update(one.reasons)
        if count or one.spans:
            lines.append(_row(page, count, one.commands, one.spans))
    lines.append(_row("all", total["blocks"], total, total["spans"]))
    lines += ["", "not run, or not checked, as:"]
    lines += [f"  {count:4} {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


def _row(name: str, count: int, done: Counter[str], spans: int) -> str:
    return f"{name:34} {count:7} {done['run']:5} {done[NOT_RUN]:8} {done[NOT_CHECKED]:8} {spans:13}"


if __name__ == "__main__":
    print(table())
