"""Pages of the repository: links and anchors lead somewhere, and each page has its place in the site.

`make docs` builds the site with MkDocs, which says the same more slowly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(page for folder in ("infra", "localstack", "deploy") for page in (ROOT / folder).rglob("*.md")),
    ]
)
LINK = re.compile(r"`[^`\n]+`|\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\]\(([^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)
NAMED = re.compile(r"""<a (?:id|name)=["']([^"']+)["']""")
FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
FOREIGN = re.compile(r"[a-z][a-z0-9+.-]*:")


def slug(heading: str) -> str:
    """The anchor that GitHub, and the site, give a heading."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


@cache
def text_of(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCED.sub("", page.read_text("utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    text = text_of(page)
    found: list[str] = []
    for heading in HEADING.findall(text):
        name = slug(heading)
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return frozenset([*found, *NAMED.findall(text)])


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield each link to a file of the repository, the file and the anchor."""
    for target in LINK.findall(text_of(page)):
        if target and not FOREIGN.match(target):
            path, _, anchor = target.partition("#")
            yield target, (page.parent / path).resolve() if path else page, anchor


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    return [
        target
        for target, path, anchor in links(page)
        if not path.exists() or (anchor and (path.suffix != ".md" or anchor not in anchors(path)))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    assert not broken(page)


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`: three\n\n[a](page.md#one-two-three) [b](#one-two) [c](gone.md) [`d`](gone.md#x)\n"
        "`[e](code.md)` [f](https://example.org/#g)\n\n```\n[h](fenced.md)\n```\n"
    )
    assert broken(page) == ["#one-two", "gone.md", "gone.md#x"]


def test_pages_of_the_site_link_to_pages_and_not_to_folders() -> None:
    """A folder is a page on GitHub alone."""
    found = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in DOCS.rglob("*.md")
        for target, path, _ in links(page)
        if path.is_dir() and path.is_relative_to(DOCS)
    ]
    assert not found


# -- the navigation of the site


def leaves(nav: list[Any]) -> Iterator[str]:
    for item in nav:
        for inner in item.values() if isinstance(item, dict) else ():
            yield from leaves(inner if isinstance(inner, list) else [inner])
        if isinstance(item, str):
            yield item


@cache
def navigation() -> frozenset[str]:
    return frozenset(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]))


def test_each_page_has_its_place_in_the_navigation_of_the_site() -> None:
    """`nav` of mkdocs.yml; a folder with `/*` stands for its pages."""
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    missing = {page for page in pages if not {page, f"{page.rpartition('/')[0]}/*"} & navigation()}
    assert not missing, "name them under nav in mkdocs.yml"


def test_the_navigation_names_pages_that_are_there() -> None:
    paths = {
        name: ROOT / name.removeprefix("repository/")
        for name in navigation()
        if name.startswith("repository/")
    }
    paths |= {name: DOCS / name.removesuffix("/*") for name in navigation() - {*paths}}
    assert not {name for name, path in paths.items() if not path.exists()}


# -- what every page is read with


def test_pages_begin_with_one_title() -> None:
    found = {}
    for page in PAGES:
        titles = re.findall(r"^# .+$", text_of(page), re.MULTILINE)
        if len(titles) != 1 or not text_of(page).startswith("# "):
            found[f"{page.relative_to(ROOT)}"] = titles
    assert not found


def test_decisions_are_numbered_once_and_without_a_gap() -> None:
    numbers = [int(page.name[:4]) for page in sorted((DOCS / "adr").glob("[0-9]*.md"))]
    assert numbers == list(range(1, len(numbers) + 1))
