"""docs/invariants.md and the code name the same invariants, each where it is upheld and where checked."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "invariants.md"
UPHELD = ("service",)
CHECKED = ("tests", "simulator")
_ROW = re.compile(r"^\| ([A-Z])([0-9]+) \|", re.MULTILINE)
_CODE_NAME = re.compile(r"`(?:[a-z_]+/)*(\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)`")
_DEFINED = re.compile(r"^ *(?:async def |def |class )?(\w+)(?=[(:])", re.MULTILINE)
_ENDS_OF_FILES = (".json", ".py", ".md", ".seg")


@cache
def page() -> str:
    return PAGE.read_text("utf-8")


@cache
def numbers() -> frozenset[str]:
    """The numbers of the page's tables, as ``T1``."""
    return frozenset(letter + number for letter, number in _ROW.findall(page()))


@cache
def sources(folder: str) -> dict[Path, str]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {path: path.read_text("utf-8") for path in paths if path.name != "test_invariants.py"}


def prose(text: str) -> Iterator[str]:
    """The comments and strings of a source."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in kinds:
            yield token.string


@cache
def named(folder: str) -> dict[str, Path]:
    """What looks like a number of the page in comments and strings, and a file that has it."""
    letters = "".join(sorted({number[0] for number in numbers()}))
    pattern = re.compile(rf"\b[{letters}][0-9]{{1,2}}\b")
    found: dict[str, Path] = {}
    for path, text in sources(folder).items():
        if pattern.search(text):
            for part in prose(text):
                found.update((number, path.relative_to(ROOT)) for number in pattern.findall(part))
    return found


def test_the_page_has_every_invariant_without_a_gap() -> None:
    ends = {"T": 26, "L": 8, "G": 6, "X": 12, "R": 8, "B": 5, "P": 17}
    wanted = {f"{letter}{n}" for letter, end in ends.items() for n in range(1, end + 1)}
    assert numbers() == wanted
    assert len(_ROW.findall(page())) == 82, "a number is used twice"


@pytest.mark.parametrize(("folders", "what"), [(UPHELD, "upheld"), (CHECKED, "checked")])
def test_every_invariant_is_named(folders: tuple[str, ...], what: str) -> None:
    missing = numbers() - {number for folder in folders for number in named(folder)}
    assert not missing, f"say in {' or '.join(folders)} where it is {what}: {', '.join(sorted(missing))}"


@pytest.mark.parametrize("folder", [*UPHELD, *CHECKED])
def test_no_other_invariant_is_named(folder: str) -> None:
    other = {number: path for number, path in named(folder).items() if number not in numbers()}
    assert not other, f"docs/invariants.md has none of these: {other}"


def test_the_page_names_code_that_exists() -> None:
    defined: dict[str, list[str]] = {}
    for folder in (*UPHELD, *CHECKED):
        for path, text in sources(folder).items():
            for name in {path.stem, path.parent.name, *_DEFINED.findall(text)}:
                defined.setdefault(name, []).append(text)
    keys = "".join(text for path, text in sources("service").items() if path.parent.name == "tables")
    gone, last_class = set(), ""
    for name in _CODE_NAME.findall(page()):
        if name.endswith(_ENDS_OF_FILES) or f'"{name}"' in keys:
            continue
        owner, *parts = name.split(".")
        owner = owner or last_class  # `.wait` is of the class that was named before
        last_class = owner if owner[0].isupper() else last_class
        if not any(all(re.search(rf"\b{part}\b", text) for part in parts) for text in defined.get(owner, ())):
            gone.add(name)
    assert not gone, f"docs/invariants.md names what is not there: {', '.join(sorted(gone))}"
