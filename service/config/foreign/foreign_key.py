"""Row of the tables of foreign keys: what a node does with a key that has no effect here. [P]"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class Owner(StrEnum):
    """Product that has the key."""

    KAFKA = "Apache Kafka 4.3"
    FORMER_KAFKA = "Apache Kafka before 4.0"
    CLIENTS = "Apache Kafka's clients"
    CONFLUENT = "Confluent"
    STRIMZI = "Strimzi"
    CRUISE_CONTROL = "Cruise Control"
    PLUGINS = "plug-ins of Apache Kafka"
    FIRN = "Firn"


class ForeignKey(NamedTuple):
    """A key without effect here, or a family of them: a `name` that ends in a dot is a prefix.

    Without `instead` a node takes it, with a warning that says `why` it has no effect. With `instead`, which
    says what to do, a node refuses it: it would be less safe, or keep data elsewhere, than its file says.
    """

    name: str
    why: str
    instead: str
    owner: Owner

    @property
    def is_refused(self) -> bool:
        return bool(self.instead)

    @property
    def reason(self) -> str:
        """Return why the key has no effect, and what to do about it where it is refused."""
        return f"{self.why}; {self.instead}" if self.instead else self.why


def ignored(owner: Owner, why: str, *names: str) -> Iterable[ForeignKey]:
    """Return rows of keys that are taken with a warning."""
    return [ForeignKey(name, why, "", owner) for name in names]


def refused(owner: Owner, why: str, instead: str, *names: str) -> Iterable[ForeignKey]:
    """Return rows of keys that are refused; `instead` says what to do."""
    return [ForeignKey(name, why, instead, owner) for name in names]
