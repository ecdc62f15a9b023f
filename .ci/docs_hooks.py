"""Hooks of MkDocs: pages that lie in a repository, as a site.

- Pages beside docs/ (README, CHANGELOG, …) that pages or the navigation lead to come under repository/.
- A link to a source file becomes its text: the site has no copy of the sources.
- Markdown is read as GitHub reads it: anchors, and lists and tables behind a line of text.
- Nothing of a page is loaded from another host.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parents[1]
BESIDE = "repository/"
"""The folder of the site with what does not lie in docs/."""
LINK = re.compile(
    r"`[^`\n]+`"  # code, with what looks like a link in it
    r"|(?P<label>\[[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*\])\((?P<target>[^()\s]+)\)"
)
FENCE = re.compile(r"^( *)(```+|~~~+)")
BLOCK = re.compile(r"([-*] |\d+\. |\|)")
ELSEWHERE = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^"'>\s]+"""
)
log = logging.getLogger("mkdocs.docs_hooks")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give headings the anchors that GitHub gives them, and put the pages of folders into the navigation."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    config.nav = expanded(config.nav or [], Path(config.docs_dir))
    return config


def expanded(nav: list[Any], docs: Path) -> list[Any]:
    """Return the navigation with the pages of each `folder/*` in its place."""
    found: list[Any] = []
    for item in nav:
        if isinstance(item, dict):
            for name, inner in item.items():
                found.append({name: expanded(inner, docs) if isinstance(inner, list) else inner})
        elif item.endswith("/*"):
            names = sorted(path.name for path in (docs / item[:-2]).glob("*.md"))
            found += [f"{item[:-1]}{name}" for name in sorted(names, key=lambda name: name != "README.md")]
        else:
            found.append(item)
    return found


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the Markdown files beside docs/ that a page or the navigation leads to, and their pictures."""
    named = {*leaves(config.nav or [])}
    waiting = [source_of(uri) for uri in (*named, *(file.src_uri for file in files.documentation_pages()))]
    seen = set()
    while waiting:
        source = waiting.pop()
        path = ROOT / source
        if source in seen or not path.is_file():
            continue
        seen.add(source)
        uri = source.removeprefix("docs/") if source.startswith("docs/") else BESIDE + source
        if files.get_file_from_path(uri) is None:
            inclusion = InclusionLevel.INCLUDED if uri in named else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, uri, abs_src_path=str(path), inclusion=inclusion))
        if source.endswith(".md"):
            found = (resolved(source, target)[0] for target in targets(path.read_text("utf-8")))
            waiting += [one for one in found if one.endswith((".md", ".png", ".svg"))]
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has their targets, and set lists and tables apart."""
    source = source_of(page.file.src_uri)
    folder = posixpath.dirname(page.file.src_uri)

    def led(link: re.Match[str]) -> str:
        if link["label"] is None or is_elsewhere(link["target"]):
            return link[0]
        target, anchor = resolved(source, link["target"])
        uri = target.removeprefix("docs/") if target.startswith("docs/") else BESIDE + target
        if files.get_file_from_path(uri) is not None:
            return f"{link['label']}({posixpath.relpath(uri, folder or '.')}{anchor})"
        if not target.startswith("docs/") and (ROOT / target).exists():
            return link["label"][1:-1]
        return link[0]  # MkDocs says that it leads nowhere

    parts = split_fences(set_apart(deepened(markdown)))
    return "".join(text if is_code else LINK.sub(led, text) for is_code, text in parts)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Refuse a page whose Markdown was not understood: a table or a fence as plain text."""
    if re.search(r"<p>(\||```)", html):
        log.warning("Doc file '%s' has a table or a block of code that is shown as text", page.file.src_uri)
    return html


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads something from another host."""
    if found := ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output


def leaves(nav: list[Any]) -> Iterator[str]:
    """Yield the pages of the navigation."""
    for item in nav:
        if isinstance(item, dict):
            for inner in item.values():
                yield from leaves(inner if isinstance(inner, list) else [inner])
        else:
            yield item


def source_of(uri: str) -> str:
    """Return the path in the repository of a file of the site."""
    return uri.removeprefix(BESIDE) if uri.startswith(BESIDE) else f"docs/{uri}"


def is_elsewhere(target: str) -> bool:
    """Tell whether a link leaves the repository."""
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None


def resolved(source: str, target: str) -> tuple[str, str]:
    """Return the path in the repository and the anchor of a link on a page."""
    path, mark, anchor = target.partition("#")
    return (
        posixpath.normpath(posixpath.join(posixpath.dirname(source), path)) if path else source
    ), mark + anchor


def targets(markdown: str) -> Iterator[str]:
    """Yield where the links of a page to files of the repository lead."""
    for is_code, text in split_fences(markdown):
        for link in () if is_code else LINK.finditer(text):
            if link["label"] is not None and not is_elsewhere(link["target"]):
                yield link["target"]


def split_fences(markdown: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a page: whether it is a fenced block, and its lines."""
    part: list[str] = []
    fence = ""
    for line in markdown.splitlines(keepends=True):
        found = FENCE.match(line)
        if not fence and found:
            yield False, "".join(part)
            part, fence = [line], found[2]
        elif fence and found and line.strip() == fence:
            yield True, "".join([*part, line])
            part, fence = [], ""
        else:
            part.append(line)
    yield bool(fence), "".join(part)


def deepened(markdown: str) -> str:
    """Return a page in which what belongs to an item of a list is four spaces deep, and not three."""
    parts = []
    for is_code, text in split_fences(markdown):
        belongs = text.startswith("   ") if is_code else None
        for line in text.splitlines(keepends=True):
            is_deep = line.startswith("   ") if belongs else re.match(" {3}[^ ]", line) is not None
            parts.append(f" {line}" if is_deep and belongs is not False else line)
    return "".join(parts)


def set_apart(markdown: str) -> str:
    """Return a page with an empty line between a paragraph and a list or table right behind it."""
    parts = []
    for is_code, text in split_fences(markdown):
        is_paragraph = False  # the lines right above are a paragraph, and no list or table
        for line in text.splitlines(keepends=True):
            begins = BLOCK.match(line) is not None
            if begins and is_paragraph and not is_code:
                parts.append("\n")
            is_paragraph = (
                bool(line.strip()) and not begins and (is_paragraph or not parts or not parts[-1].strip())
            )
            parts.append(line)
    return "".join(parts)
