"""Resolution of keys of one listener against a second reading, over random names and settings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.config.overrides import check_listeners, parse_node, split, value_for

LISTENERS = ("INTERNAL", "A", "A.B", "PLAIN", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
KEY = "connections.max.reauth.ms"
PREFIXES = [
    "",
    *(f"listener.name.{name.lower()}." for name in LISTENERS),
    *(f"listener.name.{name.lower()}.{one.lower()}." for name in LISTENERS for one in MECHANISMS),
]
settings_of_all = st.dictionaries(st.sampled_from(PREFIXES), st.integers(0, 99))


@given(settings_of_all, st.sampled_from(LISTENERS), st.sampled_from(("", *MECHANISMS)))
def test_the_longest_prefix_that_is_set_counts(chosen: dict[str, int], listener: str, mechanism: str) -> None:
    problems: list[str] = []
    values = parse_node({prefix + KEY: str(number) for prefix, number in chosen.items()}, problems)
    assert not problems
    assert check_listeners(values, LISTENERS) == []
    own = f"listener.name.{listener.lower()}."
    ways = ["", own, own + mechanism.lower() + "." if mechanism else own]
    longest = max((prefix for prefix in ways if prefix in chosen), key=len, default=None)
    assert value_for(values, KEY, listener, mechanism) == (0 if longest is None else chosen[longest])


@given(settings_of_all, st.sets(st.sampled_from(LISTENERS)))
def test_every_setting_of_a_listener_that_is_not_there_is_named(
    chosen: dict[str, int], there: set[str]
) -> None:
    names = [prefix + KEY for prefix in chosen if prefix]
    values = parse_node({prefix + KEY: "1" for prefix in chosen}, [])
    refused = {line.partition(": ")[0] for line in check_listeners(values, there)}
    known = [f"listener.name.{name.lower()}." for name in there]
    right = {name for name in names if any(_is_below(name, prefix) for prefix in known)}
    assert refused == set(names) - right


def _is_below(name: str, prefix: str) -> bool:
    """Whether `name` is a key of the listener itself or of one of its mechanisms."""
    rest = name.removeprefix(prefix)
    return rest != name and rest in {KEY, *(f"{one.lower()}.{KEY}" for one in MECHANISMS)}


@given(st.text(alphabet="abil.nepst-sx0", max_size=60))
def test_any_name_is_taken_apart_or_refused_in_one_line(tail: str) -> None:
    problems: list[str] = []
    name = f"listener.name.{tail}"
    values = parse_node({name: "1"}, problems)
    if name in values:
        assert tail.endswith(split(name).key.name)
        assert not problems
    else:
        assert len(problems) == 1
        assert "\n" not in problems[0]
