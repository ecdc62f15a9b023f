"""Words of the audit log for requests that have changed something, from request and response. [P]

Each function returns what was done of one API; errors are left out. Secrets are hidden.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.printable import printable
from service.base.uuids import encode_uuid
from service.config.overrides import may_be_secret
from service.metadata.controller.requests import ConfigOperation, CreateTopicResult, ResourceType
from service.security.audited_change import MOST_NAMED, AuditedChange
from service.wire.erasures import ErasureOp

if TYPE_CHECKING:
    from service.security.tokens import DelegationToken

NONE: Final = ErrorCode.none
_NO_DIRECTORY: Final = UUID(int=0)
_VALUE_CHARACTERS: Final = 100
_TIERING: Final = ("remote.storage.enable", "remote.log.copy.disable", "remote.log.delete.on.disable")
_ERASURE_CHANGES: Final = {ErasureOp.START: "started", ErasureOp.CANCEL: "cancelled"}
_SIGNS: Final = {ConfigOperation.SET: "=", ConfigOperation.APPEND: "+=", ConfigOperation.SUBTRACT: "-="}

Words = Callable[[Any, Any], Iterable[AuditedChange]]
"""(request, response) -> changes"""


def _change(event: str, words: str, items: Iterable[str], count: int) -> tuple[AuditedChange, ...]:
    return (AuditedChange(event, words, islice(items, MOST_NAMED), count),)


def created_topics(request: Any, response: Any) -> Iterable[AuditedChange]:
    if request.validate_only:
        return ()
    done = [one for one in response.topics if one.error_code is NONE]
    items = (f"{printable(one.name)}{_size(one)}" for one in done)
    return _change("topics-created", "topics created", items, len(done))


def _size(topic: Any) -> str:
    if topic.num_partitions is None or topic.num_partitions < 1:
        return ""  # not told to a client that may not know
    return f" [partitions={topic.num_partitions} replicas={topic.replication_factor}]"


def automatically_created(results: Iterable[CreateTopicResult]) -> AuditedChange:
    """Return the topics that were created because a client named them, or the node needs them."""
    done = [one for one in results if one.error is NONE]
    items = (f"{printable(one.name)} [partitions={one.num_partitions}]" for one in done)
    return AuditedChange("topics-auto-created", "topics created automatically", items, len(done))


def changed_erasures(request: Any, response: Any) -> Iterable[AuditedChange]:
    word = _ERASURE_CHANGES.get(request.op)
    if word is None or response.error_code is not NONE:
        return ()
    row = json.loads(response.document)
    topics = ", ".join(printable(one["name"]) for one in row["topics"][:MOST_NAMED])
    others = f" and {len(row['topics']) - MOST_NAMED} more" if len(row["topics"]) > MOST_NAMED else ""
    item = f"{request.id} [{row['keys']} keys, topics {topics}{others}]"
    return _change(f"erasure-{word}", f"erasures of keys {word}", (item,), 1)


def deleted_topics(request: Any, response: Any) -> Iterable[AuditedChange]:
    done = [one for one in response.responses if one.error_code is NONE]
    items = (printable(one.name or one.topic_id) for one in done)
    return _change("topics-deleted", "topics deleted", items, len(done))


def added_partitions(request: Any, response: Any) -> Iterable[AuditedChange]:
    if request.validate_only:
        return ()
    counts = {one.name: one.count for one in request.topics}
    done = [one.name for one in response.results if one.error_code is NONE]
    items = (f"{printable(name)} [partitions={counts.get(name)}]" for name in done)
    return _change("partitions-added", "partitions added", items, len(done))


def changed_settings(request: Any, response: Any) -> Iterable[AuditedChange]:
    """Return the changes of AlterConfigs and IncrementalAlterConfigs, and what they switch of tiering."""
    if request.validate_only:
        return ()
    done = {(one.resource_type, one.resource_name) for one in response.responses if one.error_code is NONE}
    resources = [one for one in request.resources if (one.resource_type, one.resource_name) in done]
    settings = list(islice(chain.from_iterable(map(_settings, resources)), MOST_NAMED))
    count = sum(max(len(one.configs), 1) for one in resources)
    tiered = [
        f"{printable(one.resource_name)} [{_setting(one, config)}]"
        for one in islice(resources, MOST_NAMED)
        if one.resource_type == ResourceType.TOPIC
        for config in one.configs
        if config.name in _TIERING
    ]
    return (
        AuditedChange("settings-changed", "settings changed", settings, count),
        AuditedChange("tiering-switched", "tiering switched", tiered, len(tiered)),
    )


def _settings(resource: Any) -> Iterable[str]:
    what = _resource(resource.resource_type, resource.resource_name)
    if not resource.configs:
        yield f"{what}: all are default"  # AlterConfigs without settings
    for config in resource.configs:
        yield f"{what}: {_setting(resource, config)}"


def _resource(kind: int, name: str) -> str:
    try:
        word = ResourceType(kind).name.lower().replace("_", "-")
    except ValueError:
        word = f"resource of type {kind}"
    return f"{word} {printable(name)}" if name else f"all {word}s"


def _setting(resource: Any, config: Any) -> str:
    operation = getattr(config, "config_operation", ConfigOperation.SET)
    name = printable(config.name)
    if operation == ConfigOperation.DELETE or config.value is None:
        return f"{name} is default"
    hidden = resource.resource_type == ResourceType.BROKER and may_be_secret(config.name)
    value = "[hidden]" if hidden else printable(config.value, _VALUE_CHARACTERS)
    return f"{name}{_SIGNS.get(operation, '=')}{value}"


def deleted_groups(request: Any, response: Any) -> Iterable[AuditedChange]:
    done = [one.group_id for one in response.results if one.error_code is NONE]
    return _change("groups-deleted", "groups deleted", map(printable, done), len(done))


def deleted_offsets(request: Any, response: Any) -> Iterable[AuditedChange]:
    done = [
        (topic.name, one.partition_index)
        for topic in response.topics
        for one in topic.partitions
        if one.error_code is NONE
    ]
    items = (f"{printable(topic)}-{partition}" for topic, partition in done)
    words = f"offsets of group {printable(request.group_id)} deleted"
    return _change("offsets-deleted", words, items, len(done))


def deleted_records(request: Any, response: Any) -> Iterable[AuditedChange]:
    done = [
        (topic.name, one.partition_index, one.low_watermark)
        for topic in response.topics
        for one in topic.partitions
        if one.error_code is NONE
    ]
    items = (f"{printable(topic)}-{partition} below offset {at}" for topic, partition, at in done)
    return _change("records-deleted", "records deleted", items, len(done))


def asked_elections(request: Any, response: Any) -> Iterable[AuditedChange]:
    done = [
        (topic.topic, one.partition_id)
        for topic in response.replica_election_results
        for one in topic.partition_result
        if one.error_code is NONE
    ]
    kind = "unclean" if request.election_type == 1 else "preferred"
    items = (f"{printable(topic)}-{partition}" for topic, partition in done)
    return _change("election-requested", f"election of {kind} leaders requested", items, len(done))


def reassigned(request: Any, response: Any) -> Iterable[AuditedChange]:
    failed = {
        (topic.name, one.partition_index)
        for topic in response.responses
        for one in topic.partitions
        if one.error_code is not NONE
    }
    if response.error_code is not NONE:
        return ()
    done = [
        (topic.name, one)
        for topic in request.topics
        for one in topic.partitions
        if (topic.name, one.partition_index) not in failed
    ]
    items = (f"{printable(name)}-{one.partition_index} {_replicas(one)}" for name, one in done)
    return _change("replicas-reassigned", "reassignments changed", items, len(done))


def _replicas(partition: Any) -> str:
    if partition.replicas is None:
        return "[cancelled]"
    return f"[replicas={','.join(map(str, partition.replicas))}]"


def unregistered_broker(request: Any, response: Any) -> Iterable[AuditedChange]:
    done = int(response.error_code is NONE)
    return _change("broker-unregistered", "broker unregistered", [str(request.broker_id)], done)


def changed_features(request: Any, response: Any) -> Iterable[AuditedChange]:
    if request.validate_only or response.error_code is not NONE:
        return ()
    items = (f"{printable(one.feature)}={one.max_version_level}" for one in request.feature_updates)
    return _change("features-changed", "feature levels changed", items, len(request.feature_updates))


def created_acls(request: Any, response: Any) -> Iterable[AuditedChange]:
    pairs = zip(request.creations, response.results, strict=False)
    done = [entry for entry, result in pairs if result.error_code is NONE]
    items = (f"{_entry(one)} on {printable(one.resource_name)}" for one in done)
    return _change("acls-created", "ACLs created", items, len(done))


def deleted_acls(request: Any, response: Any) -> Iterable[AuditedChange]:
    done = [one for found in response.filter_results for one in found.matching_acls]
    items = (f"{_entry(one)} on {printable(one.resource_name)}" for one in done)
    return _change("acls-deleted", "ACLs deleted", items, len(done))


def _entry(acl: Any) -> str:
    kinds: Mapping[int, str] = {2: "deny", 3: "allow"}
    kind = kinds.get(acl.permission_type, str(acl.permission_type))
    return f"{kind} {printable(acl.principal)} operation {acl.operation}"


def changed_quotas(request: Any, response: Any) -> Iterable[AuditedChange]:
    if request.validate_only:
        return ()
    pairs = zip(request.entries, response.entries, strict=False)
    done = [entry for entry, result in pairs if result.error_code is NONE]
    return _change("quotas-changed", "client quotas changed", map(_quota, done), len(done))


def _quota(entry: Any) -> str:
    who = " ".join(f"{one.entity_type} {printable(one.entity_name or '(default)')}" for one in entry.entity)
    what = " ".join(
        f"{printable(one.key)}{' is removed' if one.remove else f'={one.value:.12g}'}"
        for one in islice(entry.ops, MOST_NAMED)
    )
    return f"{who}: {what}"


def changed_credentials(request: Any, response: Any) -> Iterable[AuditedChange]:
    """Return the users whose SCRAM credentials were set or removed."""
    done = [one.user for one in response.results if one.error_code is NONE]
    removed = {one.name for one in request.deletions}
    items = (f"{printable(user)}{' [removed]' if user in removed else ''}" for user in done)
    return _change("credentials-changed", "SCRAM credentials changed", items, len(done))


def changed_token(what: str, token: DelegationToken) -> AuditedChange:
    """Return a delegation token that was `what`: created, renewed or expired. Its id is no secret."""
    words = f"delegation tokens {what}"
    until = datetime.fromtimestamp(token.expiry_ms // 1000, UTC)
    item = f"{printable(token.id)} of {printable(token.owner)} [valid until {until:%Y-%m-%dT%H:%M:%SZ}]"
    return AuditedChange(f"delegation-token-{what}", words, [item], 1)


def changed_voters(request: Any, response: Any) -> Iterable[AuditedChange]:
    """Return the controller that was added to the voters of the quorum, or removed from them."""
    if response.error_code is not NONE:
        return ()
    what = "added" if hasattr(request, "listeners") else "removed"
    item = f"{request.voter_id} [directory {encode_uuid(request.voter_directory_id or _NO_DIRECTORY)}]"
    return (AuditedChange(f"voter-{what}", f"voters {what}", [item], 1),)


def terminated_transaction(transactional_id: str, producer_id: int, epoch: int) -> AuditedChange:
    """Return a transaction that was open when somebody else took its id: it is aborted, `producer_id` and
    `epoch` are fenced."""
    item = f"{printable(transactional_id)} [aborted, producer {producer_id} of epoch {epoch} fenced]"
    return AuditedChange("transaction-terminated", "transactions terminated", [item], 1)


def written_markers(request: Any, response: Any) -> Iterable[AuditedChange]:
    """Return the transactions that were ended in partitions, not by a coordinator."""
    ends = {one.producer_id: "committed" if one.transaction_result else "aborted" for one in request.markers}
    done = [
        (topic.name, partition.partition_index, marker.producer_id)
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
        if partition.error_code is NONE
    ]
    items = (f"{printable(name)}-{index} [producer {one}, {ends.get(one)}]" for name, index, one in done)
    return _change("transaction-ended-in-partition", "transactions ended in partitions", items, len(done))
