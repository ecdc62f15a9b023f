"""Mapping rules give what Kafka's give; what Kafka would trip over at each connection is refused at start."""

from __future__ import annotations

import time

import pytest

from service.base.errors import ConfigError, FirnError
from service.security.mapping_rules import MappingRules, NoMatchingRule
from tests.support.subjects import golden


@pytest.mark.parametrize(("rules", "name", "mapped"), golden("rules.json"))
def test_a_name_is_mapped_as_kafka_maps_it(rules: str, name: str, mapped: str | None) -> None:
    try:
        found: str | None = MappingRules(rules).apply(name)
    except FirnError:
        found = None
    assert found == mapped


def test_a_name_that_no_rule_matches_is_an_error_without_the_name() -> None:
    with pytest.raises(NoMatchingRule, match="no rule of ssl") as error:
        MappingRules("RULE:^CN=(.*)$/$1/").apply("O=a\nb")
    assert "O=a" not in str(error.value)


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ("RULE:^CN=(?=a)(.*)$/$1/", "not served by RE2"),
        ("RULE:^CN=(.)\\1$/$1/", "not served by RE2"),
        ("RULE:(unclosed/$1/", "not served by RE2"),
        ("RULE:a{1000}{1000}/x/", "not served by RE2"),
        ("garbage", "'garbage' is no rule"),
        ("RULE:a/b/X", "'X' is left"),
        ("RULE:a/$1/", "names group 1 of 0"),
        ("RULE:(a)/$x/", "stands before no number"),
        ("RULE:(a)/${n}/", "names the group 'n' of none"),
        ("RULE:(a)/${n/", "names the group 'n' of none"),
        ("RULE:(a)/$/", "stands before no number"),
        ("RULE:(a)/$2$3/", "names group 3 of 1"),
    ],
)
def test_rules_that_cannot_work_are_refused_at_start(rules: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=r"^ssl") as error:
        MappingRules(rules)
    assert reason in str(error.value)


def test_a_name_made_to_take_long_does_not() -> None:
    rules = MappingRules("RULE:^CN=(a+)+$/$1/,RULE:^(.*a){20}x$/$1/,RULE:(.*)(.*)(.*)(.*)!/$1/")
    began = time.monotonic()
    with pytest.raises(NoMatchingRule):
        rules.apply("CN=" + "a" * 8000 + "b")
    assert time.monotonic() - began < 1
