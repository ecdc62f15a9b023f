"""Formats a node's directories, like Apache Kafka's ``kafka-storage format``; decides who formats itself.

Sources: Apache Kafka ``StorageTool``, ``Formatter``, ``KafkaRaftServer.initializeLogDirs``. Blocking.

A directory is formatted once it holds ``meta.properties``, which is written last: a crash before that leaves
an unformatted directory, which is formatted again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final
from uuid import UUID

from service.base.disk import Disk, MissingFile
from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.files import make_directory, remove_file
from service.base.printable import printable
from service.base.world import World
from service.config.cluster import ClusterConfig
from service.hot import names
from service.hot.log_dir import LogDir, MetaProperties, random_id, write_meta
from service.hot.meta_properties_ensemble import MetaPropertiesEnsemble, load_ensemble
from service.metadata.bootstrap import (
    KRAFT_VERSION,
    MAX_KRAFT_VERSION,
    InitialController,
    encode_first_voters,
    feature_frames,
    read_bootstrap,
    write_bootstrap,
)
from service.metadata.features import METADATA_VERSION_LEVEL, NOT_IN_NEW_LOGS
from service.metadata.frames import Frame, newest
from service.metadata.image import METADATA_VERSION, FeatureRange
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.snapshots import remove_unfinished, write_snapshot
from service.metadata.records import UserScramCredentialRecord

RELEASE: Final = "4.3"
RELEASE_NAME: Final = "4.3-IV0"
"""Apache Kafka's name of ``metadata.version`` 30."""
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
FIRST_SNAPSHOT: Final = SnapshotId(0, 0)


class SelfFormatting(Enum):
    """Conditions under which a node formats its empty directories by itself."""

    AT_ONCE = "the only voter: no other node depends on a vote that it could have lost"
    BY_THE_QUORUM = "a pure broker casts no votes; the quorum provides its cluster id"
    NEVER = "one of several controllers: with an empty disk it would have lost its votes"


@dataclass(frozen=True, slots=True)
class Order:
    """Directories to format, and their identity. `levels`: all feature levels, from `effective_levels`."""

    cluster_id: str
    node_id: int
    directories: tuple[Path, ...]
    metadata_directory: Path
    controller_listener: str
    levels: Mapping[str, int]
    initial_controllers: tuple[InitialController, ...] = ()
    """Empty: a static quorum, or a node that is no initial voter of a dynamic one."""
    ignore_formatted: bool = False
    credentials: tuple[UserScramCredentialRecord, ...] = ()
    """SCRAM credentials of users that a new log begins with"""
    restored: tuple[Frame, ...] = ()
    """First records of a restored cluster's log, feature levels among them; empty for a new cluster"""


def self_formatting(cluster: ClusterConfig) -> SelfFormatting:
    """Return whether a node of this configuration may start on empty directories without `firn format`."""
    if not cluster.is_controller:
        return SelfFormatting.BY_THE_QUORUM
    voters = [voter.node_id for voter in cluster.quorum.voters]
    if cluster.is_alone or voters == [cluster.node_id]:
        return SelfFormatting.AT_ONCE
    return SelfFormatting.NEVER


def check_formatted(cluster: ClusterConfig, found: MetaPropertiesEnsemble) -> None:
    """Check that the node may start on the directories in `found`.

    Where this returns, directories without ``meta.properties`` are to be formatted: with the cluster id of
    the others, or as `self_formatting` decides. Raises `ConfigError`, or the `StorageError` of the metadata
    log's directory.
    """
    found.verify(None, cluster.node_id)
    if (failure := found.failed.get(cluster.metadata_log_dir)) is not None:
        raise failure
    if cluster.metadata_log_dir not in found.empty or self_formatting(cluster) is not SelfFormatting.NEVER:
        return
    missing = f"No `meta.properties` found in {cluster.metadata_log_dir}: format it by"
    if cluster.names_no_other_controller:
        raise ConfigError(
            f"{missing} `firn format -s -c FILE -t ID` first, with the id that `firn random-uuid` prints, "
            "as this node is the only controller that its settings name; -N, not -s, if it is to join others"
        )
    raise ConfigError(f"{missing} `firn format` first, as this node is {SelfFormatting.NEVER.value}")


def check_metadata_place(disk: Disk, cluster: ClusterConfig) -> None:
    """Check that no directory but ``metadata.log.dir`` holds a metadata log.

    Raises `ConfigError` where one does: the configured directory was changed, and the node would start with
    an empty log.
    """
    for path in cluster.directories:
        if path != cluster.metadata_log_dir and _holds(disk, path, names.CLUSTER_METADATA_DIR):
            raise ConfigError(
                f"Found unexpected metadata location in data directory `{path / names.CLUSTER_METADATA_DIR}` "
                f"(the configured metadata directory is {cluster.metadata_log_dir})."
            )


def effective_levels(
    requested: Mapping[str, int], features: Iterable[FeatureRange], *, is_dynamic: bool
) -> dict[str, int]:
    """Return the feature levels of a new cluster: those `requested` for, else the newest supported.

    `is_dynamic`: the voters are not in the configuration. Raises `ConfigError` for an unknown feature, an
    unsupported level, and a ``kraft.version`` that contradicts the kind of quorum.
    """
    ranges = {one.name: one for one in features if one.name != KRAFT_VERSION}
    levels = {name: one.max_level for name, one in ranges.items() if name not in NOT_IN_NEW_LOGS}
    for name, level in requested.items():
        if name == KRAFT_VERSION:
            continue
        if name not in ranges:
            known = ", ".join(sorted((KRAFT_VERSION, *(one for one in ranges if one != METADATA_VERSION))))
            raise ConfigError(f"Unsupported feature: {name}. Supported features are: {known}")
        if not ranges[name].min_level <= level <= ranges[name].max_level:
            raise ConfigError(f"No feature:{name} with feature level {level}")
        levels[name] = level
    levels[KRAFT_VERSION] = _kraft_version(requested.get(KRAFT_VERSION), is_dynamic=is_dynamic)
    return levels


def _kraft_version(requested: int | None, *, is_dynamic: bool) -> int:
    if requested is None:
        return MAX_KRAFT_VERSION if is_dynamic else 0
    if not 0 <= requested <= MAX_KRAFT_VERSION:
        raise ConfigError(f"No feature:{KRAFT_VERSION} with feature level {requested}")
    flags = "one of the flags --standalone, --initial-controllers, or --no-initial-controllers is used"
    if is_dynamic and requested == 0:
        raise ConfigError(
            f"Cannot set kraft.version to 0 if controller.quorum.voters is empty and {flags}. For dynamic "
            "controllers support, try removing the --feature flag for kraft.version."
        )
    if requested and not is_dynamic:
        raise ConfigError(
            f"Cannot set kraft.version to {requested} unless controller.quorum.voters is empty and {flags}. "
            "For dynamic controllers support, try using one of --standalone, --initial-controllers, or "
            "--no-initial-controllers and removing controller.quorum.voters."
        )
    return requested


def release_level(release: str) -> int:
    """Return the ``metadata.version`` of a Kafka release; `ConfigError` where its records cannot be
    written."""
    if release in (RELEASE, RELEASE_NAME) or release.startswith(RELEASE + "."):
        return METADATA_VERSION_LEVEL
    raise ConfigError(
        f"--release-version {release}: only {RELEASE}, which is metadata.version {METADATA_VERSION_LEVEL}, "
        "can be written"
    )


def format_directories(world: World, order: Order, say: Callable[[str], None]) -> None:
    """Format the unformatted directories; reports each by `say`.

    Raises `ConfigError` where one is formatted and not ``ignore_formatted``, belongs to another cluster or
    node, or must not be formatted; `StorageError` where one cannot be written or is in use. Directories
    before it stay formatted, and a repetition with `ignore_formatted` continues; one for a restore does so
    without.
    """
    disk = world.disk
    found = load_ensemble(disk, order.directories)
    found.verify(order.cluster_id, order.node_id)
    goes_on = False
    if order.restored and order.metadata_directory not in found.empty:
        goes_on = bool(found.empty) and _begins_with(disk, order)
        if not goes_on:
            raise ConfigError(
                f"{order.metadata_directory} is formatted already, and a restored log begins empty: empty "
                "the directory if what is in it may be lost"
            )
    if found.formatted and not (order.ignore_formatted or goes_on):
        raise ConfigError(
            f"Log directory {next(iter(found.formatted))} is already formatted. Use --ignore-formatted to "
            "ignore this directory and format the others."
        )
    for path, error in found.failed.items():
        if path == order.metadata_directory:
            raise error
        say(f"I/O error trying to read log directory {path}. Ignoring... ({error})")
    if not found.empty:
        if not found.formatted:
            raise StorageError("No available log directories to format.")
        say("All of the log directories are already formatted.")
        return
    shown = ", ".join(f"{name}={level}" for name, level in sorted(order.levels.items()))
    if order.restored:
        say(f"Bootstrap metadata: {len(order.restored)} records of a restore")
    say(f"Bootstrap metadata: {shown}")
    for one in order.credentials:
        say(f"Bootstrap user: {printable(one.name)} with {_MECHANISMS[one.mechanism]}")
    for path in sorted(found.empty):
        _check_has_no_log(disk, path)
    taken = {meta.directory_id for meta in found.formatted.values()}
    taken.update(one.directory_id for one in order.initial_controllers)
    # Of a restore the metadata's directory is the first: a start without it would begin an empty cluster.
    first = order.metadata_directory if order.restored else None
    for path in sorted(found.empty, key=lambda one: (one != first, one)):
        taken.add(_format(world, order, path, taken, say))


def _begins_with(disk: Disk, order: Order) -> bool:
    """Return whether the metadata's directory was formatted for this very restore, and no log is in it yet:
    then formatting was cut off behind it."""
    try:
        _check_has_no_log(disk, order.metadata_directory)
        frames = read_bootstrap(disk, order.metadata_directory)
    except (ConfigError, CorruptionError):
        return False
    return frames is not None and frames[: len(order.restored)] == order.restored


def _format(
    world: World, order: Order, path: Path, taken: Collection[UUID], say: Callable[[str], None]
) -> UUID:
    """Format one directory; returns its id: the voter's, or a new one that is not in `taken`."""
    own = next((one for one in order.initial_controllers if one.node_id == order.node_id), None)
    is_metadata = path == order.metadata_directory
    kind = "data directory"
    if is_metadata:
        dynamic = "dynamic " if order.initial_controllers else ""
        kind = f"{dynamic}metadata {'voter ' if own is not None else ''}directory"
    directory_id = own.directory_id if own is not None and is_metadata else random_id(world, taken)
    home = LogDir(path, world)
    try:
        say(f"Formatting {kind} {path} with {METADATA_VERSION} {RELEASE_NAME}.")
        now_ms = world.clock.now_ms()
        is_restored = is_metadata and order.restored
        first = order.restored if is_restored else feature_frames(order.levels)
        frames = (*first, *map(newest, order.credentials))
        write_bootstrap(world.disk, path, frames, now_ms)
        if is_metadata:
            _write_first_voters(world.disk, path, order, now_ms)
        write_meta(world.disk, path, MetaProperties(order.cluster_id, order.node_id, directory_id))
    finally:
        home.close()
    return directory_id


def _write_first_voters(disk: Disk, path: Path, order: Order, now_ms: int) -> None:
    log = path / names.CLUSTER_METADATA_DIR
    if not order.initial_controllers:
        # left by an interrupted formatting of a dynamic quorum
        remove_file(disk, log / FIRST_SNAPSHOT.file_name)
        return
    make_directory(disk, log)
    remove_unfinished(disk, log)
    batches = encode_first_voters(order.initial_controllers, order.controller_listener, now_ms)
    write_snapshot(disk, log, FIRST_SNAPSHOT, batches)


def _check_has_no_log(disk: Disk, path: Path) -> None:
    """Check that a directory without ``meta.properties`` holds no data.

    Raises `ConfigError` where it does: a new identity would make it another replica's.
    """
    try:
        entries = disk.list(path)
    except MissingFile:
        return
    for entry in entries:
        if entry.name == names.CLUSTER_METADATA_DIR:
            inside = [one.name for one in disk.list(path / entry.name)]
            is_new = all(one.startswith(FIRST_SNAPSHOT.file_name) for one in inside)
        else:
            is_new = not (entry.is_dir and names.parse_partition_dir(entry.name))
        if not is_new:
            raise ConfigError(
                f"{path} holds {entry.name} but no meta.properties: restore that file, or empty the "
                "directory if its data may be lost"
            )


def _holds(disk: Disk, path: Path, name: str) -> bool:
    try:
        return any(entry.name == name for entry in disk.list(path))
    except MissingFile:
        return False
