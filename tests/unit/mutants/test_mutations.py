"""Mutants of a source, and their code."""

from __future__ import annotations

import ast
from textwrap import dedent
from typing import Any

import pytest

from tests.mutants.__main__ import between, row
from tests.mutants.mutations import PROBE, mutants, mutated, probed
from tests.mutants.session import Fate, Place

SOURCE = '''
"""A text, with 3 numbers in 2 sentences."""
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    LIMIT = 7

MOST: Final = 8
Kinds = Barrel | Pile


class Pile:
    height: int = 0

    def __repr__(self) -> str:
        return f"pile of {self.height + 1}"

    def grow(self, by: int, most: int = MOST) -> bool:
        """Whether it has grown by 1 or more."""
        if by < 0:
            raise ValueError(f"{by + 1} is less than 1", 5)
        assert by != 3
        _log.info("grows by %d", by + 1)
        if not by or self.height >= most:
            return False
        self.height = min(self.height + by, most)
        self.told.append(by)
        return True
'''


def said(source: str) -> list[str]:
    return [one.what for one in mutants(dedent(source))]


def test_every_kind_of_change_is_made_and_no_text_is_touched() -> None:
    assert said(SOURCE) == [
        "8 → 9",
        "8 → 7",
        "8 → 16",
        "0 → 1",
        "0 → -1",
        "if by < 0: raise ValueError(f'{by + 1} is less than 1', 5) → pass",
        "by < 0 → by <= 0",
        "0 → 1",
        "0 → -1",
        "raise ValueError(f'{by + 1} is less than 1', 5) → pass",
        "if not by or self.height >= most: return False → pass",
        "not by or self.height >= most → not by and self.height >= most",
        "not by → by",
        "self.height >= most → self.height > most",
        "return False → return None",
        "False → True",
        "self.height = min(self.height + by, most) → pass",
        "min(self.height + by, most) → max(self.height + by, most)",
        "self.height + by → self.height - by",
        "self.told.append(by) → pass",
        "return True → return None",
        "True → False",
    ]


@pytest.mark.parametrize(
    ("expression", "changes"),
    [
        ("a <= b < c", ["a < b < c", "a <= b <= c"]),
        ("a is None", ["a is not None"]),
        ("a not in b", ["a in b"]),
        ("a * 2.5", ["a // 2.5", "5.0"]),
        ("a & b | c", ["a & b & c", "a | b"]),
        ("a << b", ["a >> b"]),
        ("a and b or c", ["(a and b) and c", "a or b"]),
        ("max(a, b)", ["min(a, b)"]),
        ("'a' + f'{1}'", ["'a' - f'{1}'"]),
    ],
)
def test_an_expression_is_changed_in_one_place_at_a_time(expression: str, changes: list[str]) -> None:
    assert [change.rpartition(" → ")[2] for change in said(f"x = {expression}")] == changes


def test_a_mutant_differs_in_what_it_says_and_the_same_one_comes_again() -> None:
    source = dedent(SOURCE)
    plain = ast.unparse(ast.parse(source)).splitlines()
    assert mutants(source)
    for one in mutants(source):
        changed = ast.unparse(mutated(source, one)).splitlines()
        assert changed != plain, one
        assert one == mutants(source)[one.number]


def test_a_mutant_knows_its_line_and_where_its_statement_begins() -> None:
    source = "A = 1\n\n\ndef f(\n    a,\n    b=2,\n):\n    if (a <\n            b):\n        return\n"
    source += "    g(a,\n      b > 1)\n"
    found = {one.what: (one.line, one.nth, one.statement, one.in_function) for one in mutants(source)}
    assert found["1 → 2"] == (12, 2, 11, True)
    assert found["2 → 3"] == (6, 1, 4, False), "defaults are made by the import"
    assert found["a < b → a <= b"] == (8, 2, 8, True)
    assert found["g(a, b > 1) → pass"] == (11, 1, 11, True)


BRANCHES = '''
def f(a):
    """Text."""
    if a:
        b = 1
    elif a is None:
        try:
            int(a)
        except TypeError:
            b = 2
    else:
        b = 3
    return b
'''


@pytest.mark.parametrize(
    ("argument", "value", "lines"),
    [(5, 1, [3, 4, 5, 13]), (0, 3, [3, 4, 6, 12, 13]), (None, 2, [3, 4, 6, 7, 8, 10, 13])],
)
def test_probes_tell_which_statements_are_reached(argument: object, value: int, lines: list[int]) -> None:
    reached: list[tuple[str, int]] = []
    names: dict[str, Any] = {PROBE: reached.append}
    exec(compile(probed(BRANCHES, "x.py"), "x.py", "exec"), names)
    assert not reached
    assert names["f"](argument) == value
    assert reached == [("x.py", line) for line in lines]


def test_a_sample_says_how_sure_it_is() -> None:
    places = [Place("a.py", one) for one in mutants("A = 1\nB = 2\n")]
    fates = [Fate(one, one.mutant.line == 1, "") for one in places]
    assert row("a.py", fates, 4).split() == ["a.py", "4", "of", "4", "killed", "2", "50.0%"]
    assert row("a.py", fates, 9).endswith("50.0%   (of all: 15% to 85%)")
    assert [round(share, 2) for share in between(150, 150)] == [0.98, 1.0]
