"""Requests on groups, settings, topics and the cluster whose answer depends on a right."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey
from tests.node.conftest import Talk
from tests.support.acl_requests import EVERY_ACL, LONG_AGO, Place, module_of, word
from tests.support.processes import wait_until

# -- groups


def commit(talk: Talk, group: str, topic_id: UUID) -> str:
    module = module_of(ApiKey.OFFSET_COMMIT)
    asked = module.OffsetCommitRequestPartition(partition_index=0, committed_offset=7, committed_metadata="")
    topic = module.OffsetCommitRequestTopic(topic_id=topic_id, partitions=(asked,))
    answer = talk(ApiKey.OFFSET_COMMIT, "OffsetCommitRequest", group_id=group, member_id="", topics=(topic,))
    return ErrorCode(answer.topics[0].partitions[0].error_code).name


def offset_commit(p: Place) -> str:
    name = commit(p.alice, p.group, p.topic_id)
    unknown = commit(p.alice, p.group, LONG_AGO)
    return ", ".join(
        "ok" if one == "none" else one.replace("authorization_failed", "denied") for one in (name, unknown)
    )


def _offsets(p: Place, *, all_topics: bool) -> Any:
    module = module_of(ApiKey.OFFSET_FETCH)
    commit(p.admin, p.group, p.topic_id)
    topics = (module.OffsetFetchRequestTopics(topic_id=p.topic_id, partition_indexes=(0,)),)
    group = module.OffsetFetchRequestGroup(group_id=p.group, topics=None if all_topics else topics)
    answer = p.alice(ApiKey.OFFSET_FETCH, "OffsetFetchRequest", groups=(group,), require_stable=False)
    return answer.groups[0]


def offset_fetch(p: Place) -> str:
    found = _offsets(p, all_topics=False)
    if found.error_code != 0:
        return word(found.error_code)
    one = found.topics[0].partitions[0]
    return f"{word(one.error_code)} {one.committed_offset}"


def offset_fetch_all(p: Place) -> str:
    found = _offsets(p, all_topics=True)
    return word(found.error_code) if found.error_code != 0 else f"{len(found.topics)} topics"


def offset_delete(p: Place) -> str:
    module = module_of(ApiKey.OFFSET_DELETE)
    commit(p.admin, p.group, p.topic_id)
    asked = module.OffsetDeleteRequestPartition(partition_index=0)
    topic = module.OffsetDeleteRequestTopic(name=p.topic, partitions=(asked,))
    answer = p.alice(ApiKey.OFFSET_DELETE, "OffsetDeleteRequest", group_id=p.group, topics=(topic,))
    if answer.error_code != 0:
        return word(answer.error_code)
    return word(answer.topics[0].partitions[0].error_code)


def find_coordinator(p: Place) -> str:
    answers = p.alice(
        ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=(p.group, "another")
    ).coordinators
    return ", ".join(word(one.error_code) for one in answers)


def find_transaction_coordinator(p: Place) -> str:
    answer = p.alice(
        ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=1, coordinator_keys=("some-id",)
    )
    code = word(answer.coordinators[0].error_code)
    return code if code == "transactional_id_denied" else "not denied"


def join_group(p: Place) -> str:
    module = module_of(ApiKey.JOIN_GROUP)
    answer = p.alice(
        ApiKey.JOIN_GROUP,
        "JoinGroupRequest",
        group_id=p.group,
        session_timeout=10_000,
        rebalance_timeout=10_000,
        member_id="",
        group_instance_id=None,
        protocol_type="consumer",
        protocols=(module.JoinGroupRequestProtocol(name="range", metadata=b""),),
        reason=None,
    )
    return word(answer.error_code)


def sync_group(p: Place) -> str:
    answer = p.alice(
        ApiKey.SYNC_GROUP,
        "SyncGroupRequest",
        group_id=p.group,
        generation_id=1,
        member_id="m",
        group_instance_id=None,
        protocol_type="consumer",
        protocol_name="range",
        assignments=(),
    )
    return word(answer.error_code)


def heartbeat(p: Place) -> str:
    answer = p.alice(
        ApiKey.HEARTBEAT,
        "HeartbeatRequest",
        group_id=p.group,
        generation_id=1,
        member_id="m",
        group_instance_id=None,
    )
    return word(answer.error_code)


def leave_group(p: Place) -> str:
    member = module_of(ApiKey.LEAVE_GROUP).MemberIdentity(member_id="m", group_instance_id=None, reason=None)
    answer = p.alice(ApiKey.LEAVE_GROUP, "LeaveGroupRequest", group_id=p.group, members=(member,))
    return word(answer.error_code)


def consumer_group_heartbeat(p: Place) -> str:
    return word(beat(p.alice, f"modern-{p.group}", topics=(p.topic,)).error_code)


def beat(
    talk: Talk,
    group: str,
    *,
    topics: Any = None,
    regex: str | None = None,
    member: str = "m-1",
    epoch: int = 0,
) -> Any:
    return talk(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        "ConsumerGroupHeartbeatRequest",
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        instance_id=None,
        rack_id=None,
        rebalance_timeout=60_000,
        subscribed_topic_names=topics,
        subscribed_topic_regex=regex,
        server_assignor=None,
        topic_partitions=(),
    )


def consumer_group_describe(p: Place) -> str:
    group = f"modern-{p.group}"
    if (
        p.asker.admin(
            ApiKey.CONSUMER_GROUP_DESCRIBE,
            "ConsumerGroupDescribeRequest",
            group_ids=(group,),
            include_authorized_operations=False,
        )
        .groups[0]
        .error_code
        != 0
    ):
        # The coordinator may know a new topic a moment later; what the member has decides the answer.
        wait_until("the member has its partition", lambda: beat(p.admin, group, topics=(p.topic,)).assignment)
    one = p.alice(
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        "ConsumerGroupDescribeRequest",
        group_ids=(group,),
        include_authorized_operations=True,
    ).groups[0]
    return f"{word(one.error_code)} {len(one.members)} members"


def describe_groups(p: Place) -> str:
    commit(p.admin, p.group, p.topic_id)
    one = p.alice(
        ApiKey.DESCRIBE_GROUPS, "DescribeGroupsRequest", groups=(p.group,), include_authorized_operations=True
    ).groups[0]
    return f"{word(one.error_code)} {one.authorized_operations if one.error_code == 0 else ''}".strip()


def list_groups(p: Place) -> str:
    commit(p.admin, p.group, p.topic_id)
    answer = p.alice(ApiKey.LIST_GROUPS, "ListGroupsRequest", states_filter=(), types_filter=())
    shown = p.group in {one.group_id for one in answer.groups}
    return f"{word(answer.error_code)} {'shown' if shown else 'left out'}"


def delete_groups(p: Place) -> str:
    commit(p.admin, p.group, p.topic_id)
    answer = p.alice(ApiKey.DELETE_GROUPS, "DeleteGroupsRequest", groups_names=(p.group, "absent"))
    found = {one.group_id: one.error_code for one in answer.results}
    return f"{word(found[p.group])}, {word(found['absent'])}"


# -- settings


def _describe_config(p: Place, kind: int, name: str) -> str:
    module = module_of(ApiKey.DESCRIBE_CONFIGS)
    asked = module.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    answer = p.alice(
        ApiKey.DESCRIBE_CONFIGS,
        "DescribeConfigsRequest",
        resources=(asked,),
        include_synonyms=False,
        include_documentation=False,
    )
    one = answer.results[0]
    return f"{word(one.error_code)} {'some' if one.configs else 'no'} settings"


def describe_configs_topic(p: Place) -> str:
    return f"{_describe_config(p, 2, p.topic)}, {_describe_config(p, 2, 'absent')}"


def describe_configs_group(p: Place) -> str:
    return _describe_config(p, 32, p.group)


def describe_configs_broker(p: Place) -> str:
    return f"{_describe_config(p, 4, '1')}, {_describe_config(p, 8, '1')}"


def _alter(p: Place, kind: int, name: str, key: str, value: str) -> str:
    module = module_of(ApiKey.INCREMENTAL_ALTER_CONFIGS)
    change = module.AlterableConfig(name=key, config_operation=0, value=value)
    asked = module.AlterConfigsResource(resource_type=kind, resource_name=name, configs=(change,))
    answer = p.alice(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        "IncrementalAlterConfigsRequest",
        resources=(asked,),
        validate_only=False,
    )
    return word(answer.responses[0].error_code)


def alter_topic(p: Place) -> str:
    return f"{_alter(p, 2, p.topic, 'retention.ms', '-1')}, {_alter(p, 2, 'absent', 'retention.ms', '-1')}"


def alter_group(p: Place) -> str:
    return _alter(p, 32, p.group, "consumer.session.timeout.ms", "50000")


def alter_broker(p: Place) -> str:
    return _alter(p, 4, "1", "log.cleaner.backoff.ms", "15001")


def alter_logger(p: Place) -> str:
    return _alter(p, 8, "1", "root", "INFO")


def alter_configs(p: Place) -> str:
    module = module_of(ApiKey.ALTER_CONFIGS)
    change = module.AlterableConfig(name="retention.ms", value="-1")
    asked = module.AlterConfigsResource(resource_type=2, resource_name=p.topic, configs=(change,))
    answer = p.alice(ApiKey.ALTER_CONFIGS, "AlterConfigsRequest", resources=(asked,), validate_only=False)
    return word(answer.responses[0].error_code)


# -- topics


def create_topics(p: Place) -> str:
    p.asker._names += 1
    one = p.alice.create(f"made-{p.topic}-{p.asker._names}")
    told = "settings" if one.configs else "no settings"
    return f"{word(one.error_code)} {one.num_partitions} {told}" + (
        "" if one.error_code != 0 else f" {word(one.topic_config_error_code)}"
    )


def _delete(p: Place, *topics: dict[str, Any]) -> Any:
    module = module_of(ApiKey.DELETE_TOPICS)
    asked = tuple(module.DeleteTopicState(**one) for one in topics)
    return p.alice(ApiKey.DELETE_TOPICS, "DeleteTopicsRequest", topics=asked, timeout=10_000).responses


def delete_by_name(p: Place) -> str:
    found = {
        one.name: one.error_code
        for one in _delete(p, {"name": p.topic, "topic_id": None}, {"name": "absent", "topic_id": None})
    }
    return f"{word(found[p.topic])}, {word(found['absent'])}"


def delete_by_id(p: Place) -> str:
    answers = _delete(p, {"name": None, "topic_id": p.topic_id}, {"name": None, "topic_id": LONG_AGO})
    found = {one.topic_id: one for one in answers}
    name = "null" if found[p.topic_id].name is None else "named"
    return f"{word(found[p.topic_id].error_code)} {name}, {word(found[LONG_AGO].error_code)}"


def create_partitions(p: Place) -> str:
    module = module_of(ApiKey.CREATE_PARTITIONS)
    topics = tuple(
        module.CreatePartitionsTopic(name=name, count=5, assignments=None) for name in (p.topic, "absent")
    )
    answer = p.alice(
        ApiKey.CREATE_PARTITIONS,
        "CreatePartitionsRequest",
        topics=topics,
        timeout=10_000,
        validate_only=False,
    )
    found = {one.name: one.error_code for one in answer.results}
    return f"{word(found[p.topic])}, {word(found['absent'])}"


# -- the cluster


def elect_leaders(p: Place) -> str:
    module = module_of(ApiKey.ELECT_LEADERS)
    topic = module.TopicPartitions(topic=p.topic, partitions=(0,))
    answer = p.alice(
        ApiKey.ELECT_LEADERS,
        "ElectLeadersRequest",
        election_type=0,
        topic_partitions=(topic,),
        timeout=10_000,
    )
    return word(answer.error_code)


def alter_reassignments(p: Place) -> str:
    answer = p.alice(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, "AlterPartitionReassignmentsRequest", timeout=10_000, topics=()
    )
    return word(answer.error_code)


def list_reassignments(p: Place) -> str:
    answer = p.alice(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, "ListPartitionReassignmentsRequest", timeout=10_000, topics=None
    )
    return word(answer.error_code)


def update_features(p: Place) -> str:
    module = module_of(ApiKey.UPDATE_FEATURES)
    change = module.FeatureUpdateKey(feature="no.such", max_version_level=7, upgrade_type=1)
    answer = p.alice(
        ApiKey.UPDATE_FEATURES,
        "UpdateFeaturesRequest",
        timeout=10_000,
        feature_updates=(change,),
        validate_only=True,
    )
    code = word(answer.error_code)
    return code if code == "cluster_denied" else "not denied"


def unregister_broker(p: Place) -> str:
    answer = p.alice(ApiKey.UNREGISTER_BROKER, "UnregisterBrokerRequest", broker_id=77)
    return word(answer.error_code)


def describe_quorum(p: Place) -> str:
    module = module_of(ApiKey.DESCRIBE_QUORUM)
    topic = module.TopicData(
        topic_name="__cluster_metadata", partitions=(module.PartitionData(partition_index=0),)
    )
    return word(p.alice(ApiKey.DESCRIBE_QUORUM, "DescribeQuorumRequest", topics=(topic,)).error_code)


def describe_log_dirs(p: Place) -> str:
    return word(p.alice(ApiKey.DESCRIBE_LOG_DIRS, "DescribeLogDirsRequest", topics=None).error_code)


def list_config_resources(p: Place) -> str:
    answer = p.alice(ApiKey.LIST_CONFIG_RESOURCES, "ListConfigResourcesRequest", resource_types=(2,))
    return word(answer.error_code)


def describe_acls(p: Place) -> str:
    answer = p.alice(ApiKey.DESCRIBE_ACLS, "DescribeAclsRequest", **EVERY_ACL)
    return word(answer.error_code)


def create_acls(p: Place) -> str:
    one = module_of(ApiKey.CREATE_ACLS).AclCreation(
        resource_type=2,
        resource_name="any",
        resource_pattern_type=3,
        principal="User:carol",
        host="*",
        operation=3,
        permission_type=3,
    )
    code = p.alice(ApiKey.CREATE_ACLS, "CreateAclsRequest", creations=(one,)).results[0].error_code
    p.asker._acls += code == 0
    return word(code)


def delete_acls(p: Place) -> str:
    one = module_of(ApiKey.DELETE_ACLS).DeleteAclsFilter(
        resource_type_filter=2,
        resource_name_filter="no such",
        pattern_type_filter=3,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    return word(p.alice(ApiKey.DELETE_ACLS, "DeleteAclsRequest", filters=(one,)).filter_results[0].error_code)


def describe_scram(p: Place) -> str:
    # Apache Kafka leaves a denied request for all users without an answer: its error response fails.
    nobody = module_of(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS).UserName(name="nobody")
    answer = p.alice(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentialsRequest", users=(nobody,)
    )
    return word(answer.error_code)


def alter_scram(p: Place) -> str:
    module = module_of(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
    change = module.ScramCredentialDeletion(name="nobody", mechanism=1)
    answer = p.alice(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        "AlterUserScramCredentialsRequest",
        deletions=(change,),
        upsertions=(),
    )
    return word(answer.results[0].error_code)


def describe_quotas(p: Place) -> str:
    answer = p.alice(
        ApiKey.DESCRIBE_CLIENT_QUOTAS, "DescribeClientQuotasRequest", components=(), strict=False
    )
    return word(answer.error_code)


def alter_quotas(p: Place) -> str:
    module = module_of(ApiKey.ALTER_CLIENT_QUOTAS)
    entry = module.EntryData(
        entity=(module.EntityData(entity_type="user", entity_name="carol"),),
        ops=(module.OpData(key="producer_byte_rate", value=1e6, remove=False),),
    )
    answer = p.alice(
        ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotasRequest", entries=(entry,), validate_only=True
    )
    return word(answer.entries[0].error_code)
