"""Lines of the log about a node's start: what runs, as what, with which settings."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator
from typing import Final

from service.base.printable import printable
from service.base.release import INTERPRETED, Release
from service.config.describing import DescribedConfig, describe_broker
from service.config.keys import ConfigSource
from service.config.listeners import Listener
from service.config.settings import BrokerConfig
from service.network.server import Server

SLOW_KERNELS: Final = (
    "the kernels, the loops over records, are not compiled: this node works, and uses many times the CPU; "
    "install a wheel, or a C compiler before 'make install'"
)
_LINE_CHARACTERS: Final = 2000
_HIDDEN: Final = "[hidden]"


def starting(config: BrokerConfig, release: Release, pid: int) -> Iterator[str]:
    """Yield the lines for the start of a node: before it waits for anything."""
    yield f"{release}, Python {platform.python_version()}, process {pid}"
    cluster = config.cluster
    parts = [f"node {config.node_id}: {' and '.join(cluster.process_roles)}"]
    if cluster.listeners:
        parts.append(f"listeners {_addresses(cluster.listeners)}")
    if cluster.controller_listeners:
        parts.append(f"controller listeners {_addresses(cluster.controller_listeners)}")
    if not cluster.is_alone:
        servers = cluster.quorum.voters or cluster.quorum.bootstrap_servers
        parts.append(f"controllers {', '.join(map(str, servers))}")
    parts.append(f"data in {', '.join(map(str, cluster.directories))}")
    parts.append(f"archive in {printable(config.remote_url)}" if config.remote_url else "no archive")
    if config.broker_rack is not None:
        parts.append(f"rack {printable(config.broker_rack)}")
    yield "; ".join(parts)
    yield from _settings(config)


def has_slow_kernels(release: Release) -> bool:
    """Return whether the log should say `SLOW_KERNELS`."""
    return release.kernels == INTERPRETED


def _settings(config: BrokerConfig) -> Iterator[str]:
    """Yield the settings that were given and differ from the default, secrets hidden, a few a line."""
    head = "not default: "
    line = ""
    for entry in describe_broker(config):
        if entry.is_default or _has_default_value(entry):
            continue
        value = _HIDDEN if entry.is_sensitive else printable(entry.value)
        one = f"{printable(entry.name)}={value}"
        if line and len(line) + len(one) > _LINE_CHARACTERS:
            yield head + line
            line = ""
        line += f"{', ' if line else ''}{one}"
    if line:
        yield head + line


def _has_default_value(entry: DescribedConfig) -> bool:
    """Return whether a setting spells its default out. That of a secret is not known."""
    last = entry.synonyms[-1]
    return last.source is ConfigSource.DEFAULT_CONFIG and last.value == entry.value and not entry.is_sensitive


def _addresses(listeners: Iterable[Listener]) -> str:
    return ", ".join(
        str(one) if one.name == one.protocol.name else f"{one} ({one.protocol.name})" for one in listeners
    )


def bound(servers: Iterable[Server]) -> str:
    """Return the addresses that are listened on, with the ports that the system has chosen."""
    return ", ".join(f"{one.listener}://{one.host}:{one.port}" for one in servers)
