"""Feature levels: what a new cluster is set to and what a node supports. [P]

A new metadata log begins with FeatureLevelRecords, as Kafka's bootstrap writes it: ``metadata.version``, and
``group.version``, which switches the groups of KIP-848 on. The other features of Kafka 4.3
(transaction.version, share.version, streams.version, eligible.leader.replicas.version) switch on behaviour
that is not served here, and a feature that is absent is at level 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from uuid import UUID

from service.metadata.controller.requests import Endpoint
from service.metadata.frames import Frame, newest
from service.metadata.image import METADATA_VERSION, FeatureRange
from service.metadata.records import (
    BeginTransactionRecord,
    ControllerEndpoint,
    ControllerFeature,
    EndTransactionRecord,
    FeatureLevelRecord,
    RegisterControllerRecord,
)

METADATA_VERSION_LEVEL: Final = 30
"""Kafka 4.3"""
GROUP_VERSION: Final = "group.version"
GROUP_VERSION_LEVEL: Final = 1
"""Both protocols of groups"""
_LOWEST_LEVEL: Final = 30
"""The records' layouts of older levels are not written."""


def supported_features() -> tuple[FeatureRange, ...]:
    """What every node of this software supports."""
    return (
        FeatureRange(GROUP_VERSION, 0, GROUP_VERSION_LEVEL),
        FeatureRange(METADATA_VERSION, _LOWEST_LEVEL, METADATA_VERSION_LEVEL),
    )


def bootstrap_frames() -> tuple[Frame, ...]:
    """First records of a new metadata log."""
    return tuple(
        map(
            newest,
            (
                BeginTransactionRecord(name="Bootstrap records"),
                FeatureLevelRecord(name=METADATA_VERSION, feature_level=METADATA_VERSION_LEVEL),
                FeatureLevelRecord(name=GROUP_VERSION, feature_level=GROUP_VERSION_LEVEL),
                EndTransactionRecord(),
            ),
        )
    )


def controller_frame(node_id: int, incarnation_id: UUID, endpoints: Iterable[Endpoint]) -> Frame:
    """How a controller process makes itself known."""
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
                for f in supported_features()
            ),
        )
    )
