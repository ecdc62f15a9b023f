"""Mutants of a module: its source with one small change each, in the order of the source. [P]

Changed are: comparisons (``<`` and ``<=``), ``and``/``or``, ``not``, arithmetic, ``min``/``max``, integers
(one more, one less, twice), floats (twice), ``True``/``False``, values that are returned (``None``), and
statements that go: calls without a result, assignments to attributes, guards, ``raise``, ``break``,
``continue``.

Left alone are: texts and whatever makes one (messages of errors, calls of ``_log``, f-strings, ``__repr__``),
annotations and unions of types, decorators, what stands under ``TYPE_CHECKING``, and checks of what cannot
be: ``assert``, and ``strict`` of `zip`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

Put = Callable[[ast.AST], None]

SWAPPED: dict[type[Any], type[Any]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OPPOSITE = {"min": "max", "max": "min"}
SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_comment"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TEXTS = {"__repr__", "__str__"}
PROBE = "__reached__"


@dataclass(frozen=True)
class Mutant:
    line: int
    nth: int
    """of the mutants on this line, from 1 on"""
    statement: int
    """line on which its statement begins"""
    in_function: bool
    """whether it changes what a function does, and not what an import makes"""
    what: str
    number: int
    """of all mutants of the module, from 0 on"""


@dataclass(frozen=True)
class _Site:
    node: ast.AST
    made: ast.AST
    put: Put
    statement: ast.stmt
    in_function: bool


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module's source, by line.

    >>> [f"{one.line}:{one.nth} {one.what}" for one in mutants("def f(a, b):\\n    return a < b")]
    ['2:1 return a < b → return None', '2:2 a < b → a <= b']
    """
    counted: Counter[int] = Counter()
    found = []
    for number, site in enumerate(_sites(ast.parse(source))):
        line = getattr(site.node, "lineno", site.statement.lineno)
        counted[line] += 1
        what = f"{_text(site.node)} → {_text(site.made)}"
        found.append(Mutant(line, counted[line], site.statement.lineno, site.in_function, what, number))
    return found


def mutated(source: str, mutant: Mutant) -> ast.Module:
    tree = ast.parse(source)
    site = list(_sites(tree))[mutant.number]
    site.put(site.made)
    return ast.fix_missing_locations(tree)


class _Probes(ast.NodeTransformer):
    def __init__(self, path: str) -> None:
        self._path = path
        self._depth = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        self._depth += isinstance(node, FUNCTIONS)
        super().generic_visit(node)
        for field, value in ast.iter_fields(node):
            if self._depth and isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(
                    node, field, [one for statement in value for one in (self._probe(statement), statement)]
                )
        self._depth -= isinstance(node, FUNCTIONS)
        return node

    def _probe(self, statement: ast.stmt) -> ast.stmt:
        where = ast.Tuple([ast.Constant(self._path), ast.Constant(statement.lineno)], ast.Load())
        call = ast.Call(ast.Name(PROBE, ast.Load()), [where], [])
        return ast.copy_location(ast.Expr(call), statement)


def probed(source: str, path: str) -> ast.Module:
    """The module, each statement of whose functions calls `PROBE` with `path` and its line first."""
    tree = ast.parse(source)
    _Probes(path).visit(tree)
    return ast.fix_missing_locations(tree)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else text[:87] + "..."


def _sites(tree: ast.Module) -> Iterator[_Site]:
    for put, child in _children(tree):
        yield from _walk(child, put, child, False)


def _children(node: ast.AST) -> Iterator[tuple[Put, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in SKIPPED_FIELDS:
            continue
        if isinstance(value, ast.AST):
            yield partial(setattr, node, field), value
        elif isinstance(value, list):
            for n, child in enumerate(value):
                if isinstance(child, ast.AST):
                    yield partial(value.__setitem__, n), child


def _walk(node: ast.AST, put: Put, statement: ast.AST, in_function: bool) -> Iterator[_Site]:
    if isinstance(node, ast.stmt):
        statement = node
    assert isinstance(statement, ast.stmt)
    if _is_skipped(node):
        return
    for made in _changes(node):
        yield _Site(node, ast.copy_location(made, node), put, statement, in_function)
    if isinstance(node, ast.Raise):
        return
    for put_child, child in _children(node):
        inside = in_function or (isinstance(node, FUNCTIONS) and isinstance(child, ast.stmt))
        yield from _walk(child, put_child, statement, inside)


def _is_skipped(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="_log"))):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="_log")))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.keyword(arg="strict"):
            return True
        case ast.BinOp(op=ast.BitOr(), right=ast.Name(id=name)):  # a union of types
            return name[0].isupper() and not name.isupper()
        case ast.FunctionDef(name=name):
            return name in TEXTS
    return False


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """What stands in the place of `node`, in one mutant each."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for n, op in enumerate(ops):
                others = [*ops[:n], _swapped(op), *ops[n + 1 :]]
                yield ast.Compare(left, others, comparators)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(_swapped(op), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPPED:
            yield ast.BinOp(left, _swapped(op), right)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in SWAPPED:
            yield ast.AugAssign(target, _swapped(op), value)
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args, keywords=keywords):
            yield ast.Call(ast.Name(OPPOSITE[name], ast.Load()), args, keywords)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
            if value > 2:
                yield ast.Constant(value * 2)
        case ast.Constant(value=float(value)) if value:
            yield ast.Constant(value * 2)
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call()) | ast.Expr(value=ast.Await()) | ast.Raise():
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute()]) | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.If(body=[*_, ast.Return() | ast.Raise() | ast.Continue() | ast.Break()], orelse=[]):
            yield ast.Pass()


def _swapped(op: ast.AST) -> Any:
    return SWAPPED[type(op)]()


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
