"""Requests of each API whose answer depends on a right, and a client whose rights a test sets.

The requests are the same for this software and for Apache Kafka: `Asker.run` gives a client no right first,
then one right after the other, and returns the errors that it gets each time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.node.conftest import Talk
from tests.support.processes import wait_until

ALICE: Final = "User:alice"
NOW_MS: Final = 1_750_000_000_000
_TYPES: Final = {"T": 2, "G": 3, "C": 4, "X": 5, "U": 7}
_OPERATIONS: Final = {
    "ALL": 2,
    "READ": 3,
    "WRITE": 4,
    "CREATE": 5,
    "DELETE": 6,
    "ALTER": 7,
    "DESCRIBE": 8,
    "CLUSTER_ACTION": 9,
    "DESCRIBE_CONFIGS": 10,
    "ALTER_CONFIGS": 11,
    "IDEMPOTENT_WRITE": 12,
}
LONG_AGO: Final = UUID(int=0xDEAD)


class Right(NamedTuple):
    """``T t READ``: topic t; ``C ALTER``: the cluster; ``-T t READ``: denied; ``T t* READ``: by prefix."""

    resource: int
    name: str
    pattern: int
    operation: int
    permission: int

    @staticmethod
    def of(text: str) -> Right:
        permission = 2 if text.startswith("-") else 3
        words = text.removeprefix("-").split()
        kind, operation = words[0], words[-1]
        name = "kafka-cluster" if kind == "C" else words[1]
        pattern = 4 if len(name) > 1 and name.endswith("*") else 3
        return Right(_TYPES[kind], name.rstrip("*") or "*", pattern, _OPERATIONS[operation], permission)


class Asker:
    """Requests of one client, and of an administrator who gives it its rights."""

    def __init__(self, admin: Talk, alice: Talk, *, settle_s: float = 0.0) -> None:
        self.admin, self.alice = admin, alice
        self._settle_s = settle_s
        self._acls = 0
        self._names = 0

    def allow(self, *rights: str, principal: str = ALICE) -> None:
        """Let the client have these rights, besides those that it has."""
        module = request_module(ApiKey.CREATE_ACLS)
        made = tuple(
            module.AclCreation(
                resource_type=one.resource,
                resource_name=one.name,
                resource_pattern_type=one.pattern,
                principal=principal,
                host="*",
                operation=one.operation,
                permission_type=one.permission,
            )
            for one in map(Right.of, rights)
        )
        answer = self.admin(ApiKey.CREATE_ACLS, "CreateAclsRequest", creations=made)
        assert all(one.error_code == 0 for one in answer.results), answer
        self._acls += len(made)
        self._wait_for_acls()

    def forbid_all(self) -> None:
        """Remove all ACLs."""
        module = request_module(ApiKey.DELETE_ACLS)
        every = module.DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        answer = self.admin(ApiKey.DELETE_ACLS, "DeleteAclsRequest", filters=(every,))
        assert answer.filter_results[0].error_code == 0, answer
        self._acls = 0
        self._wait_for_acls()

    def _wait_for_acls(self) -> None:
        """Wait until the broker has the ACLs, and so long that a controller has them, too."""
        if self._settle_s:
            wait_until("the ACLs to be applied", lambda: self._known_acls() == self._acls, 30)
            time.sleep(self._settle_s)

    def _known_acls(self) -> int:
        answer = self.admin(
            ApiKey.DESCRIBE_ACLS,
            "DescribeAclsRequest",
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        return sum(len(one.acls) for one in answer.resources)

    def wait_for_groups(self) -> None:
        """Have the topic of groups made, and wait for its coordinator."""

        def answers() -> bool:
            found = self.admin(
                ApiKey.FIND_COORDINATOR, "FindCoordinatorRequest", key_type=0, coordinator_keys=("g",)
            )
            if found.coordinators[0].error_code != 0:
                return False
            listed = self.admin(ApiKey.LIST_GROUPS, "ListGroupsRequest", states_filter=(), types_filter=())
            return bool(listed.error_code == 0)

        wait_until("a coordinator of groups", answers, 30)

    def new_topic(self) -> tuple[str, UUID]:
        self._names += 1
        name = f"own-{self._names}"
        made = self.admin.create(name)
        assert made.error_code == 0, made
        wait_until("the topic to be known", lambda: self.admin.topic_id(name) == made.topic_id, 30)
        return name, made.topic_id

    def run(self, case: Case) -> list[str]:
        """Return the answers without rights, and after each of the case's rights."""
        self.forbid_all()
        place = Place(self, *self.new_topic())
        answers = [case.ask(place)]
        for right in case.rights:
            self.allow(
                *(one.replace("{t}", place.topic).replace("{g}", place.group) for one in right.split(", "))
            )
            answers.append(case.ask(place))
        return answers


class Place:
    """A topic of its own, and what else a case asks for."""

    def __init__(self, asker: Asker, topic: str, topic_id: UUID) -> None:
        self.asker, self.topic, self.topic_id = asker, topic, topic_id
        self.admin, self.alice = asker.admin, asker.alice
        self.group = f"group-of-{topic}"


class Case(NamedTuple):
    name: str
    ask: Callable[[Place], str]
    rights: tuple[str, ...]
    expected: tuple[str, ...]
    """One more than rights; ``ok`` for no error."""


def word(code: Any) -> str:
    return "ok" if code == 0 else ErrorCode(code).name.replace("authorization_failed", "denied")


def _module(key: ApiKey) -> Any:
    return request_module(key)


# -- records


def produce(p: Place) -> str:
    return word(p.alice.produce(p.topic_id, [b"x"], NOW_MS).error_code)


def fetch(p: Place) -> str:
    return word(p.alice.fetch(p.topic_id, 0).error_code)


def fetch_unknown_id(p: Place) -> str:
    return word(p.alice.fetch(LONG_AGO, 0).error_code)


def fetch_as_replica(p: Place) -> str:
    state = _module(ApiKey.FETCH).ReplicaState(replica_id=7, replica_epoch=1)
    code = p.alice.fetch(p.topic_id, 0, replica_state=state).error_code
    return "denied" if word(code) == "topic_denied" else "not denied"


def list_offsets(p: Place) -> str:
    module = _module(ApiKey.LIST_OFFSETS)
    asked = module.ListOffsetsPartition(partition_index=0, timestamp=-1)
    answer = p.alice(
        ApiKey.LIST_OFFSETS,
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=0,
        topics=(module.ListOffsetsTopic(name=p.topic, partitions=(asked,)),),
        timeout=20_000,
    )
    one = answer.topics[0].partitions[0]
    return f"{word(one.error_code)} {one.offset} {one.timestamp}"


def offset_for_leader_epoch(p: Place) -> str:
    module = _module(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    asked = module.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    topic = module.OffsetForLeaderTopic(topic=p.topic, partitions=(asked,))
    answer = p.alice(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpochRequest", replica_id=-2, topics=(topic,)
    )
    return word(answer.topics[0].partitions[0].error_code)


def delete_records(p: Place) -> str:
    module = _module(ApiKey.DELETE_RECORDS)
    asked = module.DeleteRecordsPartition(partition_index=0, offset=0)
    topic = module.DeleteRecordsTopic(name=p.topic, partitions=(asked,))
    answer = p.alice(ApiKey.DELETE_RECORDS, "DeleteRecordsRequest", topics=(topic,), timeout=5_000)
    return word(answer.topics[0].partitions[0].error_code)


def describe_producers(p: Place) -> str:
    module = _module(ApiKey.DESCRIBE_PRODUCERS)
    topic = module.TopicRequest(name=p.topic, partition_indexes=(0,))
    answer = p.alice(ApiKey.DESCRIBE_PRODUCERS, "DescribeProducersRequest", topics=(topic,))
    return word(answer.topics[0].partitions[0].error_code)


def init_producer_id(p: Place) -> str:
    code = "coordinator_load_in_progress"
    while code == "coordinator_load_in_progress":  # Apache Kafka's, before its first block of ids
        answer = p.alice(
            ApiKey.INIT_PRODUCER_ID,
            "InitProducerIdRequest",
            transactional_id=None,
            transaction_timeout=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        code = word(answer.error_code)
    return code


# -- metadata


def _metadata(talk: Talk, topics: Any, *, creates: bool = False, operations: bool = False) -> Any:
    module = _module(ApiKey.METADATA)
    named = None if topics is None else tuple(module.MetadataRequestTopic(**one) for one in topics)
    return talk(
        ApiKey.METADATA,
        "MetadataRequest",
        topics=named,
        allow_auto_topic_creation=creates,
        include_topic_authorized_operations=operations,
    )


def metadata_named(p: Place) -> str:
    known, absent = (
        _metadata(p.alice, [{"topic_id": None, "name": name}]).topics[0] for name in (p.topic, "absent")
    )
    hidden = known.topic_id is None and not known.partitions and not known.is_internal
    return f"{word(known.error_code)} {'hidden' if hidden else 'shown'}, {word(absent.error_code)}"


def metadata_internal(p: Place) -> str:
    one = _metadata(p.alice, [{"topic_id": None, "name": "__consumer_offsets"}]).topics[0]
    return f"{word(one.error_code)} {one.is_internal}"


def metadata_by_id(p: Place) -> str:
    known, absent = (
        _metadata(p.alice, [{"topic_id": one, "name": None}]).topics[0] for one in (p.topic_id, LONG_AGO)
    )
    name = "null" if known.name is None else "named"
    has_id = "id" if known.topic_id == p.topic_id else "no id"
    return f"{word(known.error_code)} {name} {has_id}, {word(absent.error_code)}"


def metadata_all(p: Place) -> str:
    return "shown" if p.topic in {one.name for one in _metadata(p.alice, None).topics} else "left out"


def metadata_creates(p: Place) -> str:
    name = f"new-{p.topic}"
    code = _metadata(p.alice, [{"topic_id": None, "name": name}], creates=True).topics[0].error_code
    # Apache Kafka answers before the topic is there.
    return (
        "creates"
        if word(code) in ("ok", "unknown_topic_or_partition", "leader_not_available")
        else word(code)
    )


def metadata_operations(p: Place) -> str:
    one = _metadata(p.alice, [{"topic_id": None, "name": p.topic}], operations=True).topics[0]
    return str(one.topic_authorized_operations)


def describe_cluster(p: Place) -> str:
    answer = p.alice(
        ApiKey.DESCRIBE_CLUSTER,
        "DescribeClusterRequest",
        include_cluster_authorized_operations=True,
        include_fenced_brokers=False,
    )
    return f"{word(answer.error_code)} {answer.cluster_authorized_operations}"


def _described_partitions(p: Place, names: tuple[str, ...]) -> Any:
    module = _module(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
    topics = tuple(module.TopicRequest(name=name) for name in names)
    return p.alice(
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        "DescribeTopicPartitionsRequest",
        topics=topics,
        cursor=None,
        response_partition_limit=2000,
    ).topics


def describe_topic_partitions(p: Place) -> str:
    found = {one.name: one for one in _described_partitions(p, (p.topic, "absent"))}
    shown = "hidden" if found[p.topic].topic_id is None else "shown"
    return f"{word(found[p.topic].error_code)} {shown}, {word(found['absent'].error_code)}"


def describe_all_partitions(p: Place) -> str:
    return "shown" if p.topic in {one.name for one in _described_partitions(p, ())} else "left out"


# -- groups


def commit(talk: Talk, group: str, topic_id: UUID) -> str:
    module = _module(ApiKey.OFFSET_COMMIT)
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
    module = _module(ApiKey.OFFSET_FETCH)
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
    module = _module(ApiKey.OFFSET_DELETE)
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
    module = _module(ApiKey.JOIN_GROUP)
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
    member = _module(ApiKey.LEAVE_GROUP).MemberIdentity(member_id="m", group_instance_id=None, reason=None)
    answer = p.alice(ApiKey.LEAVE_GROUP, "LeaveGroupRequest", group_id=p.group, members=(member,))
    return word(answer.error_code)


def consumer_group_heartbeat(p: Place) -> str:
    return word(_beat(p.alice, f"modern-{p.group}", topics=(p.topic,)).error_code)


def _beat(
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
        assert _beat(p.admin, group, topics=(p.topic,)).error_code == 0
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
    module = _module(ApiKey.DESCRIBE_CONFIGS)
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
    module = _module(ApiKey.INCREMENTAL_ALTER_CONFIGS)
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
    module = _module(ApiKey.ALTER_CONFIGS)
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
    module = _module(ApiKey.DELETE_TOPICS)
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
    module = _module(ApiKey.CREATE_PARTITIONS)
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
    module = _module(ApiKey.ELECT_LEADERS)
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
    module = _module(ApiKey.UPDATE_FEATURES)
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
    module = _module(ApiKey.DESCRIBE_QUORUM)
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
    answer = p.alice(
        ApiKey.DESCRIBE_ACLS,
        "DescribeAclsRequest",
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=None,
        host_filter=None,
        operation=1,
        permission_type=1,
    )
    return word(answer.error_code)


def create_acls(p: Place) -> str:
    one = _module(ApiKey.CREATE_ACLS).AclCreation(
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
    one = _module(ApiKey.DELETE_ACLS).DeleteAclsFilter(
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
    nobody = _module(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS).UserName(name="nobody")
    answer = p.alice(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, "DescribeUserScramCredentialsRequest", users=(nobody,)
    )
    return word(answer.error_code)


def alter_scram(p: Place) -> str:
    module = _module(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)
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
    module = _module(ApiKey.ALTER_CLIENT_QUOTAS)
    entry = module.EntryData(
        entity=(module.EntityData(entity_type="user", entity_name="carol"),),
        ops=(module.OpData(key="producer_byte_rate", value=1e6, remove=False),),
    )
    answer = p.alice(
        ApiKey.ALTER_CLIENT_QUOTAS, "AlterClientQuotasRequest", entries=(entry,), validate_only=True
    )
    return word(answer.entries[0].error_code)
