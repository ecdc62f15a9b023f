"""Changes of a cluster by an administrator: features, voters, registrations, throttles. Blocking.

Raises `RequestError`, `StorageError` and `OSError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import FirnError, RequestError
from service.client.admin import BROKER_RESOURCE, TIMEOUT, TOPIC_RESOURCE, ChangingCluster, raise_for
from service.client.blocking_client import BlockingClient
from service.client.reassignments import BROKER_THROTTLES, TOPIC_THROTTLES, PlannedThrottle
from service.client.setting_changes import SettingChange, SettingsOwner, alter_settings, deletes, sets
from service.wire.api import ApiKey, request_module
from service.wire.features import FeatureUpdateKey, UpdateFeaturesRequest

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3


class FeatureLevel(NamedTuple):
    """A feature: the levels that the asked node supports, and the cluster's; None: a level is unset."""

    name: str
    min_supported: int
    max_supported: int
    level: int | None


class VoterEndpoint(NamedTuple):
    """One listener of a controller."""

    name: str
    host: str
    port: int


# -- features


def describe_features(client: BlockingClient) -> list[FeatureLevel]:
    """Return the features that a node supports or the cluster has, by name."""
    module = request_module(ApiKey.API_VERSIONS)
    request = module.ApiVersionsRequest(client_software_name="firn", client_software_version="1")
    answer = client.request(ApiKey.API_VERSIONS, request)
    raise_for(answer.error_code, None, "the features")
    levels = {one.name: one.max_version_level for one in answer.finalized_features}
    ranges = {one.name: (one.min_version, one.max_version) for one in answer.supported_features}
    return [
        FeatureLevel(name, *ranges.get(name, (0, 0)), levels.get(name))
        for name in sorted(levels.keys() | ranges.keys())
    ]


def update_features(
    client: BlockingClient, levels: Mapping[str, int], kind: int, *, dry_run: bool = False
) -> None:
    """Raise or lower all of these features, or none. `kind` is one of `UPGRADE`, `SAFE_DOWNGRADE` and
    `UNSAFE_DOWNGRADE`."""
    updates = tuple(
        FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
        for name, level in levels.items()
    )
    request = UpdateFeaturesRequest(timeout=TIMEOUT, feature_updates=updates, validate_only=dry_run)
    answer = client.request(ApiKey.UPDATE_FEATURES, request)
    raise_for(answer.error_code, answer.error_message, "the features")
    for one in answer.results:
        raise_for(one.error_code, one.error_message, one.feature)


# -- voters and brokers


def add_voter(
    client: BlockingClient, cluster_id: str, voter: int, directory: UUID, endpoints: Sequence[VoterEndpoint]
) -> None:
    """Have a controller that follows the quorum vote; return once a majority has written that."""
    module = request_module(ApiKey.ADD_RAFT_VOTER)
    request = module.AddRaftVoterRequest(
        cluster_id=cluster_id,
        timeout=TIMEOUT,
        voter_id=voter,
        voter_directory_id=directory,
        listeners=tuple(module.Listener(name=one.name, host=one.host, port=one.port) for one in endpoints),
    )
    answer = client.request(ApiKey.ADD_RAFT_VOTER, request)
    raise_for(answer.error_code, answer.error_message, f"voter {voter}")


def remove_voter(client: BlockingClient, cluster_id: str, voter: int, directory: UUID) -> None:
    """Take a voter out of the quorum."""
    module = request_module(ApiKey.REMOVE_RAFT_VOTER)
    request = module.RemoveRaftVoterRequest(
        cluster_id=cluster_id, voter_id=voter, voter_directory_id=directory
    )
    answer = client.request(ApiKey.REMOVE_RAFT_VOTER, request)
    raise_for(answer.error_code, answer.error_message, f"voter {voter}")


def unregister_broker(cluster: ChangingCluster, broker: int) -> None:
    """Take a broker out of the metadata."""
    module = request_module(ApiKey.UNREGISTER_BROKER)
    request = module.UnregisterBrokerRequest(broker_id=broker)
    answer = cluster.first.request(ApiKey.UNREGISTER_BROKER, request)
    raise_for(answer.error_code, answer.error_message, f"broker {broker}")


# -- throttles of replication


def set_throttle(cluster: ChangingCluster, planned: PlannedThrottle, rate: int) -> list[str]:
    """Bound what moves to `rate` bytes a second for each broker; return the problems of those that did not
    take it. One that is fenced moves nothing, and is not asked."""
    for topic, values in planned.topics.items():
        alter_settings(cluster, _topic(topic), sets(values))
    rates = dict.fromkeys(BROKER_THROTTLES, str(rate))
    fenced = {one.node_id for one in cluster.describe().nodes if one.is_fenced}
    return _at_brokers(cluster, [one for one in planned.brokers if one not in fenced], list(sets(rates)))


def clear_throttle(cluster: ChangingCluster, topics: Iterable[str]) -> list[str]:
    """Take the throttle of these topics and of all brokers back; return the problems."""
    problems = []
    for topic in topics:
        try:
            alter_settings(cluster, _topic(topic), deletes(TOPIC_THROTTLES))
        except RequestError as e:
            if e.code != ErrorCode.unknown_topic_or_partition:  # a deleted topic has no throttle
                problems.append(str(e))
    brokers = [one.node_id for one in cluster.describe().nodes if not one.is_fenced]
    return problems + _at_brokers(cluster, brokers, list(deletes(BROKER_THROTTLES)))


def _topic(name: str) -> SettingsOwner:
    return SettingsOwner(TOPIC_RESOURCE, name, f"topic {name}")


def _at_brokers(cluster: ChangingCluster, brokers: Iterable[int], changes: list[SettingChange]) -> list[str]:
    problems = []
    cluster.describe()
    for broker in brokers:
        try:
            owner = SettingsOwner(BROKER_RESOURCE, str(broker), f"broker {broker}")
            alter_settings(cluster, owner, changes)
        except (FirnError, OSError) as e:
            problems.append(f"broker {broker}: {e}")
    return problems
