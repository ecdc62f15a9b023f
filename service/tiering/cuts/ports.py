"""Interface that the keeper of cuts requires of the node, and its settings. [P]"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple, Protocol

from service.tiering.cuts.round import Led
from service.tiering.erasing.cluster_view import ErasureCluster
from service.wire.cuts import TakeCutRequest, TakeCutResponse


class CutSettings(NamedTuple):
    """Settings as of now; comments name the key."""

    interval_ms: int = 10_000  # firn.cut.interval.ms; -1: no cuts
    hold_ms: int = 20  # firn.cut.hold.max.ms
    longest_hold_ms: int = 640  # firn.cut.hold.longest.ms


class MetadataTail(NamedTuple):
    """Committed records of the metadata log: whole batches. `records` is their number, `epoch` that of
    the last one, `max_timestamp` that of the newest. `has_news`: one of them changes the metadata."""

    data: bytes
    records: int
    epoch: int
    max_timestamp: int
    has_news: bool


class MetadataGone(Exception):
    """The metadata log does not have these records any more: a newer checkpoint has to stand for them."""


class CutCluster(ErasureCluster, Protocol):
    """Cluster as the keeper of its prefix sees it, by its own metadata. Used on the event loop only."""

    def settings(self) -> CutSettings:
        """Return the settings as of now."""

    def is_enabled(self) -> bool:
        """Return whether all nodes of the cluster know cuts."""

    @property
    def is_loading(self) -> bool:
        """True while tails of a restore are loading: the cut that has them, and what it names, stays."""

    @property
    def needs_chains(self) -> bool:
        """True while cuts are loaded, or taken more than once in a grace, as this node's settings say: what
        they name of chains stays as long as they do. The keeper's word counts (`needed_chains`)."""

    @property
    def node_id(self) -> int: ...

    @property
    def broker_epoch(self) -> int: ...

    def brokers(self) -> Collection[int]:
        """Return the brokers that are not fenced."""

    def partitions(self) -> Iterable[Led]:
        """Return all partitions, by topic, each topic's from 0 on."""

    @property
    def life(self) -> int:
        """Life of the cluster to which its metadata belongs."""

    async def reach(self, metadata_end: int, /) -> None:
        """Wait until the metadata here ends at or beyond `metadata_end`. Raises `StorageError`."""

    async def metadata_tail(self, start: int, end: int, most_bytes: int, /) -> MetadataTail:
        """Return the records from `start` to `end`, exclusive, which are committed and begin and end batches.

        Raises `MetadataGone`, also where they have more than `most_bytes` bytes, and `StorageError`.
        """

    async def ask(self, broker_id: int, request: TakeCutRequest, timeout_ms: int, /) -> TakeCutResponse:
        """Send `request` to a broker, this one included. Raises `OSError`, `StorageError` or `RequestError`
        where it does not answer."""
