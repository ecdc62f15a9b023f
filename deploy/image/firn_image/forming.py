"""Formats the empty volume of a node that was told to, once in the life of a cluster.

A voter that forgot what it promised could elect a second leader, and a broker that forgot its records says
that it has none. An empty directory is a node's first, or what is left of a lost volume; which of both, only
something outside the volume knows. So a node says in the place that `FIRN_IMAGE_FORM` names, by a conditional
write, that it was formed, before its directory is made ready; where that is said already, it is refused.
A note on the volume tells its own word from another's, should the power go in between.
"""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from service.base.errors import ConfigError, FirnError
from service.base.world import World, system_world
from service.config.cluster import ClusterConfig
from service.config.given import gather
from service.config.settings import BrokerConfig
from service.hot.meta_properties_ensemble import load_ensemble

from .told import FORM, REPLACE, UNGUARDED, VOTERS, Told, has_voter, told_by, voters_of

NOTE: Final = ".forming"
SAID: Final = ".formed"
_MOST_SAID: Final = 1 << 16
_DOCS: Final = "docs/containers.md, 'A volume that is lost'"


class Marks(Protocol):
    """The place where formed nodes are noted: the store's two calls that are needed."""

    def put_if_absent(self, key: str, data: bytes) -> bool: ...
    def get(self, key: str, *, max_size: int) -> bytes: ...


def prepare_volume(
    path: str | None, overrides: Sequence[tuple[str, str]], environ: Mapping[str, str]
) -> None:
    """Format the node's directories if they are empty and it may. Raises `ConfigError` and `StorageError`."""
    world = system_world()
    told = told_by(environ)
    given = gather(path, overrides, environ)
    config = given.checked(BrokerConfig.from_properties).placed(Path.cwd(), socket.gethostname())
    cluster = config.cluster
    found = load_ensemble(world.disk, cluster.directories)
    home = cluster.metadata_log_dir
    if home not in found.empty:
        if home in found.formatted:
            forget(home)  # of a start that was interrupted after the directory was ready
        meta = found.formatted.get(home)
        if meta is not None and meta.node_id == config.node_id:  # else `firn` refuses the volume
            say_formed(told, config, meta.cluster_id, world)
        return
    if told.guard is None:
        raise ConfigError(
            f"{home} is empty: no meta.properties. Is the volume mounted that node {config.node_id} had? A "
            f"new node is formatted where FIRN_CLUSTER_ID and {FORM} say so ({_DOCS})"
        )
    if config.cluster_id is None:
        raise ConfigError(f"{FORM} is set, and FIRN_CLUSTER_ID is not: `firn random-uuid` prints a new one")
    words = words_of(cluster, told, config.cluster_id)
    if config.node_id not in told.replaced and told.guard != UNGUARDED:
        claim(marks(told.guard, config, world), home, config.cluster_id, config.node_id, words)
    run_format(given.properties, config.cluster_id, words, told)
    forget(home)
    if told.guard != UNGUARDED:
        note(home / SAID, told.guard)


def words_of(cluster: ClusterConfig, told: Told, cluster_id: str) -> list[str]:
    """Return the options of `firn format` that say whose directory this is to be.

    A first voter is one of the list; who takes a lost one's place, or comes later, is none, and gets an id
    that has never voted.
    """
    if not cluster.is_controller or cluster.quorum.voters or cluster.is_alone:
        return ["--ignore-formatted"] if cluster.node_id in told.replaced else []
    if cluster.node_id in told.replaced:
        return ["--no-initial-controllers", "--ignore-formatted"]
    if has_voter(told.voters, cluster.node_id):
        return ["--initial-controllers", voters_of(told.voters, cluster_id)]
    if not told.voters:
        raise ConfigError(f"node {cluster.node_id} is one of several controllers: {VOTERS} names the first")
    return ["--no-initial-controllers"]


def claim(place: Marks, home: Path, cluster_id: str, node_id: int, words: Sequence[str]) -> None:
    """Say that the node is formed, unless that was said before. Raises `ConfigError` where it was, with other
    first voters, too."""
    ours = [(str(node_id), json.dumps({"node": node_id, "note": noted(home)}))]
    if "--initial-controllers" in words:
        ours.insert(0, ("voters", words[-1]))
    for name, text in ours:
        key = f"{cluster_id}/{name}"
        try:
            was_said = not place.put_if_absent(key, text.encode())
            there = place.get(key, max_size=_MOST_SAID).decode("utf-8", "replace") if was_said else text
        except FirnError as error:
            raise ConfigError(
                f"{FORM}: {key}: {error}; an empty volume is not formatted without it"
            ) from error
        if there != text:
            raise ConfigError(
                f"{home} is empty, and {key} of {FORM} says {there[:300]!r}: the node was formed before. "
                f"Bring its volume back; if it is lost, {REPLACE}={node_id} ({_DOCS})"
            )


def say_formed(told: Told, config: BrokerConfig, cluster_id: str, world: World) -> None:
    """Note a node that was formatted otherwise. Once: a start does not ask the store each time, and a store
    that does not answer keeps no node with its data from starting."""
    home = config.cluster.metadata_log_dir
    if told.guard in (None, UNGUARDED) or is_noted(home / SAID, told.guard):
        return
    key = f"{cluster_id}/{config.node_id}"
    text = json.dumps({"node": config.node_id, "note": "found formatted"})
    try:
        marks(told.guard, config, world).put_if_absent(key, text.encode())
        note(home / SAID, told.guard)
    except (FirnError, OSError) as error:
        print(f"firn-image: {FORM}: {key}: {error}; asked again at the next start", file=sys.stderr)


def marks(url: str, config: BrokerConfig, world: World) -> Marks:
    """Open the place, with the region, the endpoint and the encryption that the node has for its archive."""
    from service.remote.stores.obstore_store import StoreOptions, open_store
    from service.remote.stores.s3_encryption import s3_encryption

    is_s3 = url.startswith("s3://")
    return open_store(
        url,
        world=world,
        endpoint=config.remote_s3_endpoint,
        region=config.remote_s3_region,
        encryption=s3_encryption(config.remote_s3_sse, config.remote_s3_sse_kms_key_id) if is_s3 else None,
        options=StoreOptions(request_timeout_s=10, retry_timeout_s=20),
    )


def run_format(properties: Mapping[str, str], cluster_id: str, words: Sequence[str], told: Told) -> None:
    """Run `firn format` in this process, with the settings that were gathered: they count before what the
    process itself has in its environment. Raises `ConfigError` and `StorageError`."""
    from service.cli.main import build_parser

    line = ["format", "-t", cluster_id, *words]
    line += [word for key, value in properties.items() for word in ("--set", f"{key}={value}")]
    line += [word for user in told.users for word in ("--add-scram", user)]
    args = build_parser("format").parse_args(line)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        args.run(args)
    for text in printed.getvalue().splitlines():
        print(f"firn-image: {text}", file=sys.stderr)


def noted(home: Path) -> str:
    """Return the word of this volume, the same until its directory is ready."""
    home.mkdir(parents=True, exist_ok=True)
    path = home / NOTE
    if not path.exists():
        note(path, secrets.token_hex(16))
    return path.read_text("ascii", "replace")


def note(path: Path, text: str) -> None:
    """Write a small file so that it is there, and whole, after a power cut."""
    from service.base.files import write_atomically

    write_atomically(system_world().disk, path, text.encode())


def is_noted(path: Path, text: str) -> bool:
    with contextlib.suppress(OSError):
        return path.read_text("utf-8", "replace") == text
    return False


def forget(home: Path) -> None:
    (home / NOTE).unlink(missing_ok=True)
