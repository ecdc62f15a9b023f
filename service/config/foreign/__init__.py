"""Keys that people bring and that have no effect here: Apache Kafka's, and its neighbours'. [P]

>>> foreign_key("num.network.threads").is_refused, foreign_key("ssl.provider").is_refused
(False, True)
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Final

from service.config.foreign.clients import CLIENTS
from service.config.foreign.foreign_key import ForeignKey
from service.config.foreign.former import FORMER
from service.config.foreign.kafka import IGNORED
from service.config.foreign.kafka_defaults import KAFKA_DEFAULTS
from service.config.foreign.kafka_refused import REFUSED
from service.config.foreign.vendors import VENDORS

FOREIGN: Final[Mapping[str, ForeignKey]] = MappingProxyType(
    {one.name: one for one in chain(IGNORED, REFUSED, FORMER, CLIENTS, VENDORS)}
)
"""Rows by name; those that end in a dot are families."""

_ANY_TLS: Final = ("ssl.protocol", "tls")
"""Kafka's default before 2.5: it chooses no version of TLS."""


def foreign_key(name: str) -> ForeignKey | None:
    """Return the row of a key by its name, else that of its family: the longest prefix counts."""
    if (exact := FOREIGN.get(name)) is not None and not name.endswith("."):
        return exact
    end = len(name)
    while (end := name.rfind(".", 0, end)) >= 0:
        if (family := FOREIGN.get(name[: end + 1])) is not None:
            return family
    return None


def refusal(name: str) -> str | None:
    """Return why a key that is known elsewhere has no effect here; None for an unknown one."""
    return None if (found := foreign_key(name)) is None else found.reason


def is_at_default(name: str, text: str) -> bool:
    """Return whether `text` is Apache Kafka's default of a key without effect, or nothing: nobody has chosen
    it."""
    value = text.strip().lower()
    default = KAFKA_DEFAULTS.get(name)
    return not value or (default is not None and value == default.lower()) or (name, value) == _ANY_TLS
