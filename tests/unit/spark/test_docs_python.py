"""Python of the documents: it compiles, imports what exists and names options that exist.

What it does is in ``tests/spark``: the examples of spark-examples.md and spark-clusters.md.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.spark.options import known_names
from tests.support.doc_blocks import NOT_CHECKED, Block, blocks, pages
from tests.support.processes import REPOSITORY

BLOCKS = [
    block
    for page in pages()
    for block in blocks(page)
    if block.language == "python" and block.mark != NOT_CHECKED
]
SPARKS_OWN = {"checkpointLocation", "mode", "path", "emit.default.values", "avroSchema"}


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of each import, the name "" for a module as a whole."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def source_of(module: str) -> str | None:
    """Return the text of a module, which is not imported: "" if there is none, None without its package."""
    first, *rest = module.split(".")
    found = importlib.util.find_spec(first)
    if found is None:
        return None
    places = [Path(one) for one in found.submodule_search_locations or ()]
    if not places:
        return Path(found.origin or "").read_text("utf-8") if found.has_location else "import " + first
    for place in places:
        path = place.joinpath(*rest)
        for one in (path / "__init__.py", path.with_suffix(".py")):
            if one.is_file():
                modules = " ".join(child.stem for child in path.glob("*")) if path.is_dir() else ""
                return one.read_text("utf-8") + modules
    return ""


def wrong_imports(tree: ast.Module) -> Iterator[str]:
    for module, name in imported(tree):
        text = source_of(module)
        if text == "" or (text is not None and name and not re.search(rf"\b{name}\b", text)):
            yield f"from {module} import {name}"


def options(tree: ast.Module) -> Iterator[str]:
    """Names of the options of readers and writers of `firn`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "option" and isinstance(node.args[0], ast.Constant):
            yield str(node.args[0].value)
        elif node.func.attr == "options":
            yield from (one.arg for one in node.keywords if one.arg)


def is_option(name: str) -> bool:
    return name in SPARKS_OWN or name.lower() in READ or name.startswith("kafka.") or name == "topic"


READ = {name.lower() for name in known_names()}


@pytest.mark.parametrize("block", BLOCKS, ids=[block.place for block in BLOCKS])
def test_python_of_a_page_compiles_and_names_what_exists(block: Block) -> None:
    tree = ast.parse(block.text, block.place)
    assert [*wrong_imports(tree)] == []
    assert [name for name in options(tree) if not is_option(name)] == []


def test_a_name_that_does_not_exist_is_found() -> None:
    tree = ast.parse("from pyspark_firn import sessions\nimport nothing.at.all\nx.option('subscribes', 1)")
    assert [*wrong_imports(tree)] == ["from pyspark_firn import sessions"]
    assert not is_option(next(options(tree)))
    assert len(BLOCKS) > 10
    assert (REPOSITORY / BLOCKS[0].page).exists()
