"""Feature levels: those of a new cluster, and those that a node supports. [P]

A new metadata log begins with FeatureLevelRecords, as Kafka's bootstrap writes them: ``metadata.version``,
``group.version``, which enables the groups of KIP-848, and ``transaction.version``. The other features of
Kafka 4.3 (share.version, streams.version) enable behaviour that Firn does not serve; an absent feature is at
level 0. Nodes of a cluster also support ``eligible.leader.replicas.version`` and
``firn.catalog.version``, and say by ``firn.records.version`` which records they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

from service.metadata.controller.requests import Endpoint
from service.metadata.frames import Frame, newest
from service.metadata.image import KRAFT_VERSION, METADATA_VERSION, FeatureRange
from service.metadata.records import (
    ControllerEndpoint,
    ControllerFeature,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterControllerRecord,
)

METADATA_VERSION_LEVEL: Final = 30
"""Kafka 4.3."""
ELR_VERSION: Final = "eligible.leader.replicas.version"
"""At level 1 replicas that left a too small ISR may still be elected (KIP-966)."""
CATALOG_VERSION: Final = "firn.catalog.version"
"""At level 1 the log may hold the records of the remote catalog, which only Firn reads; at `CUTS_LEVEL` those
of a restore, too, and the keeper of the prefix asks brokers for cuts; at `REWRITES_LEVEL` also those of
rewrites and erasures."""
CUTS_LEVEL: Final = 2
"""Level of `CATALOG_VERSION` from which on every node knows cuts and restored tails."""
REWRITES_LEVEL: Final = 3
"""Level of `CATALOG_VERSION` from which on every node knows rewrites of chains and erasures."""
OWN_PREFIX: Final = "firn."
"""Begins the names of Firn's own features, which Kafka's nodes do not have."""
RECORDS_VERSION: Final = "firn.records.version"
"""Level of a node's software, not of the cluster: at 1 it reads records of ACLs, credentials, tokens and
quotas."""
GROUP_VERSION: Final = "group.version"
GROUP_VERSION_LEVEL: Final = 1
"""Enables both group protocols."""
TRANSACTION_VERSION: Final = "transaction.version"
TRANSACTION_VERSION_LEVEL: Final = 2
"""At level 1 the transaction log has tagged fields; at 2 brokers add partitions to transactions, and each
transaction has an epoch of its own (KIP-890)."""
NOT_IN_NEW_LOGS: Final = frozenset({KRAFT_VERSION, RECORDS_VERSION})
"""Features whose levels a new log does not set unless an operator asks for it."""
BOOTSTRAP: Final = "Bootstrap records"
_LOWEST_LEVEL: Final = 30
"""The record layouts of lower levels are not written."""


def supported_features() -> tuple[FeatureRange, ...]:
    """Return the features that every node of this software supports."""
    return (
        FeatureRange(GROUP_VERSION, 0, GROUP_VERSION_LEVEL),
        FeatureRange(METADATA_VERSION, _LOWEST_LEVEL, METADATA_VERSION_LEVEL),
        FeatureRange(TRANSACTION_VERSION, 0, TRANSACTION_VERSION_LEVEL),
    )


def cluster_features() -> tuple[FeatureRange, ...]:
    """Return the features that a node of a cluster supports, by name."""
    beyond = (
        FeatureRange(ELR_VERSION, 0, 1),
        FeatureRange(CATALOG_VERSION, 0, REWRITES_LEVEL),
        FeatureRange(RECORDS_VERSION, 0, 1),
        FeatureRange(KRAFT_VERSION, 0, 1),
    )
    return tuple(sorted((*supported_features(), *beyond)))


def has_cuts(features: Mapping[str, int]) -> bool:
    """Return whether every node of a cluster with these finalized levels knows cuts and restored tails."""
    return features.get(CATALOG_VERSION, 0) >= CUTS_LEVEL


def has_rewrites(features: Mapping[str, int]) -> bool:
    """Return whether every node of a cluster with these finalized levels knows rewrites and erasures."""
    return features.get(CATALOG_VERSION, 0) >= REWRITES_LEVEL


def why_without_rewrites(features: Mapping[str, int]) -> str | None:
    """Return why rewrites and erasures cannot begin at these finalized levels, and the remedy; None where
    they can."""
    if has_rewrites(features):
        return None
    return (
        f"The cluster's level of {CATALOG_VERSION} is {features.get(CATALOG_VERSION, 0)}; rewrites of the "
        f"archive and erasures need {REWRITES_LEVEL}: firn cluster features upgrade "
        f"{CATALOG_VERSION}={REWRITES_LEVEL}"
    )


def bootstrap_records() -> tuple[MetadataRecord, ...]:
    """Return the feature levels of a new cluster of one node."""
    return (
        FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_LEVEL),
        FeatureLevelRecord(name=GROUP_VERSION, feature_level=GROUP_VERSION_LEVEL),
        FeatureLevelRecord(name=TRANSACTION_VERSION, feature_level=TRANSACTION_VERSION_LEVEL),
    )


def cluster_bootstrap_records() -> tuple[MetadataRecord, ...]:
    """Return the feature levels of a new cluster that other nodes can join."""
    levels = {one.name: one.max_level for one in cluster_features() if one.name not in NOT_IN_NEW_LOGS}
    first = levels.pop(METADATA_VERSION)
    return (
        FeatureLevelRecord(name=METADATA_VERSION, feature_level=first),
        *(FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()),
    )


def controller_frame(
    node_id: int,
    incarnation_id: UUID,
    endpoints: Iterable[Endpoint],
    features: Iterable[FeatureRange] | None = None,
) -> Frame:
    """Return the registration of a controller process. `features`: its ranges; None for this software's."""
    return newest(
        RegisterControllerRecord(
            controller_id=node_id,
            incarnation_id=incarnation_id,
            zk_migration_ready=False,
            end_points=tuple(ControllerEndpoint(**endpoint._asdict()) for endpoint in endpoints),
            features=tuple(
                ControllerFeature(
                    name=f.name, min_supported_version=f.min_level, max_supported_version=f.max_level
                )
                for f in (supported_features() if features is None else features)
            ),
        )
    )
