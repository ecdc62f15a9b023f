"""Interface of a node's control plane: the cluster's metadata, and its controller in this process or another.

A node that is its whole cluster, and that no other node can join, has its controller in memory
(`standalone_control_plane`). Any other node follows its quorum (`quorum_control_plane`). Owned by the event
loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from service.controller_client.broker_lifecycle import FullDirectories
from service.controller_client.keeper_candidate import ClusterPrefixOwner
from service.metadata.controller.controller import Controller
from service.metadata.controller.remote_catalog import ControllerCatalog
from service.metadata.controller.requests import Endpoint
from service.metadata.publisher import Publisher
from service.network.request_meter import RequestQuotas
from service.network.server import Server
from service.remote.catalog import NodeCatalog
from service.serving.ports import BrokerAdmin
from service.serving.served_api import Served

if TYPE_CHECKING:
    from service.controller_client.forwarding import Asker, Forwarder


class ControlPlane(Protocol):
    """Control plane of a node. The node calls `start`, `caught_up` and `join`, in this order. Each pushes its
    clean-up onto the stack.
    """

    @property
    def metadata(self) -> Publisher: ...
    @property
    def admin(self) -> BrokerAdmin: ...
    @property
    def catalog(self) -> NodeCatalog: ...
    @property
    def decides(self) -> Controller | None:
        """The controller, if it is an object of this process that decides clients' requests."""

    @property
    def prefix_owner(self) -> ClusterPrefixOwner | None:
        """The owners of the bucket's prefix, if several brokers share it; None: only this node uses it."""

    @property
    def incarnation_id(self) -> UUID:
        """The id with which the broker of this process registers."""

    @property
    def forwarder(self) -> Forwarder | None:
        """Forwards clients' changes to the controller; None: the controller is in this process."""

    @property
    def new_queue(self) -> Callable[[], Asker] | None:
        """Makes request queues to the controller that do not wait for each other; None: there are no other
        brokers.
        """

    @property
    def apis(self) -> Mapping[int, Served]:
        """The APIs that brokers' listeners serve."""

    @property
    def adopter(self) -> ControllerCatalog | None:
        """The catalog that may take an archive over: that of a node that is its whole cluster."""

    @property
    def servers(self) -> Sequence[Server]:
        """The controller's listeners, if it has any."""

    @property
    def quotas(self) -> Sequence[RequestQuotas]:
        """Quotas of the controller of this process, if there is one with listeners."""

    @property
    def epoch(self) -> int:
        """The epoch of this process's registration as a broker; -1 before the first one."""

    async def start(self, stack: AsyncExitStack) -> None:
        """Open the metadata and join the quorum. Raises what `Publisher.start` raises, and `ConfigError`."""

    async def caught_up(self, stack: AsyncExitStack, endpoints: tuple[Endpoint, ...]) -> None:
        """Wait until the image has this broker's partitions, so that its logs may be opened. `endpoints`: the
        broker's addresses.
        """

    async def join(self, stack: AsyncExitStack) -> None:
        """Apply the image, now that the logs are open, and wait until the broker is unfenced."""

    async def leave(self) -> None:
        """Move the leaderships to other brokers, while clients are still served (controlled shutdown)."""

    def directory_failed(self, directory_id: UUID) -> None:
        """Note that a log directory is offline."""

    def room_changed(self, directories: FullDirectories) -> None:
        """Note that the set of full log directories has changed."""

    @property
    def moves_leaders(self) -> bool:
        """Return whether the controller moves leaderships away from full directories."""
