"""Planted bugs of the cluster world fit what they replace: a plant that fails by a call of another signature
proves nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from simulator.apart import apart
from simulator.cluster import (
    access_plants,
    cut_plants,
    plants,
    rewrite_plants,
    tier_plants,
    transaction_plants,
)

MODULES = (access_plants, cut_plants, plants, rewrite_plants, tier_plants, transaction_plants)


def misfits(plant: Callable[[], None]) -> list[str]:
    """Plant a bug in this process; return the methods that take other arguments afterwards."""
    found: list[str] = []

    def swap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        before = getattr(owner, name)
        after = make(before)
        setattr(owner, name, after)
        if inspect.isroutine(before) and inspect.isroutine(after):
            where = f"{getattr(owner, '__name__', owner)}.{name}"
            found.extend(f"{where}: {why}" for why in [misfit(before, after)] if why)

    for module in MODULES:
        setattr(module, "_swap", swap)  # noqa: B010  # of all of them
    plant()
    return found


def misfit(before: Callable[..., Any], after: Callable[..., Any]) -> str:
    """Return why `after` cannot be called as `before` is; else ""."""
    try:
        called = inspect.signature(before).parameters.values()
    except ValueError:
        return ""  # compiled: it tells nothing
    places = [one.name for one in called if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    named = [one.name for one in called if one.kind is one.KEYWORD_ONLY]
    try:
        inspect.signature(after).bind(*places, **dict.fromkeys(named))
    except TypeError as e:
        return str(e)
    return ""


@pytest.mark.parametrize("name", plants.PLANTS)
def test_a_plant_takes_the_arguments_of_what_it_replaces(name: str) -> None:
    assert apart(lambda: misfits(plants.PLANTS[name])) == []
