"""Syntax trees of the repository's files, each parsed and gone through once in a process."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file."""
    gc.disable()
    try:
        return ast.parse(path.read_text("utf-8"))
    finally:
        gc.freeze()  # millions of nodes, which would be most of what each collection goes through
        gc.enable()


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree, as `ast.walk` yields them."""
    return tuple(ast.walk(parsed(path)))


def statements_in(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements right below a node."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        yield from getattr(node, field, ())


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the module, its statements and those within them: a tenth of all nodes, with every definition."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += statements_in(node)
