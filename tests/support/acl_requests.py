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
EVERY_ACL: Final[dict[str, Any]] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
"""Fields of DescribeAcls for all entries."""


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
        answer = self.admin(ApiKey.DESCRIBE_ACLS, "DescribeAclsRequest", **EVERY_ACL)
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


def module_of(key: ApiKey) -> Any:
    return request_module(key)


# -- records


def produce(p: Place) -> str:
    return word(p.alice.produce(p.topic_id, [b"x"], NOW_MS).error_code)


def fetch(p: Place) -> str:
    return word(p.alice.fetch(p.topic_id, 0).error_code)


def fetch_unknown_id(p: Place) -> str:
    return word(p.alice.fetch(LONG_AGO, 0).error_code)


def fetch_as_replica(p: Place) -> str:
    state = module_of(ApiKey.FETCH).ReplicaState(replica_id=7, replica_epoch=1)
    code = p.alice.fetch(p.topic_id, 0, replica_state=state).error_code
    return "denied" if word(code) == "topic_denied" else "not denied"


def list_offsets(p: Place) -> str:
    module = module_of(ApiKey.LIST_OFFSETS)
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
    module = module_of(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    asked = module.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    topic = module.OffsetForLeaderTopic(topic=p.topic, partitions=(asked,))
    answer = p.alice(
        ApiKey.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderEpochRequest", replica_id=-2, topics=(topic,)
    )
    return word(answer.topics[0].partitions[0].error_code)


def delete_records(p: Place) -> str:
    module = module_of(ApiKey.DELETE_RECORDS)
    asked = module.DeleteRecordsPartition(partition_index=0, offset=0)
    topic = module.DeleteRecordsTopic(name=p.topic, partitions=(asked,))
    answer = p.alice(ApiKey.DELETE_RECORDS, "DeleteRecordsRequest", topics=(topic,), timeout=5_000)
    return word(answer.topics[0].partitions[0].error_code)


def describe_producers(p: Place) -> str:
    module = module_of(ApiKey.DESCRIBE_PRODUCERS)
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
    module = module_of(ApiKey.METADATA)
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


def metadata_operations_absent(p: Place) -> str:
    one = _metadata(p.alice, [{"topic_id": None, "name": "absent"}], operations=True).topics[0]
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
    module = module_of(ApiKey.DESCRIBE_TOPIC_PARTITIONS)
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
