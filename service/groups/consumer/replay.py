"""Replay of records of types 3 to 8 and 16: the only code that changes a group's durable state. [P]

Any record that parses is applied: a compacted log may lack records that others refer to, a tombstone may be
of what is gone, and the log may be Apache Kafka's.
"""

from __future__ import annotations

from typing import cast

from service.groups.consumer.group import (
    LEAVING_EPOCH,
    NO_EPOCH,
    NOTHING_OWNED,
    ConsumerGroup,
    ConsumerGroupMember,
    MemberState,
    Resolved,
)
from service.groups.records_modern import (
    CurrentKey,
    CurrentValue,
    EpochKey,
    EpochValue,
    MemberKey,
    MemberValue,
    ModernKey,
    ModernValue,
    PartitionMetadataKey,
    RegexKey,
    RegexValue,
    TargetEpochKey,
    TargetEpochValue,
    TargetKey,
    TargetValue,
)


def apply(group: ConsumerGroup, key: ModernKey, value: ModernValue | None) -> None:
    """Apply the record to `group`; the shard handles the end of the group itself (`EpochKey`)."""
    match key:
        case EpochKey():
            if isinstance(value, EpochValue):
                group.set_epoch(value.epoch, value.metadata_hash)
        case PartitionMetadataKey():
            group.set_partition_metadata(value is not None)
        case MemberKey():
            if value is None:
                group.remove_member(key.member_id)
            else:
                old = group.members.get(key.member_id) or ConsumerGroupMember(key.member_id)
                group.put_member(old.with_subscription(cast("MemberValue", value)))
        case TargetEpochKey():
            if isinstance(value, TargetEpochValue):
                group.set_target_epoch(value.assignment_epoch, value.assignment_timestamp)
            else:
                group.set_target_epoch(NO_EPOCH, 0)
        case TargetKey():
            if isinstance(value, TargetValue):
                group.put_target(key.member_id, value.partitions)
            else:
                group.remove_target(key.member_id)
        case CurrentKey():
            _apply_current(group, key, cast("CurrentValue | None", value))
        case RegexKey():
            if isinstance(value, RegexValue):
                resolved = Resolved(frozenset(value.topics), value.version, value.timestamp)
                group.put_regex(key.regex, resolved)
            else:
                group.remove_regex(key.regex)


def _apply_current(group: ConsumerGroup, key: CurrentKey, value: CurrentValue | None) -> None:
    member = group.members.get(key.member_id)
    if value is not None:
        group.put_member((member or ConsumerGroupMember(key.member_id)).with_current(value))
    elif member is not None:
        group.put_member(
            member._replace(
                epoch=LEAVING_EPOCH,
                previous_epoch=LEAVING_EPOCH,
                state=MemberState.STABLE,
                assigned=NOTHING_OWNED,
                pending_revocation=NOTHING_OWNED,
            )
        )
