"""Requests of classic groups, built by hand in any version, and their answers as comparable values."""

from __future__ import annotations

import struct
from dataclasses import MISSING, fields, is_dataclass
from datetime import timedelta
from typing import Any

from tests.support.processes import wait_until
from tests.support.wire import RawConnection, decode_response, encode_request, schema

OFFSET_COMMIT, OFFSET_FETCH, FIND, JOIN, HEARTBEAT, LEAVE, SYNC = 8, 9, 10, 11, 12, 13, 14
DESCRIBE, LIST, DELETE, OFFSET_DELETE = 15, 16, 42, 47
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.max.size": "3",
    "offsets.topic.num.partitions": "3",
}
_NEWEST = {
    JOIN: 9,
    SYNC: 5,
    HEARTBEAT: 4,
    LEAVE: 5,
    DESCRIBE: 6,
    LIST: 5,
    DELETE: 2,
    OFFSET_COMMIT: 9,
    OFFSET_FETCH: 9,
}
_OLDEST = dict.fromkeys(_NEWEST, 0) | {OFFSET_COMMIT: 2, OFFSET_FETCH: 1}
ERAS = [{api: min(_OLDEST[api] + n, newest) for api, newest in _NEWEST.items()} for n in range(10)]
"""Versions of the APIs that belong together."""
UNORDERED = {"members", "results", "topics", "partitions"}
LEFT_OUT = {"throttle_time", "error_message", "client_host"}


def build(kind: Any, values: dict[str, Any]) -> Any:
    """A message of kio's with what of `values` its version has; the rest has its default."""
    known = {field.name: field for field in fields(kind)}
    given = {name: value for name, value in values.items() if name in known}
    for name, field in known.items():
        if name not in given and field.default is MISSING and field.default_factory is MISSING:
            given[name] = None
    return kind(**given)


class Peer:
    """One node: a connection for each member, and answers in words that do not depend on the node."""

    def __init__(self, bootstrap: str, era: int, group: str) -> None:
        self.bootstrap = bootstrap
        self.versions = ERAS[era]
        self.group = group
        self.ids: dict[str, str] = {}
        """member ids by the names they have here"""
        self._asked: dict[str, tuple[RawConnection, Any]] = {}
        self._connections: list[RawConnection] = []
        self._idle: dict[str, RawConnection] = {}

    # Requests.

    def ask(self, who: str, api: int, **values: Any) -> None:
        """Sends a request on the connection of `who`."""
        version = values.pop("version", self.versions.get(api, 0))
        module = schema(api, version)
        name = {
            OFFSET_COMMIT: "OffsetCommit", OFFSET_FETCH: "OffsetFetch", JOIN: "JoinGroup", SYNC: "SyncGroup",
            HEARTBEAT: "Heartbeat", LEAVE: "LeaveGroup", DESCRIBE: "DescribeGroups", LIST: "ListGroups",
            DELETE: "DeleteGroups", OFFSET_DELETE: "OffsetDelete", FIND: "FindCoordinator",
        }[api]  # fmt: skip
        values.setdefault("group_id", self.group)
        for field, nested in values.pop("nested", {}).items():
            values[field] = tuple(self._nested(module, one) for one in nested)
        request = build(getattr(module, f"{name}Request"), values)
        connection = self._idle.pop(who, None)
        if connection is None:
            connection = RawConnection(self.bootstrap)
            self._connections.append(connection)
        connection.send_frame(encode_request(request, 1, who))
        self._asked[who] = (connection, request)

    def _nested(self, module: Any, one: tuple[str, dict[str, Any]]) -> Any:
        kind, values = one
        if "partitions" in values:
            values = {**values, "partitions": tuple(self._nested(module, p) for p in values["partitions"])}
        return build(getattr(module, kind), values)

    def told(self, who: str) -> Any:
        """The answer to the last request of `who`."""
        connection, request = self._asked.pop(who)
        frame = connection.receive_frame()
        assert struct.unpack_from(">i", frame)[0] == 1
        self._idle[who] = connection
        return self._plain("", decode_response(request, frame))

    def call(self, who: str, api: int, **values: Any) -> Any:
        self.ask(who, api, **values)
        return self.told(who)

    def _plain(self, name: str, value: Any) -> Any:
        if is_dataclass(value):
            return {
                f.name: self._plain(f.name, getattr(value, f.name))
                for f in fields(value)
                if f.name not in LEFT_OUT
            }
        if isinstance(value, tuple):
            plain = [self._plain(name, one) for one in value]
            return sorted(plain, key=str) if name in UNORDERED else plain
        if name in ("member_id", "leader") and value:
            return self._alias(value)
        if name == "group_id":
            return "the group" if value == self.group else value
        return int(value) if isinstance(value, int) else value

    def _alias(self, member_id: str) -> str:
        for alias, known in self.ids.items():
            if known == member_id:
                return alias
        stem = member_id[:-37]
        alias = f"{stem}#{sum(a.startswith(stem + '#') for a in self.ids) + 1}"
        self.ids[alias] = member_id
        return alias

    def close(self) -> None:
        for connection in self._connections:
            connection.socket.close()

    # Members.

    def join(self, who: str, member: str = "", protocols: Any = None, **more: Any) -> None:
        kind = "JoinGroupRequestProtocol"
        self.ask(
            who,
            JOIN,
            **{
                "member_id": self.ids.get(member, member),
                "session_timeout": timedelta(seconds=30),
                "rebalance_timeout": timedelta(seconds=30),
                "protocol_type": "consumer",
                "group_instance_id": None,
                "reason": None,
                **more,
            },
            nested={
                "protocols": [
                    (kind, {"name": name, "metadata": metadata})
                    for name, metadata in (
                        [("range", b"r"), ("sticky", b"s")] if protocols is None else protocols
                    )
                ]
            },
        )

    def member(self, who: str, **more: Any) -> tuple[Any, str]:
        """Joins as clients do, with the id that it is given; ends while the join waits.

        What was told first, and the id's name.
        """
        if self.versions[JOIN] < 4 or more.get("group_instance_id") is not None:
            self.join(who, **more)
            return None, f"{who}#1"
        self.join(who, **more)
        first = self.told(who)
        self.join(who, first["member_id"], **more)
        return first, first["member_id"]

    def sync(
        self, who: str, member: str, generation: int, given: dict[str, bytes] | None = None, **more: Any
    ) -> None:
        kind = "SyncGroupRequestAssignment"
        self.ask(
            who,
            SYNC,
            **{
                "generation_id": generation,
                "member_id": self.ids.get(member, member),
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocol_name": "range",
                **more,
            },
            nested={
                "assignments": [
                    (kind, {"member_id": self.ids.get(name, name), "assignment": what})
                    for name, what in (given or {}).items()
                ]
            },
        )

    def heartbeat(self, who: str, member: str, generation: int, **more: Any) -> Any:
        return self.call(
            who,
            HEARTBEAT,
            **{
                "member_id": self.ids.get(member, member),
                "generation_id": generation,
                "group_instance_id": None,
                **more,
            },
        )

    def leave(self, who: str, *members: tuple[str, str | None], **more: Any) -> Any:
        identities = [
            ("MemberIdentity", {"member_id": self.ids.get(m, m), "group_instance_id": i, "reason": None})
            for m, i in members
        ]
        values = {"member_id": self.ids.get(members[0][0], members[0][0])} if self.versions[LEAVE] < 3 else {}
        nested = {} if self.versions[LEAVE] < 3 else {"members": identities}
        return self.call(who, LEAVE, **values, nested=nested, **more)

    def commit(
        self, topic: str, *parts: tuple[int, int], member: str = "", generation: int = -1, **more: Any
    ) -> Any:
        partition = "OffsetCommitRequestPartition"
        asked = [
            (partition, {"partition_index": p, "committed_offset": o, "committed_leader_epoch": -1,
                         "committed_metadata": more.get("metadata", "m")})
            for p, o in parts
        ]  # fmt: skip
        more.pop("metadata", None)
        return self.call(
            "committer",
            OFFSET_COMMIT,
            **{
                "generation_id_or_member_epoch": generation,
                "member_id": self.ids.get(member, member),
                "group_instance_id": None,
                "retention_time": timedelta(milliseconds=-1),
                **more,
            },
            nested={"topics": [("OffsetCommitRequestTopic", {"name": topic, "partitions": asked})]},
        )

    def fetch(self, topic: str, *parts: int, group: str | None = None) -> Any:
        group_id = self.group if group is None else group
        version = self.versions[OFFSET_FETCH]
        if version < 8:
            topics = [("OffsetFetchRequestTopic", {"name": topic, "partition_indexes": parts})]
            return self.call(
                "committer", OFFSET_FETCH, group_id=group_id, require_stable=False, nested={"topics": topics}
            )
        module = schema(OFFSET_FETCH, version)
        asked = (build(module.OffsetFetchRequestTopics, {"name": topic, "partition_indexes": parts}),)
        one = build(
            module.OffsetFetchRequestGroup,
            {"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": asked},
        )
        return self.call("committer", OFFSET_FETCH, groups=(one,), require_stable=True)

    def delete_offsets(self, topic: str, *parts: int) -> Any:
        asked = [("OffsetDeleteRequestPartition", {"partition_index": p}) for p in parts]
        nested = {"topics": [("OffsetDeleteRequestTopic", {"name": topic, "partitions": asked})]}
        return self.call("admin", OFFSET_DELETE, nested=nested)

    def describe(self, group: str | None = None) -> Any:
        names = (self.group if group is None else group,)
        return self.call("admin", DESCRIBE, groups=names, include_authorized_operations=True)

    def listed(self, **filters: tuple[str, ...]) -> Any:
        values = {"states_filter": (), "types_filter": (), **filters}
        groups = self.call("admin", LIST, **values)["groups"]
        return [one for one in groups if one["group_id"] == "the group"]

    def delete(self, *groups: str) -> Any:
        names = tuple(self.group if one == "g" else one for one in groups)
        return self.call("admin", DELETE, groups_names=names)

    def state(self) -> str:
        return str(self.describe()["groups"][0]["group_state"])

    def wait_for(self, state: str) -> None:
        wait_until(f"the group to be {state}", lambda: self.state() == state)

    def stable(self, *names: str, **more: Any) -> tuple[list[Any], list[str]]:
        """A stable group, one member after the other; what was told, and the members, the leader first."""
        told: list[Any] = []
        members: list[str] = []
        for generation, who in enumerate(names, 1):
            first, member = self.member(who, **more)
            told.append(first)
            if members:
                self.wait_for("PreparingRebalance")
                for other, known in zip(names, members, strict=False):
                    told.append(self.heartbeat(other, known, generation - 1))
                    self.join(other, known, **more)
            told.append(self.told(who))
            told += [self.told(other) for other in names[: len(members)]]
            members.append(member)
            given = {known: b"for " + known.encode() for known in members}
            for other, known in zip(names[1:], members[1:], strict=False):
                self.sync(other, known, generation)
            self.sync(names[0], members[0], generation, given)
            told += [self.told(other) for other in names[: len(members)]]
        return told, members
