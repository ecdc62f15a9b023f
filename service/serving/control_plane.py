"""The interface of a node's control plane: its cluster's metadata and controller, wherever that is.

A node that is alone, and that nobody can join, decides for itself, in memory (`standalone_control_plane`);
one of several, or one that can be joined, follows its quorum (`quorum_control_plane`). Owned by the event
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Protocol
from uuid import UUID

from service.controller_client.broker_lifecycle import FullDirectories
from service.controller_client.forwarding import Asker, Forwarder
from service.controller_client.prefix_owner import ClusterPrefixOwner
from service.metadata.controller.controller import Controller
from service.metadata.controller.remote_catalog import ControllerCatalog
from service.metadata.controller.requests import Endpoint
from service.metadata.publisher import Publisher
from service.network.server import Server
from service.remote.catalog import Catalog
from service.serving.ports import BrokerAdmin
from service.serving.served_api import Served


class ControlPlane(Protocol):
    """Used from the bottom up: `start`, `caught_up`, `join`; what each puts on the stack ends it."""

    @property
    def metadata(self) -> Publisher: ...
    @property
    def admin(self) -> BrokerAdmin: ...
    @property
    def catalog(self) -> Catalog: ...
    @property
    def decides(self) -> Controller | None:
        """The controller, where it is an object of this process that decides what clients ask for."""

    @property
    def prefix_owner(self) -> ClusterPrefixOwner | None:
        """The brokers that share the bucket's prefix; None: this node has it alone."""

    @property
    def incarnation_id(self) -> UUID:
        """The id of this process that its broker registers with."""

    @property
    def forwarder(self) -> Forwarder | None:
        """The way of clients' changes to the controller; None: they are decided here."""

    @property
    def new_queue(self) -> Callable[[], Asker] | None:
        """Makes queues to the controller, in which nothing waits behind what is asked in another one; None:
        there are no other brokers."""

    @property
    def apis(self) -> Mapping[int, Served]:
        """The APIs that brokers' listeners serve."""

    @property
    def adopter(self) -> ControllerCatalog | None:
        """The catalog that may take an archive over: that of a node that is its whole cluster."""

    @property
    def servers(self) -> Sequence[Server]:
        """The controller's listeners, where it has some."""

    @property
    def epoch(self) -> int:
        """The epoch of this process's registration as a broker; -1 before the first one."""

    async def start(self, stack: AsyncExitStack) -> None:
        """Open the metadata and take part in the quorum; raises as `Publisher.start`, and `ConfigError`."""

    async def caught_up(self, stack: AsyncExitStack, endpoints: tuple[Endpoint, ...]) -> None:
        """Return once the image says what this broker has: then its logs may be opened. `endpoints`: where it
        is reached."""

    async def join(self, stack: AsyncExitStack) -> None:
        """The logs are open, and the broker becomes what the image says: return once it is unfenced."""

    async def leave(self) -> None:
        """Clients are still served: have the leaderships move away first."""

    def directory_failed(self, directory_id: UUID) -> None:
        """A log directory is offline."""

    def room_changed(self, directories: FullDirectories) -> None:
        """Other log directories than before are without room."""

    @property
    def moves_leaders(self) -> bool:
        """Return whether the controller moves leaderships away from full directories."""
