"""Java and this repository agree on names of subjects and on mapping rules, golden and random ones."""

from __future__ import annotations

import random

import pytest

from service.base.errors import FirnError
from service.security.distinguished_names import distinguished_name
from service.security.mapping_rules import MappingRules
from tests.support.requirements import need_javac
from tests.support.subjects import RULES, ask_java, drawn_subject, golden, name_line, rule_line

pytestmark = pytest.mark.java


@pytest.fixture(autouse=True)
def _java() -> None:
    need_javac()


def test_goldens_are_what_java_says() -> None:
    names = golden("names.json")
    assert ask_java(name_line(bytes.fromhex(str(der))) for der, _ in names) == [name for _, name in names]
    rules = golden("rules.json")
    assert ask_java(rule_line(str(rule), str(name)) for rule, name, _ in rules) == [
        found for *_, found in rules
    ]


def test_random_subjects_have_the_same_name_in_both() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    subjects = [drawn_subject(chance) for _ in range(5000)]
    for der, name in zip(subjects, ask_java(map(name_line, subjects)), strict=True):
        assert distinguished_name(der) == name, f"seed {seed}: {der.hex()}"


def test_random_names_are_mapped_alike_by_both() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    cases = [(chance.choice(RULES), distinguished_name(drawn_subject(chance))) for _ in range(3000)]
    for (rules, name), mapped in zip(cases, ask_java(rule_line(*case) for case in cases), strict=True):
        try:
            own: str | None = MappingRules(rules).apply(name)
        except FirnError:
            own = None
        assert own == mapped, f"seed {seed}: {rules!r} {name!r}"
