"""Lookup of the partitions that people name. Blocking."""

from __future__ import annotations

from collections.abc import Collection

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.admin import Cluster
from service.client.admin_models import Place
from service.client.offset_queries import partitions_of
from service.client.partition_changes import by_topic
from service.client.places import NamedPartitions, chosen_places


def resolved(cluster: Cluster, named: Collection[NamedPartitions]) -> list[Place]:
    """Return the partitions that are named, sorted. Raises `RequestError` if one is not there."""
    there = by_topic([place for place, _ in partitions_of(cluster, {one.topic for one in named})])
    places, missing = chosen_places(named, there)
    if missing:
        raise RequestError(ErrorCode.unknown_topic_or_partition, f"there is no {', no '.join(missing)}")
    return places
