"""One Firn controller as a process: ``python -m tests.support.mixed_controller CONFIG.properties``.

It is what `firn server` is to be with ``process.roles=controller``: says ``ready:`` once it leads or follows,
resigns at SIGTERM, and ends with status 1 where its log or its quorum fails.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

from service.base.properties_file import load_properties
from service.base.world import system_world
from service.broker.controller_node import ControllerNode, ControllerNodeOptions
from service.config.cluster import ClusterConfig
from service.config.settings import BrokerConfig
from service.hot.ensemble import load_ensemble
from service.metadata.bootstrap import first_records
from service.metadata.controller.broker_sessions import SessionTimes
from service.metadata.controller.controller import ControllerOptions
from service.metadata.controller.periodic import ChoreTimes
from service.metadata.endpoint import Endpoint
from service.metadata.features import cluster_features
from service.metadata.publisher import MetadataOptions, QuorumOptions
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.roles import Identity, Role, Timing
from service.metadata.raft.voters import Voter, VoterSet

SNAPSHOTS = ("metadata.log.max.record.bytes.between.snapshots", "metadata.log.max.snapshot.interval.ms")


def metadata_options(
    cluster: ClusterConfig, settings: dict[str, str], *, is_voter: bool = True
) -> MetadataOptions:
    """This node's metadata, as its directories and its settings say. `is_voter`: or it may become one."""
    quorum, name = cluster.quorum, cluster.controller_listener_names[0]
    meta = load_ensemble(system_world().disk, cluster.directories).formatted[cluster.metadata_log_dir]
    static = VoterSet(
        Voter(ReplicaKey(one.node_id), (Endpoint(name, one.address.host, one.address.port),))
        for one in quorum.voters
    )
    assert meta.directory_id is not None
    identity = Identity(
        ReplicaKey(cluster.node_id, meta.directory_id),
        meta.cluster_id,
        tuple(Endpoint(*one) for one in cluster.advertised_controller_listeners) if is_voter else (),
        tuple(Endpoint(name, one.host, one.port) for one in quorum.bootstrap_servers),
        can_vote=is_voter,
    )
    timing = Timing(
        quorum.election_timeout_ms,
        quorum.fetch_timeout_ms,
        quorum.election_backoff_max_ms,
        quorum.request_timeout_ms,
        quorum.retry_backoff_ms,
        quorum.fetch_max_bytes,
        quorum.fetch_snapshot_max_bytes,
    )
    return MetadataOptions(
        cluster.node_id,
        cluster.metadata_log_dir,
        meta.directory_id,
        snapshot_max_bytes=int(settings.get(SNAPSHOTS[0], 20 << 20)),
        snapshot_interval_ms=int(settings.get(SNAPSHOTS[1], 3_600_000)),
        quorum=QuorumOptions(identity, static, timing),
    )


def _node(settings: dict[str, str], on_fatal: Any) -> ControllerNode:
    world = system_world()
    cluster = ClusterConfig.from_properties(settings)
    metadata = metadata_options(cluster, settings)
    assert metadata.quorum is not None
    identity = metadata.quorum.identity
    assert identity.cluster_id is not None
    supported = cluster_features()
    records = first_records(world.disk, cluster.metadata_log_dir, supported)
    assert records is not None
    listener = cluster.controller_listeners[0]
    options = ControllerNodeOptions(
        metadata,
        ControllerOptions(
            cluster.node_id,
            identity.cluster_id,
            listeners=identity.endpoints,
            bootstrap=records,
            supported=supported,
            voters=metadata.quorum.static_voters.ids,
            sessions=SessionTimes(
                cluster.broker_session_timeout_ms,
                cluster.broker_heartbeat_interval_ms,
                cluster.broker_refused_fence_ms,
            ),
            chores=ChoreTimes(cluster.metadata_max_idle_interval_ms),
        ),
        listener.host,
        listener.port,
        listener.name,
        cluster.inter_broker_listener_name or "PLAINTEXT",
        cluster.broker_heartbeat_interval_ms,
    )
    config = BrokerConfig.from_properties(
        {"node.id": str(cluster.node_id), "log.dirs": str(cluster.metadata_log_dir)}
    )
    return ControllerNode(options, lambda: config, world, on_fatal=on_fatal)


async def _run(settings: dict[str, str]) -> int:
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def fatal(what: str, error: BaseException) -> None:
        logging.getLogger("mixed").error("fatal: %s", what, exc_info=error)
        end(1)

    def end(code: int) -> None:
        if not ended.done():
            ended.set_result(code)

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end, 0)
    node = _node(settings, fatal)
    await node.start()
    while node.publisher.quorum.machine.role not in (Role.LEADER, Role.FOLLOWER) and not ended.done():
        await asyncio.sleep(0.01)
    print(f"ready: node {settings['node.id']}", flush=True)
    code = await ended
    await node.stop()
    return code


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return asyncio.run(_run(dict(load_properties(Path(sys.argv[1])))))


if __name__ == "__main__":
    sys.exit(main())
