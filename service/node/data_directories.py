"""Data directories of a node: their cluster and node, their ids, and those that have failed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

from service.base.errors import ConfigError
from service.base.world import World
from service.config.settings import BrokerConfig
from service.hot.log import LocalLog
from service.hot.log_dir import LogDir, cluster_id_of, encode_uuid, random_id
from service.hot.manager import LogManager
from service.hot.meta_properties_ensemble import check_directory_ids, load_ensemble
from service.metadata.formatting import (
    SelfFormatting,
    check_formatted,
    check_metadata_place,
    self_formatting,
)
from service.node.standalone_control_plane import Home


class DataDirectories:
    """Log directories of one node, and its metadata directory."""

    def __init__(self, config: BrokerConfig, world: World) -> None:
        self._config = config
        self._world = world
        self.ids: dict[Path, UUID] = {}
        """of the log directories, once `claim` was called"""
        self._failed: set[Path] = set()

    async def cluster_id(self, stopped: Callable[[], Awaitable[None]]) -> str:
        """Return the cluster id in the directories, or the one to format empty ones with: the configured one,
        a random one, or the quorum's, unless `stopped` returns before the quorum answers.

        Raises `ConfigError` if the directories belong to another cluster than the configured one.
        """
        config, cluster, disk = self._config, self._config.cluster, self._world.disk
        check_metadata_place(disk, cluster)
        if cluster.is_member:
            check_formatted(cluster, load_ensemble(disk, cluster.directories))
        known = cluster_id_of(disk, cluster.directories)
        if known is None:
            if self_formatting(cluster) is SelfFormatting.BY_THE_QUORUM:
                from service.node.quorum_control_plane import ask_cluster_id  # only members load it

                return await ask_cluster_id(cluster, self._world, stopped)
            return config.cluster_id or encode_uuid(random_id(self._world))
        if config.cluster_id not in (None, known):
            raise ConfigError(f"firn.cluster.id: the data directories belong to cluster {known}")
        return known

    def claim(self, stack: AsyncExitStack, cluster_id: str, logs: LogManager | None) -> Home:
        """Note cluster and node in every directory. `logs`: None on a node that is a controller alone."""
        config = self._config
        place, node_id, keeps = config.cluster.metadata_log_dir, config.node_id, config.cluster.is_member
        known = {} if logs is None else logs.claim(cluster_id, node_id, keeps_ends=keeps)
        self.ids = {path: meta.directory_id for path, meta in known.items()}
        metadata = known.get(place)
        if metadata is None:
            apart = LogDir(place, self._world)
            stack.callback(apart.close)
            taken = {meta.directory_id for meta in known.values()}
            metadata = apart.claim(cluster_id, node_id, taken)
            check_directory_ids({**known, place: metadata})
        return Home(
            cluster_id,
            metadata.directory_id,
            tuple(self.ids.values()),
            *(() if logs is None else (logs.previous_epoch(), logs.registered)),
        )

    def id_of(self, log: LocalLog) -> UUID | None:
        """Return the id of the log's directory."""
        return self.ids.get(log.dir.parent)

    def fail(self, path: Path) -> bool:
        """Note that a directory has failed; return whether the node cannot go on: it has lost its metadata,
        or all log directories."""
        self._failed.add(path)
        config = self._config
        return path == config.cluster.metadata_log_dir or self._failed.issuperset(config.log_dirs)
