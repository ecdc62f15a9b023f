"""Blocks of code of the documents, each with the mark beside it.

A mark is an HTML comment right before a block, and says why: ``<!-- not run: … -->`` for commands that are
checked against their parsers alone, ``<!-- not checked: … -->`` for what nothing here can judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.processes import REPOSITORY

SHELL = ("sh", "bash", "console")
NOT_RUN, NOT_CHECKED = "not run", "not checked"
_MARK = re.compile(r"<!--\s*(not run|not checked)\b:?\s*(.*?)\s*-->", re.DOTALL)


class Block(NamedTuple):
    """A fence of a page. `mark`: NOT_RUN, NOT_CHECKED, or "" for a block that is run (or, if it holds no
    commands, checked). `line` is the first of the block itself. `heading`: the one above it."""

    page: str
    line: int
    language: str
    text: str
    mark: str
    reason: str
    heading: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL


class Span(NamedTuple):
    """A piece of code within a sentence; `line` is that of its paragraph."""

    page: str
    line: int
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


class BadBlock(Exception):
    """A block that has no language, or a mark that gives no reason."""


def pages() -> list[str]:
    """Return what a user reads: README, docs/*.md and those beside what they describe."""
    globs = (
        "README.md",
        "CONTRIBUTING.md",
        "docs/*.md",
        "localstack/*.md",
        "infra/**/*.md",
        "deploy/**/*.md",
    )
    found = [path for pattern in globs for path in sorted(REPOSITORY.glob(pattern))]
    return [str(path.relative_to(REPOSITORY)) for path in found if ".terraform" not in path.parts]


@cache
def blocks(page: str) -> tuple[Block, ...]:
    """Return the blocks of a page in order. Raises `BadBlock`."""
    return tuple(blocks_of(page, (REPOSITORY / page).read_text("utf-8")))


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """Yield the blocks of a text. Raises `BadBlock`."""
    before: Token | None = None
    heading, is_heading = "", False
    for token in _parsed(text):
        line = (token.map[0] if token.map else 0) + 1
        if is_heading and token.type == "inline":
            heading = token.content
        is_heading = token.type == "heading_open"
        if token.type == "code_block":
            raise BadBlock(f"{page}:{line}: an indented block: put it between fences, with its language")
        if token.type == "fence":
            language = token.info.split()[0] if token.info.strip() else ""
            if not language:
                raise BadBlock(f"{page}:{line}: a block without a language: sh, text, properties, …")
            mark, reason = _mark(before, f"{page}:{line}")
            yield Block(page, line + 1, language, token.content, mark, reason, heading)
        before = token


def spans(page: str) -> Iterator[Span]:
    """Yield the code within the sentences of a page."""
    for token in _parsed((REPOSITORY / page).read_text("utf-8")):
        if token.type == "inline":
            for child in token.children or ():
                if child.type == "code_inline":
                    yield Span(page, (token.map[0] if token.map else 0) + 1, " ".join(child.content.split()))


@cache
def _parsed(text: str) -> list[Token]:
    return MarkdownIt("commonmark").parse(text)


def _mark(before: Token | None, place: str) -> tuple[str, str]:
    if before is None or before.type != "html_block":
        return "", ""
    found = _MARK.search(before.content)
    if found is None:
        return "", ""
    if len(found[2]) < 5:
        raise BadBlock(f"{place}: '{found[1]}' without a reason")
    return found[1], " ".join(found[2].split())
