"""Cluster as orders to erase keys see it. [P]"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol
from uuid import UUID


class ErasureCluster(Protocol):
    """Topics and brokers by this node's own metadata. Used on the event loop only."""

    def replicas(self, topic_id: UUID, /) -> Sequence[Sequence[int]]:
        """Return the assigned replicas of each partition; empty where the topic does not exist."""

    def name_of(self, topic_id: UUID, /) -> str:
        """Return a topic's name; its id as text where it does not exist."""

    def why_no_cuts(self) -> str:
        """Return why no cut is taken now, and what to do; empty where cuts are taken."""

    def cuts_are_off(self) -> bool:
        """Return whether no cut is taken until an operator changes that."""

    def fenced_brokers(self) -> Collection[int]:
        """Return the brokers that are registered, and fenced."""
