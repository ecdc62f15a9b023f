"""Keys of other products that have no effect here, with the reason of their refusal. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from service.config.tables.unserved import UNSERVED
from service.config.tables.unserved_security import UNSERVED_SECURITY

_ONE_LOOP: Final = "groups are coordinated on the node's event loop"

REASONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "broker.id": "use node.id",
        "zookeeper.": "there is no ZooKeeper; metadata is a Raft log",
        "num.network.threads": "a node is one event loop; run more nodes to use more cores",
        "num.io.threads": "a node is one event loop; run more nodes to use more cores",
        "remote.log.storage.system.enable": "set firn.remote.url to enable tiered storage",
        "remote.log.storage.manager.": "storage is built in; set firn.remote.url",
        "remote.log.metadata.": "the catalog of segments is in the metadata quorum",
        "group.coordinator.threads": _ONE_LOOP,
        "group.coordinator.background.threads": _ONE_LOOP,
        "group.coordinator.cached.buffer.max.bytes": "the coordinator does not cache batch buffers",
        "group.coordinator.rebalance.protocols": "both protocols are served; group.version turns one off",
        "group.streams.": "streams groups are not supported",
        "group.share.": "share groups are not supported",
        "transaction.two.phase.commit.enable": "two-phase commits are not supported",
        **UNSERVED_SECURITY,
        "aws.": "credentials come from the environment, never from a configuration key",
        "firn.remote.s3.access": "credentials come from the environment, never from a configuration key",
        "firn.remote.s3.secret": "credentials come from the environment, never from a configuration key",
        **UNSERVED,
    }
)
"""Reasons by name or prefix. Keys in the tables are never looked up here."""
