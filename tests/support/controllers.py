"""Controllers and brokers of one cluster inside the test process, over real sockets and directories."""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from service.base.disk import SystemDisk
from service.base.world import World, system_world
from service.cli.dev_nodes import agree_on_ports
from service.client.node_channel import Channels
from service.config import listeners
from service.config.settings import BrokerConfig
from service.controller_client.broker_lifecycle import Exit, Recover, Serve
from service.controller_client.broker_lifecycle import Timing as BrokerTiming
from service.controller_client.broker_lifecycle_manager import Membership
from service.controller_client.catalog_image import CatalogImage
from service.controller_client.controller_channel import Controllers
from service.controller_client.forwarding import Forwarder
from service.controller_client.lifecycle_messages import Feature, Identity
from service.controller_client.remote_log_catalog import Registration, RpcCatalog
from service.controller_server.controller_server import (
    ControllerNode,
    ControllerNodeOptions,
    QuorumLeaders,
)
from service.metadata.controller.broker_sessions import SessionTimes
from service.metadata.controller.controller import ControllerOptions
from service.metadata.controller.periodic import PeriodicTaskIntervals
from service.metadata.controller.requests import Endpoint
from service.metadata.delta import MetadataDelta
from service.metadata.features import cluster_features
from service.metadata.image import MetadataImage
from service.metadata.publication import Listener
from service.metadata.publisher import MetadataOptions, Publisher, QuorumOptions
from service.metadata.raft import roles
from service.metadata.raft.control import VoterRecords
from service.metadata.raft.keys import ReplicaKey, SnapshotId
from service.metadata.raft.snapshots import write_snapshot
from service.metadata.raft.voters import VoterNode, VoterSet
from service.metadata.snapshot_codec import encode_snapshot
from service.network.request import RequestContext
from service.security.session import Session, anonymous
from service.security.tokens import token_rules
from service.wire.api import (
    ApiKey,
    decode_request,
    decode_response,
    encode_request,
    parse_request_header,
    request_module,
)
from tests.support.waiting import until

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
HOST = "127.0.0.1"
TIMING = roles.RaftTiming(
    election_timeout_ms=300, fetch_timeout_ms=800, election_backoff_max_ms=200, request_timeout_ms=800
)


def _world(seed: int) -> World:
    return replace(system_world(), random=random.Random(seed))


class Fleet:
    """Controllers 1 to `count` on ports of their own, each on a folder below `folder`."""

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        *,
        is_dynamic: bool = False,
        settings: Mapping[str, str] | None = None,
        **metadata: Any,
    ) -> None:
        """`is_dynamic`: kraft.version 1, with node 1 as the voter that the quorum begins with. `settings`:
        keys of all nodes."""
        self.folder = folder
        self.count = count
        _, ports = agree_on_ports(0, 0, count)
        self.endpoints = {
            node_id: Endpoint("CONTROLLER", HOST, port) for node_id, port in enumerate(ports, start=1)
        }
        self.voters = VoterSet(VoterNode(ReplicaKey(one), (place,)) for one, place in self.endpoints.items())
        self.bootstrap: tuple[Endpoint, ...] = ()
        if is_dynamic:
            self.bootstrap, self.voters = (self.endpoints[1],), VoterSet()
            self._format(VoterNode(ReplicaKey(1, UUID(int=1001)), self.bootstrap))
        self.running: dict[int, ControllerNode] = {}
        self.failures: list[tuple[str, BaseException]] = []
        self.metadata = metadata
        self.settings = dict(settings or {})
        self.timing = TIMING
        self.sessions = SessionTimes(session_timeout_ms=3_000, heartbeat_interval_ms=300)
        self._starts = 0

    def _format(self, first: VoterNode) -> None:
        directory = self.folder / str(first.node_id) / "__cluster_metadata-0"
        directory.mkdir(parents=True)
        said = VoterRecords(VoterSet([first]), 1)
        batches = encode_snapshot((), epoch=0, last_timestamp_ms=0, now_ms=0, voters=said)
        write_snapshot(SystemDisk(), directory, SnapshotId(0, 0), batches)

    def _fatal(self, what: str, error: BaseException) -> None:
        logging.getLogger(__name__).error("%s", what, exc_info=error)
        self.failures.append((what, error))

    def metadata_of(self, node_id: int, *, can_vote: bool = True) -> MetadataOptions:
        place = (self.endpoints[node_id],) if can_vote else ()
        key = ReplicaKey(node_id, UUID(int=1000 + node_id))
        identity = roles.ReplicaIdentity(key, CLUSTER_ID, place, self.bootstrap, can_vote=can_vote)
        return MetadataOptions(
            node_id,
            self.folder / str(node_id),
            key.directory_id,
            quorum=QuorumOptions(identity, self.voters, self.timing),
            **self.metadata,
        )

    async def start(self, *node_ids: int) -> Fleet:
        for node_id in node_ids or self.endpoints:
            self._starts += 1
            place = self.endpoints[node_id]
            config = BrokerConfig.from_properties(
                {"node.id": str(node_id), "log.dirs": str(self.folder / str(node_id)), **self.settings}
            )
            node = ControllerNode(
                ControllerNodeOptions(
                    self.metadata_of(node_id),
                    ControllerOptions(
                        node_id,
                        CLUSTER_ID,
                        listeners=(place,),
                        supported=cluster_features(),
                        voters=self.voters.ids,
                        sessions=self.sessions,
                        periodic_tasks=PeriodicTaskIntervals(
                            token_expiry_check_ms=config.tokens.expiry_check_interval_ms
                        ),
                        tokens=token_rules(config.tokens),
                    ),
                    (listeners.Listener(place.name, place.host, place.port),),
                    heartbeat_interval_ms=self.sessions.heartbeat_interval_ms,
                ),
                lambda config=config: config,  # type: ignore[misc]
                _world(node_id + 100 * self._starts),
                on_fatal=self._fatal,
            )
            self.running[node_id] = node
            node.publisher.subscribe(self._check_committed(node.publisher))
            await node.start()
        return self

    def _check_committed(self, publisher: Publisher) -> Listener:
        """Nothing is published before it is committed."""

        def published(before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> None:
            mark = publisher._publication._high_watermark if publisher._publication is not None else 0
            if after.offset >= mark:
                what = f"offset {after.offset} is published, {mark} is the high watermark"
                self._fatal(what, AssertionError(what))

        return published

    async def kill(self, node_id: int) -> None:
        """Stop as by kill -9: without a shutdown; requests in flight are lost."""
        node = self.running.pop(node_id)
        node.publisher.quorum._end()
        await node.servers[0].close(0)
        await node.stop()

    async def stop(self, *node_ids: int) -> None:
        for node_id in node_ids or tuple(self.running):
            await self.running.pop(node_id).stop()

    def active(self) -> ControllerNode | None:
        found = [one for one in self.running.values() if one.controller.is_active]
        return found[0] if len(found) == 1 else None

    async def led(self, seconds: float = 20.0) -> ControllerNode:
        """Once one of them decides: that."""
        await until(lambda: self.active() is not None, seconds)
        active = self.active()
        assert active is not None
        return active

    def id_of(self, node: ControllerNode) -> int:
        return next(node_id for node_id, one in self.running.items() if one is node)

    def log_of(self, node_id: int) -> bytes:
        directory = self.folder / str(node_id) / "__cluster_metadata-0"
        return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))

    def assert_same_logs(self) -> int:
        """Check that each stopped node's log is a prefix of the longest; return the shortest length."""
        logs = sorted((self.log_of(node_id) for node_id in self.endpoints), key=len)
        for one in logs:
            assert logs[-1].startswith(one)
        return len(logs[0])


class Broker:
    """A broker's side of a controllers' network: it follows the metadata, registers, and forwards."""

    def __init__(self, fleet: Fleet, node_id: int, incarnation: int = 1) -> None:
        self.node_id = node_id
        self.told: list[Any] = []
        self.channels = [Channels(), Channels(), Channels()]
        self.publisher = Publisher(
            fleet.metadata_of(node_id, can_vote=False),
            _world(node_id),
            on_fatal=fleet._fatal,
            peers=self.channels[0],
        )
        leaders = QuorumLeaders(self.publisher)
        self.beating = Controllers(node_id, leaders, self.channels[1])
        self.controllers = Controllers(node_id, leaders, self.channels[2])
        self.server: asyncio.Server | None = None
        self._fleet = fleet
        self._incarnation = incarnation
        self.membership: Membership | None = None

    async def start(self) -> Broker:
        """Returns once it is unfenced."""
        self.server = await asyncio.start_server(lambda reader, writer: None, HOST, 0)
        port = self.server.sockets[0].getsockname()[1]
        identity = Identity(
            self.node_id,
            UUID(int=self._incarnation << 64 | self.node_id),
            CLUSTER_ID,
            (Endpoint("PLAINTEXT", HOST, port),),
            tuple(Feature(*one) for one in cluster_features()),
            log_dirs=(UUID(int=self.node_id << 70 | 5),),
        )
        timing = BrokerTiming(heartbeat_interval_ms=self._fleet.sessions.heartbeat_interval_ms)
        membership = self.membership = Membership(identity, self.beating, self.told.append, timing)
        self.publisher.subscribe(lambda before, after, delta: membership.published(after.offset))
        await self.publisher.start()
        membership.start()
        await until(lambda: Recover() in self.told)
        membership.logs_ready()
        await until(lambda: Serve() in self.told)
        self.catalog = RpcCatalog(
            self.controllers,
            CatalogImage(self.publisher),
            lambda: Registration(self.node_id, membership.epoch),
        )
        self.forwarder = Forwarder(self.controllers, self.catalog.barrier)
        return self

    async def forward(
        self, api_key: ApiKey, version: int, message: Any, session: Session | None = None
    ) -> Any:
        """The answer to a client's request, by Envelope; without a session of somebody without a login."""
        frame = encode_request(api_key, version, 7, "client", message)[4:]
        header = parse_request_header(frame)
        session = session or anonymous("192.0.2.9", "PLAINTEXT")
        context = RequestContext(1, "192.0.2.9", 5, "PLAINTEXT", session)
        context.api_key, context.api_version = header.api_key, header.api_version
        answer = await self.forwarder.forward(context, header, frame, decode_request(header, frame))
        parts: list[Any] = list(answer.parts)
        data = b"".join(bytes(part) for part in parts)
        assert struct.unpack_from(">i", data)[0] == len(data) - 4
        return decode_response(api_key, version, data[4:])[1]

    async def leaves(self) -> Exit:
        """Shut down under control."""
        assert self.membership is not None
        self.membership.terminate()
        await until(lambda: any(isinstance(one, Exit) for one in self.told))
        found: Exit = next(one for one in self.told if isinstance(one, Exit))
        return found

    async def close(self) -> None:
        if self.membership is not None:
            await self.membership.close()
        await self.publisher.stop()
        for channels in self.channels:
            await channels.close()
        if self.server is not None:
            self.server.close()


def new_topics(*names: str, partitions: int = 1, timeout_ms: int = 10_000) -> Any:
    """CreateTopics."""
    module = request_module(ApiKey.CREATE_TOPICS)
    return module.CreateTopicsRequest(
        topics=tuple(
            module.CreatableTopic(
                name=name, num_partitions=partitions, replication_factor=1, assignments=(), configs=()
            )
            for name in names
        ),
        timeout=timeout_ms,
    )
