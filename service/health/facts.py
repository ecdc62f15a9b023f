"""Facts of a node and of a cluster, each with its age where it can be old. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from service.health.findings import Finding

MOST_INTERVALS: Final = 6
"""A complete cut is late after so many intervals."""
SESSION_MS: Final = 9000
"""`broker.session.timeout.ms` where it is not known."""


class ViewFacts(NamedTuple):
    """Age of a node's metadata: the time since a controller has confirmed them. `age_ms` None: nobody knows;
    `session_ms`: an age above it makes them stale."""

    node_id: int
    age_ms: int | None
    session_ms: int = SESSION_MS

    @property
    def is_stale(self) -> bool:
        return self.age_ms is not None and self.age_ms > self.session_ms


class BrokerFacts(NamedTuple):
    """A broker: whether the metadata call it fenced, and why it did not answer (None: it did, or it was not
    asked)."""

    node_id: int
    is_fenced: bool
    silence: str | None = None


class VoterFacts(NamedTuple):
    """A voter of the quorum. `silent_ms`: time since it fetched from the leader, None for never."""

    node_id: int
    silent_ms: int | None
    is_leader: bool


class PartitionFacts(NamedTuple):
    """Numbers of partitions with a problem."""

    offline: int = 0
    under_min_isr: int = 0
    under_replicated: int = 0


class DirectoryFacts(NamedTuple):
    """A log directory with a problem: it is offline, or `fullness` says how full it is. `refuses`: producers
    are throttled or refused."""

    node_id: int
    path: str
    is_offline: bool = False
    fullness: str = ""
    refuses: bool = False


class ListenerFacts(NamedTuple):
    """The HTTP listener of a node that does not answer, and why."""

    node_id: int
    address: str
    why: str


class UnansweredFacts(NamedTuple):
    """A question that nobody answered, and why."""

    what: str
    why: str


class StoreFacts(NamedTuple):
    """A problem of a node with its store: the client that has it, and the last error. `since_ms`: wall
    clock."""

    client: str
    why: str
    since_ms: int | None = None


class UploadFacts(NamedTuple):
    """The upload of a node's sealed segments: when the oldest that waits was sealed (wall clock), and why
    most of those that wait do, empty for no reason but their number."""

    oldest_ms: int
    why: str = ""


class HeldBackFacts(NamedTuple):
    """A reason why tiering does not go on, in words. `since_ms`: wall clock."""

    words: str
    since_ms: int | None = None


class CutFacts(NamedTuple):
    """Cuts of a cluster, as the node that takes them sees them: for how long the bucket has lacked something,
    the time between two cuts, and why the last came to nothing or is not complete, empty for no reason."""

    age_ms: int
    interval_ms: int
    why: str = ""

    @property
    def is_late(self) -> bool:
        return self.age_ms > MOST_INTERVALS * self.interval_ms


class OrderFacts(NamedTuple):
    """An order to erase keys, as the node that keeps the prefix sees it: its id, since when it is open or, if
    it is done, since when nothing of what it dropped should be left (wall clock), and what it waits for."""

    order_id: str
    since_ms: int
    is_open: bool
    why: str


class RecoveryFacts(NamedTuple):
    """Work that a recovery has left: topics whose settings are not known, and local logs that are
    not compared with their archives."""

    unknown_topics: tuple[str, ...] = ()
    unchecked_logs: int = 0


class RestoreFacts(NamedTuple):
    """Work that a restore has left: the number of the cluster's partitions whose tails are not loaded, and of
    those that this node could not load the number, one of them and the reason."""

    unloaded: int
    failed: int = 0
    first_failed: str = ""
    why: str = ""


class ErasureFacts(NamedTuple):
    """Orders of erasure that a node keeps open: the number of problems, one of them and its reason."""

    problems: int
    first: str
    why: str


class ClusterFacts(NamedTuple):
    """A cluster as somebody sees it: a client, by what brokers answered, or a node, by its metadata.

    None: not known. `view`: age of the metadata that the answers come from; `quorum_silence`: why the leader
    of the quorum could not be asked; `urls`: `firn.remote.url` by broker; `told`: findings of nodes about
    themselves; `listening`: number of HTTP listeners that answer; `silence`: why nobody answers.
    """

    view: ViewFacts | None = None
    brokers: tuple[BrokerFacts, ...] = ()
    voters: tuple[VoterFacts, ...] | None = None
    quorum_silence: str | None = None
    partitions: PartitionFacts | None = None
    directories: tuple[DirectoryFacts, ...] = ()
    listeners: tuple[ListenerFacts, ...] = ()
    unanswered: tuple[UnansweredFacts, ...] = ()
    urls: Mapping[int, str | None] = {}
    told: tuple[Finding, ...] = ()
    listening: int = 0
    silence: str | None = None

    @property
    def is_stale(self) -> bool:
        """Return whether no controller vouches for what the metadata say."""
        return self.quorum_silence is not None or (self.view is not None and self.view.is_stale)


class NodeFacts(NamedTuple):
    """A node as it sees itself.

    `stops`: the failure that ends it; `waits`: what is not open yet, in words; `offline_partitions`: those
    that cannot be opened, or have failed; `is_owner_unknown`: the owner of the prefix is not known yet;
    `asleep`: number of objects in an archive class, and the first; `under_min_isr`: number of partitions
    that it leads; `failed_shards`: number of partitions of coordinators that could not be loaded;
    `cluster`: the cluster by this node's metadata.
    """

    node_id: int
    is_serving: bool = True
    stops: str | None = None
    waits: tuple[str, ...] = ()
    view: ViewFacts | None = None
    offline_partitions: int = 0
    directories: tuple[DirectoryFacts, ...] = ()
    stores: tuple[StoreFacts, ...] = ()
    held_back: tuple[HeldBackFacts, ...] = ()
    uploads: UploadFacts | None = None
    cuts: CutFacts | None = None
    orders: tuple[OrderFacts, ...] = ()
    is_owner_unknown: bool = False
    asleep: tuple[int, str] | None = None
    under_min_isr: int = 0
    failed_shards: int = 0
    recovery: RecoveryFacts | None = None
    restore: RestoreFacts | None = None
    erasures: ErasureFacts | None = None
    certificates: tuple[str, ...] = ()
    key_sets: tuple[str, ...] = ()
    cluster: ClusterFacts | None = None
