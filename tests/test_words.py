"""Words: docstrings begin with what a thing does or is, and a public class name stands for one thing.

Docstrings are checked in service/, simulator/, bench/, infra/ and deploy/; class names in service/.

Where a room or a name is not there yet, its number is written out here: it may only get smaller.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from tests.support.source import parsed, statements
from tests.test_tidy import DEFINITIONS, FUNCTIONS, MODULES, ROOT, SERVICE, trees

OPENERS = re.compile(
    r"(It|They|He|She|We|You|This|That|These|Those|Its|Their|Nobody|Somebody|Whoever|Whatever|Whichever|What|Who"
    r"|Whom|Whose|Which|Whether|Where|When|How|Why|Of|In|On|At|By|For|From|To|With|Without|Into|Over|Under|Behind"
    r"|Before|After|Between|Until|Up|As)\b"
)
"""Pronouns, prepositions and question words: a docstring that begins so names no action and no thing."""
OPENERS_OF_TESTS = re.compile(
    r"test_(it|they|you|this|that|these|those|its|their|nobody|somebody|whoever|whatever|what|who|whom|whose|which"
    r"|whether|where|when|how|why|of)_"
)
"""Words that a test's name does not begin with: it says subject, verb, object."""
LEFT: dict[str, int] = {}
"""Docstrings that still begin with one of `OPENERS`, by room of service/ or by folder beside it."""
BESIDE = ("simulator", "bench", "infra", "deploy")
"""Folders beside service/ that are checked, too."""
SHARED: set[str] = set()
"""Class names that still stand for two things."""


def modules_of_service() -> Iterator[tuple[str, ast.Module]]:
    """Yield room and tree of each module of service/."""
    for name, tree in trees().items():
        yield MODULES[name].relative_to(SERVICE).parts[0], tree


def modules_beside() -> Iterator[tuple[str, ast.Module]]:
    """Yield folder and tree of each module beside service/."""
    for folder in BESIDE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield folder, parsed(path)


def test_docstrings_begin_with_what_a_thing_does_or_is() -> None:
    found: Counter[str] = Counter()
    for place, tree in (*modules_of_service(), *modules_beside()):
        for node in statements(tree):
            if isinstance(node, DEFINITIONS):
                found[place] += bool(OPENERS.match(ast.get_docstring(node) or ""))
    assert not {*BESIDE} - {*found}, "a folder was renamed"
    assert {room: count for room, count in found.items() if count} == LEFT, "fewer: write the number down"


def test_a_public_class_name_stands_for_one_thing() -> None:
    places = defaultdict(list)
    for name, tree in trees().items():
        for node in statements(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name for name, found in places.items() if len(found) > 1} == SHARED


def test_tests_are_named_for_a_thing_and_what_it_does() -> None:
    found, openers = [], []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        tree = parsed(path)
        if OPENERS.match(ast.get_docstring(tree) or ""):
            openers.append(f"{path.relative_to(ROOT)}")
        found += [
            f"{path.relative_to(ROOT)}:{node.name}"
            for node in statements(tree)
            if isinstance(node, FUNCTIONS) and OPENERS_OF_TESTS.match(node.name)
        ]
    assert not found
    assert not openers, "modules whose docstring begins with a pronoun, a preposition or a question word"
