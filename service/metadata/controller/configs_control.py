"""Changes of configuration (Apache Kafka ``ConfigurationControlManager``, ``ConfigAdminManager``). [P]"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError, RequestError
from service.base.steps import Steps, at_once
from service.metadata.controller.activation import MIN_ISR
from service.metadata.controller.adoption_control import recovered_record
from service.metadata.controller.decision import EXCESSIVE, ControllerResult, decided_in_steps
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    AlterConfig,
    AlterResource,
    AlterResourceResult,
    ConfigOperation,
    ConfigRules,
    ResourceType,
)
from service.metadata.controller.topic_names import topic_name_error
from service.metadata.features import ELR_VERSION
from service.metadata.image import MetadataImage, PartitionImage
from service.metadata.partition_index import NO_LEADER_SHELF
from service.metadata.records import (
    ClearElrRecord,
    ConfigRecord,
    PartitionChangeRecord,
    RecoveredTopicRecord,
)

MOST_CHARACTERS: Final = 32_767
"""Limit of a name's and of a value's length: that of a string in Kafka's older versions."""
RETENTION: Final = ("retention.ms", "retention.bytes")
"""Settings whose change ends the hold on a recovered topic with unknown settings."""
TWICE: Final = "Each resource must appear at most once."

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)
_OPERATIONS: Final = frozenset(int(operation) for operation in ConfigOperation)


def incremental_alter_configs(
    image: MetadataImage,
    resources: Sequence[AlterResource],
    rules: ConfigRules,
    *,
    validate_only: bool = False,
    via_broker: int | None = None,
) -> Steps[ControllerResult[list[AlterResourceResult]]]:
    """Change each resource completely or not at all; a refused one does not affect the others. In steps.

    `via_broker` is the broker that received the request: it may name no other broker's configuration.
    """
    yield
    seen = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    records: list[ConfigRecord] = []
    settings_known: list[RecoveredTopicRecord] = []
    results = []
    for resource in resources:
        yield
        error, message = ErrorCode.none, None
        try:
            if seen[resource.resource_type, resource.resource_name] > 1:
                raise _invalid(TWICE)
            records += yield from _alter_resource(image, resource, rules, via_broker)
            settings_known += _settings_known(image, resource)
        except RequestError as e:
            error, message = e.code, e.message
        results.append(AlterResourceResult(resource.resource_type, resource.resource_name, error, message))
    cleared = yield from _cleared(image, records)
    return (
        yield from decided_in_steps(() if validate_only else [*records, *cleared, *settings_known], results)
    )


def _settings_known(image: MetadataImage, resource: AlterResource) -> Iterator[RecoveredTopicRecord]:
    """Clear `settings_unknown` where an operator sets a topic's retention, even to its present value."""
    if resource.resource_type != ResourceType.TOPIC:
        return
    topic = image.topics_by_name.get(resource.resource_name)
    state = None if topic is None else image.recovered.get(topic.id)
    is_said = any(change.name in RETENTION for change in resource.configs)
    if is_said and topic is not None and state is not None and state.settings_unknown:
        yield recovered_record(topic.id, state._replace(settings_unknown=False))


def _cleared(
    image: MetadataImage, records: Sequence[ConfigRecord]
) -> Steps[list[ClearElrRecord | PartitionChangeRecord]]:
    """Decide the removal of eligible replicas that a change of ``min.insync.replicas`` makes unsafe.

    They were eligible by the old number: a leader with a smaller ISR than it required may commit records that
    they lack. They are kept where the ISR is empty, unlike in Apache Kafka (``removeTopicElrs``): such a
    partition has no leader and commits nothing, so they have everything, and without them no leader could
    ever be elected (invariant P17).
    """
    if image.features.get(ELR_VERSION, 0) == 0:
        return []
    changed = [
        one
        for one in records
        if one.name == MIN_ISR
        and image.config(one.resource_type, one.resource_name).get(MIN_ISR) != one.value
    ]
    if not changed:
        return []
    waiting: set[UUID] = set()
    for topic_id, number in image.index.partitions(NO_LEADER_SHELF):
        yield
        if _waits_for_its_leader(image.topics_by_id[topic_id].partitions[number]):
            waiting.add(topic_id)
    is_everywhere = any(one.resource_type != ResourceType.TOPIC for one in changed)
    if is_everywhere and not waiting:
        return [ClearElrRecord(topic_name="")]
    names = sorted(image.topics_by_name) if is_everywhere else [one.resource_name for one in changed]
    cleared: list[ClearElrRecord | PartitionChangeRecord] = []
    for name in names:
        topic = image.topics_by_name[name]
        if topic.id not in waiting:
            yield
            cleared.append(ClearElrRecord(topic_name=name))
            continue
        for number, state in topic.partitions.items():
            yield
            has_any = state.eligible_leader_replicas or state.last_known_elr
            if has_any and not _waits_for_its_leader(state):
                cleared.append(
                    PartitionChangeRecord(
                        partition_id=number,
                        topic_id=topic.id,
                        eligible_leader_replicas=(),
                        last_known_elr=(),
                    )
                )
    return cleared


def _waits_for_its_leader(state: PartitionImage) -> bool:
    """Return whether only replicas of the ELR or the last known leader may lead the partition again."""
    return not state.isr and bool(state.eligible_leader_replicas or state.last_known_elr)


def _check_min_isr(image: MetadataImage, record: ConfigRecord) -> None:
    """Refuse to remove the cluster's number, or to set a broker's, while ELR is enabled: INVALID_CONFIG."""
    if record.name != MIN_ISR or record.resource_type != ResourceType.BROKER:
        return
    if image.features.get(ELR_VERSION, 0) == 0:
        return
    if record.resource_name:
        reason = f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
        raise RequestError(ErrorCode.invalid_config, reason)
    if record.value is None:
        reason = f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled."
        raise RequestError(ErrorCode.invalid_config, reason)


def alter_configs(
    image: MetadataImage,
    resources: Sequence[AlterResource],
    rules: ConfigRules,
    *,
    validate_only: bool = False,
    via_broker: int | None = None,
) -> Steps[ControllerResult[list[AlterResourceResult]]]:
    """Replace the configuration of each resource: overrides that are not named are deleted."""
    whole = []
    for one in resources:
        yield
        named = {change.name for change in one.configs}
        others = [key for key in image.config(*one[:2]) if key not in named]
        deleted = tuple(AlterConfig(key, ConfigOperation.DELETE, None) for key in others)
        whole.append(one._replace(configs=one.configs + deleted))
    return (
        yield from incremental_alter_configs(
            image, whole, rules, validate_only=validate_only, via_broker=via_broker
        )
    )


def _alter_resource(
    image: MetadataImage, resource: AlterResource, rules: ConfigRules, via_broker: int | None
) -> Steps[list[ConfigRecord]]:
    check_changes(resource.configs)
    for change in resource.configs:
        if change.operation not in _OPERATIONS:
            raise _invalid(f"Unknown operations type {change.operation}")
    kind = _check_name(resource, via_broker)
    current = image.config(*resource[:2])
    values = dict(current)
    records = []
    for change in resource.configs:
        old = current.get(change.name)
        new = _apply(kind, change, old, rules)
        if new is None:
            values.pop(change.name, None)
        else:
            values[change.name] = new
        if new != old or kind is ResourceType.BROKER:
            # A broker's record is written even without a change: it makes the broker reload (KAFKA-14136).
            records.append(
                ConfigRecord(
                    resource_type=kind, resource_name=resource.resource_name, name=change.name, value=new
                )
            )
    for record in records:
        _check_min_isr(image, record)
    yield from validate_in_steps(image, rules, kind, resource.resource_name, values)
    _check_existence(image, kind, resource.resource_name)
    return records


def validate(
    image: MetadataImage, rules: ConfigRules, kind: ResourceType, name: str, values: Mapping[str, str]
) -> None:
    """Validate a topic's overrides as `validate_in_steps` does, in one step."""
    at_once(validate_in_steps(image, rules, kind, name, values))


def validate_in_steps(
    image: MetadataImage, rules: ConfigRules, kind: ResourceType, name: str, values: Mapping[str, str]
) -> Steps[None]:
    """Validate all overrides of one resource by the rules.

    Raises `RequestError`: INVALID_CONFIG for topics and groups, INVALID_REQUEST for a broker, which Kafka
    keeps for compatibility (KAFKA-13609); INVALID_CONFIG for a name or value that is too long, in any
    resource.
    """
    for key, value in values.items():
        _check_length(key, value)
    try:
        yield from rules.validate(image, kind, name, values)
    except ConfigError as e:
        code = ErrorCode.invalid_request if kind is ResourceType.BROKER else ErrorCode.invalid_config
        raise RequestError(code, str(e)) from e


def check_changes(changes: Sequence[AlterConfig]) -> None:
    """Check changes for what every kind of resource refuses: `RequestError` INVALID_REQUEST.

    POLICY_VIOLATION for more changes of one resource than an operation may write records.
    """
    if len(changes) > MAX_RECORDS_PER_OPERATION:
        raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
    for name, _, value in changes:
        _check_length(name, value)
    if len({change.name for change in changes}) < len(changes):
        raise _invalid("Error due to duplicate config keys")
    without_value = [c.name for c in changes if c.value is None and c.operation != ConfigOperation.DELETE]
    if without_value:
        raise _invalid(f"Null value not supported for : {', '.join(without_value)}")


def _check_length(name: str, value: str | None) -> None:
    """Refuse names and values that no setting needs and that would be expensive to parse: INVALID_CONFIG."""
    if len(name) > MOST_CHARACTERS or (value is not None and len(value) > MOST_CHARACTERS):
        raise RequestError(
            ErrorCode.invalid_config,
            f"The name and the value of a setting have at most {MOST_CHARACTERS} characters: {name[:100]}",
        )


def _check_name(resource: AlterResource, via_broker: int | None) -> ResourceType:
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        if not name:
            raise _invalid("Default topic resources are not allowed.")
        reason = topic_name_error(name)
        if reason is not None:
            raise RequestError(ErrorCode.invalid_topic_exception, reason)
        return ResourceType.TOPIC
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise _invalid("Default group resources are not allowed.")
        return ResourceType.GROUP
    if resource.resource_type != ResourceType.BROKER:
        raise _invalid(f"Unknown resource type {resource.resource_type}")
    if name:
        broker_id = broker_id_of(name)
        # Kafka accepts "01", too, and stores a setting that no broker reads.
        if via_broker is not None and (broker_id != via_broker or name != str(broker_id)):
            raise _invalid(f"Unexpected broker id, expected {via_broker}, but received {name}")
    return ResourceType.BROKER


def _check_existence(image: MetadataImage, kind: ResourceType, name: str) -> None:
    if kind is ResourceType.TOPIC:
        if name not in image.topics_by_name:
            raise RequestError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
    elif kind is ResourceType.BROKER and name:
        node_id = broker_id_of(name)
        if node_id not in image.brokers and node_id not in image.controllers:
            raise RequestError(ErrorCode.broker_id_not_registered, f"No node with id {name} found.")


def broker_id_of(name: str) -> int:
    """Parse a broker id as Java does: ASCII digits with an optional sign. `RequestError` INVALID_REQUEST."""
    if not _NUMBER.fullmatch(name):
        raise _invalid(f"Node id must be an integer, but it is: {name}")
    return int(name)


def _apply(kind: ResourceType, change: AlterConfig, old: str | None, rules: ConfigRules) -> str | None:
    operation = ConfigOperation(change.operation)
    if operation is ConfigOperation.DELETE or change.value is None:
        return None
    if kind is ResourceType.BROKER and (why_secret := rules.secrecy(change.name)) is not None:
        raise RequestError(ErrorCode.invalid_config, f"{change.name}: {why_secret}")
    if operation is ConfigOperation.SET:
        return change.value
    if not rules.is_list(kind, change.name):
        if (why_refused := rules.refusal(change.name)) is not None:
            raise RequestError(ErrorCode.invalid_config, f"{change.name}: refused: {why_refused}")
        reason = f"Can't {operation.name} to key {change.name} because its type is not LIST."
        if kind is ResourceType.BROKER:
            verb = operation.name.lower()
            reason = f"Config value {verb} is not allowed for config key: {change.name}"
        raise RequestError(ErrorCode.invalid_config, reason)
    base = rules.default(kind, change.name) if old is None else old
    parts = dict.fromkeys(part for part in (base or "").split(",") if part)
    for value in change.value.split(","):
        if operation is ConfigOperation.APPEND:
            parts[value] = None
        else:
            parts.pop(value, None)
    return ",".join(parts)


def _invalid(message: str) -> RequestError:
    return RequestError(ErrorCode.invalid_request, message)
