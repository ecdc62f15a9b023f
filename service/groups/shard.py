"""Shard of one partition of `__consumer_offsets`: its groups of both kinds, and their offsets. [P]

All decisions and reads of a group coordinator go through here; the kind of the group decides which part
handles them. Names of timers and work, and events, begin with their owner: ``classic`` is `groups/classic`,
``offsets`` is this module, the others are the modern groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.base.timeline import Journal, Timeline
from service.coordinator.ports import TopicsView
from service.coordinator.shard import (
    NOTHING,
    BackgroundWork,
    CoordinatorRecord,
    CoordinatorResult,
    Effect,
    Outcome,
    Producer,
    Schedule,
)
from service.groups import admin, offset_commits, records, txn_offset_commits
from service.groups.classic.group import EMPTY_GROUP, ClassicGroup
from service.groups.classic.group_view import ClassicGroupView
from service.groups.classic.groups import ClassicGroups
from service.groups.config import EXPIRY_RETRY_MS, GroupsConfig
from service.groups.expiry import Deletion, Expiry, GroupPlaces, first_pieces
from service.groups.group import Group, ModernGroups
from service.groups.metrics import GroupMetrics
from service.groups.offset_commits import KnownDelete
from service.groups.offsets import CommittedOffsets
from service.groups.requests import (
    NO_MEMBER,
    DeletedGroup,
    DescribedGroup,
    FetchedGroup,
    GroupCommitRequest,
    JoinGroupResponse,
    ListedGroup,
    OffsetFetchGroup,
    RequestOrigin,
    SyncGroupResponse,
    leave_unknown_group,
)

EXPIRY: Final = ("offsets expiry",)
_SCAN_MS: Final = 600_000
"""Time after which a scan for expired offsets that has not ended is started again."""
_CENSUS_GROUPS: Final = 100
DELETED_AT_ONCE: Final = 250
"""Records of a deletion of groups in one decision, not counting the last group's own records."""


class TopicsDeleted(NamedTuple):
    """Work that deletes offsets of deleted topics; `names` are those of topics deleted just now."""

    word: str
    names: frozenset[str]


_GONE_BEFORE: Final = TopicsDeleted("offsets of topics", frozenset())
"""Topics deleted before this shard was loaded, or before the tombstones of their offsets were written."""


class GroupShard:
    """A `Shard`. Calls `config` at each use, as its values change while the node runs.

    `groups` holds a `ClassicGroup` or a value of the modern groups, which are created with this shard. `warn`
    logs a message for the operator.
    """

    def __init__(
        self,
        partition: int,
        topics: TopicsView,
        config: Callable[[], GroupsConfig],
        metrics: GroupMetrics,
        modern: Callable[[GroupShard], ModernGroups],
        warn: Callable[[str], None],
    ) -> None:
        self.partition = partition
        self.topics = topics
        self.config = config
        self.metrics = metrics
        self._journal = Journal()
        self.groups: Timeline[str, Any] = Timeline(self._journal)
        self.offsets = CommittedOffsets(self._journal)
        self.classic = ClassicGroups(self.groups, config, metrics)
        self.modern = modern(self)
        self._warn = warn
        self._unknown_types: set[int] = set()
        self._offsets_of: tuple[bytes | tuple[()], str] = ((), "")
        """prefix of the key of the last replayed offset, and its group; at first a prefix that no key has"""

    @property
    def journal(self) -> Journal:
        return self._journal

    # Replay.

    def replay(
        self, offset: int, key: bytes, value: bytes | None, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        prefix, group_id = self._offsets_of
        if not key.startswith(prefix):
            kind = records.record_type(key)
            if kind not in (records.OFFSET_COMMIT, records.LEGACY_OFFSET_COMMIT):
                self._replay_other(offset, kind, key, value)
                return
            group_id, rest = records.split_offset_key(key)
            prefix = key[: len(key) - len(rest)]
            self._offsets_of = prefix, group_id
        self.offsets.replay(offset, group_id, key[len(prefix) :], value, producer_id)
        if value is not None and group_id not in self.groups:
            self.groups[group_id] = EMPTY_GROUP

    def _replay_other(self, offset: int, kind: int, key: bytes, value: bytes | None) -> None:
        if kind == records.GROUP_METADATA:
            self._replay_group(key, value)
        elif not self.modern.replay(offset, kind, key, value) and kind not in self._unknown_types:
            self._unknown_types.add(kind)
            where = f"__consumer_offsets-{self.partition}"
            self._warn(f"{where}: records of type {kind}, from offset {offset} on, are unknown and skipped")

    def _replay_group(self, key: bytes, value: bytes | None) -> None:
        group_id = records.decode_group_key(key).group
        if value is not None:
            self.groups[group_id] = ClassicGroup.from_value(records.decode_group_value(value))
            return
        if isinstance(self.groups.get(group_id), ClassicGroup):
            del self.groups[group_id]
            self.classic.forget(group_id)

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        self.offsets.end_transaction(producer_id, commit)

    # Views.

    def view(self, group_id: str) -> Group | None:
        """Return the group in its newest state."""
        return self._view(group_id, self.groups.get(group_id), committed=False)

    def committed_view(self, group_id: str) -> Group | None:
        """Return the group in its committed state. A rebalance is not in the log: its present state is
        returned."""
        return self._view(group_id, self.groups.committed(group_id), committed=True)

    def _view(self, group_id: str, group: Any, committed: bool) -> Group | None:
        if group is None:
            return None
        if isinstance(group, ClassicGroup):
            return ClassicGroupView(group_id, group, self.classic.rebalance_of(group_id))
        return self.modern.view(group_id, group, committed)

    # Requests of classic members, after `refused_join` and the like.

    def join_group(
        self, request: Any, client: RequestOrigin, ticket: int, fresh_id: str, now_ms: int
    ) -> CoordinatorResult[Any]:
        """Handle a JoinGroup. `fresh_id`: a new UUID as text, in case a member needs one."""
        group_id = request.group_id
        group = self.groups.get(group_id)
        if group is None or isinstance(group, ClassicGroup):
            return self.classic.join(request, client, ticket, fresh_id, now_ms)
        there = self.modern.view(group_id, group, committed=False)
        if not there.is_empty:
            return self.modern.join(group_id, group, request, client, ticket, fresh_id, now_ms)
        if request.member_id != NO_MEMBER:
            return CoordinatorResult(JoinGroupResponse(ErrorCode.unknown_member_id, request.member_id))
        return self.classic.join(request, client, ticket, fresh_id, now_ms, there.tombstones())

    def sync_group(
        self, request: Any, client: RequestOrigin, ticket: int, now_ms: int
    ) -> CoordinatorResult[Any]:
        group = self.groups.get(request.group_id)
        if group is None:
            return CoordinatorResult(SyncGroupResponse(ErrorCode.unknown_member_id))
        if isinstance(group, ClassicGroup):
            return self.classic.sync(request, ticket, now_ms)
        return self.modern.sync(request.group_id, group, request, client, ticket, now_ms)

    def heartbeat(self, request: Any, client: RequestOrigin, now_ms: int) -> CoordinatorResult[Any]:
        """Handle a classic member's Heartbeat. Raises `RequestError`."""
        group = self.groups.get(request.group_id)
        if group is None:
            raise RequestError(ErrorCode.unknown_member_id)
        if isinstance(group, ClassicGroup):
            return self.classic.heartbeat(request, now_ms)
        return self.modern.classic_heartbeat(request.group_id, group, request, client, now_ms)

    def leave_group(
        self, request: Any, client: RequestOrigin, ticket: int, now_ms: int
    ) -> CoordinatorResult[Any]:
        group = self.groups.get(request.group_id)
        if group is None:
            return CoordinatorResult(leave_unknown_group(request))
        if isinstance(group, ClassicGroup):
            return self.classic.leave(request, now_ms)
        return self.modern.leave(request.group_id, group, request, client, ticket, now_ms)

    # CommittedOffsets.

    def commit_offsets(
        self, request: GroupCommitRequest, version: int, now_ms: int
    ) -> CoordinatorResult[Any]:
        """Commit offsets of existing topics and partitions (`known_commit`). Raises `RequestError`."""
        config = self.config()
        group = self.view(request.group_id)
        commit = offset_commits.commit(request, version, group, config, now_ms)
        self.metrics.offset_commits += len(commit.records)
        effects: tuple[Effect, ...] = ()
        if group is not None and group.kind == "classic":
            effects = self.classic.is_alive(request.group_id, request.member_id, now_ms)
        return CoordinatorResult(commit.response, commit.records, effects)

    def commit_offsets_of_transaction(
        self, request: GroupCommitRequest, producer: Producer, now_ms: int
    ) -> CoordinatorResult[Any]:
        """Commit offsets as part of the producer's transaction (`known_txn_commit`). Raises
        `RequestError`."""
        group = self.view(request.group_id)
        commit = txn_offset_commits.txn_commit(request, group, self.topics, self.config(), now_ms)
        self.metrics.offset_commits += len(commit.records)
        return CoordinatorResult(commit.response, commit.records, producer=producer)

    def fetch_offsets(self, request: OffsetFetchGroup) -> FetchedGroup:
        """Read committed offsets. Raises `RequestError`."""
        group = self.committed_view(request.group_id)
        return offset_commits.fetch(request, group, self.offsets, self.topics, stable=False)

    def fetch_stable_offsets(self, request: OffsetFetchGroup) -> CoordinatorResult[Any]:
        """Read the newest offsets, as a decision without records: its response waits until they are
        committed. Raises `RequestError`."""
        group = self.view(request.group_id)
        return CoordinatorResult(offset_commits.fetch(request, group, self.offsets, self.topics, stable=True))

    def fetch_all_offsets(self, request: OffsetFetchGroup) -> Steps[FetchedGroup]:
        """Read all offsets committed now; the steps change nothing and see no change. Raises
        `RequestError`."""
        group = self.committed_view(request.group_id)
        return offset_commits.fetch_all(request, group, self.offsets, self.topics, stable=False)

    def fetch_all_stable_offsets(self, request: OffsetFetchGroup) -> CoordinatorResult[Steps[FetchedGroup]]:
        """Read all newest offsets, as `fetch_stable_offsets` does. Raises `RequestError`."""
        group = self.view(request.group_id)
        return CoordinatorResult(
            offset_commits.fetch_all(request, group, self.offsets, self.topics, stable=True)
        )

    def delete_offsets(self, request: KnownDelete) -> CoordinatorResult[Any]:
        """Delete offsets of topics that the group is not subscribed to; others get GROUP_SUBSCRIBED_TO_TOPIC.

        Raises `RequestError` GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP.
        """
        tombstones, response = offset_commits.delete(request, self.view(request.group_id), self.offsets)
        self.metrics.offset_deletions += len(tombstones)
        return CoordinatorResult(response, tombstones)

    # Administration.

    def list_groups(self, wanted: admin.GroupFilter) -> Steps[list[ListedGroup]]:
        """Read the committed groups that match. Groups may come and go between the steps."""
        listed = []
        for group_id in [group_id for group_id, _ in self.groups.committed_items()]:
            group = self.groups.committed(group_id)
            yield
            there = self._view(group_id, group, committed=True)
            if there is not None and wanted.matches(there):
                listed.append(ListedGroup(group_id, there.protocol_type or "", there.state, there.kind))
        return listed

    def describe_groups(self, group_ids: Iterable[str], version: int) -> list[DescribedGroup]:
        """Read committed classic groups for DescribeGroups; others are not found."""
        described = []
        for group_id in group_ids:
            there = self.committed_view(group_id)
            if isinstance(there, ClassicGroupView):
                described.append(there.describe())
            else:
                described.append(admin.not_described(group_id, there is not None, version))
        return described

    def delete_groups(self, group_ids: Iterable[str]) -> CoordinatorResult[tuple[DeletedGroup, ...]]:
        """Delete the first groups of both kinds, with their offsets, and return their responses.

        The next decision handles the groups without a response, and the rest of a group with very many
        offsets: its offsets are deleted before the group.
        """
        writes: list[CoordinatorRecord] = []
        answers: list[DeletedGroup] = []
        for group_id in group_ids:
            if len(writes) + len(answers) >= DELETED_AT_ONCE:
                break
            group = self.view(group_id)
            if group is None:
                answers.append(DeletedGroup(group_id, ErrorCode.group_id_not_found))
                continue
            try:
                group.check_delete()
            except RequestError as e:
                answers.append(DeletedGroup(group_id, e.code))
                continue
            room = DELETED_AT_ONCE - len(writes)
            gone = offset_commits.delete_most(group_id, self.offsets, room)
            self.metrics.offset_deletions += len(gone)
            writes += gone
            if len(gone) == room:
                break
            writes += group.tombstones()
            answers.append(DeletedGroup(group_id))
        return CoordinatorResult(tuple(answers), tuple(writes))

    def census(self) -> Steps[Counter[tuple[str, str]]]:
        """Count the groups by kind and state. Groups may come and go between the steps."""
        found: Counter[tuple[str, str]] = Counter()
        for count, group_id in enumerate(tuple(self.groups)):
            if count % _CENSUS_GROUPS == 0:
                yield
            there = self.view(group_id)
            if there is not None:
                found[there.kind, there.state] += 1
        return found

    # Events.

    def loaded(self, now_ms: int) -> Iterator[Effect]:
        self.offsets.tidy()
        yield self._next_expiry(now_ms)
        yield from self._forget_topics(_GONE_BEFORE).effects
        for group_id, group in self.groups.items():
            if isinstance(group, ClassicGroup):
                if group.members:
                    yield from self.classic.loaded(group_id, group, now_ms)
            else:
                yield from self.modern.loaded(group_id, group, now_ms)

    def expired(self, name: Hashable, now_ms: int) -> Outcome:
        if name == EXPIRY:
            expiry = self._expiry(now_ms)
            # The timer restarts the scan even if this one never ends.
            again = Schedule(
                EXPIRY, now_ms + max(self.config().offsets_retention_check_interval_ms, _SCAN_MS)
            )
            return CoordinatorResult(None, effects=(BackgroundWork(EXPIRY, expiry.scan(self.groups)), again))
        if isinstance(name, TopicsDeleted):
            return self._forget_topics(name)
        outcome = self.classic.expired(name, now_ms)
        return self.modern.expired(name, now_ms) if outcome is None else outcome

    def worked(self, name: Hashable, result: Any, now_ms: int) -> Outcome:
        if name == EXPIRY:
            return self._remove_expired(result, now_ms)
        if isinstance(name, TopicsDeleted):
            return self._remove_deleted(name, result)
        return self.modern.worked(name, result, now_ms)

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome:
        if event == EXPIRY:
            if error is None:
                return NOTHING
            return CoordinatorResult(None, effects=(Schedule(EXPIRY, now_ms + EXPIRY_RETRY_MS),))
        if isinstance(event, TopicsDeleted):
            if error is None:
                return NOTHING
            return CoordinatorResult(None, effects=(Schedule(event, now_ms + EXPIRY_RETRY_MS),))
        outcome = self.classic.written(event, error, now_ms)
        return self.modern.written(event, error, now_ms) if outcome is None else outcome

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...], now_ms: int) -> Outcome:
        outcome = self.modern.topics_changed(names, deleted, now_ms)
        if not deleted:
            return outcome
        gone = frozenset(name for name in names if self.topics.by_name(name) is None)
        effects = self._forget_topics(_GONE_BEFORE._replace(names=gone)).effects
        return outcome._replace(effects=outcome.effects + effects)

    def unloaded(self) -> None:
        """Do nothing: the shard holds no resources."""

    # Expiry and deletion of offsets.

    def _expiry(self, now_ms: int) -> Expiry:
        return Expiry(self.offsets, self.view, now_ms, self.config().offsets_retention_ms)

    def _next_expiry(self, now_ms: int) -> Effect:
        return Schedule(EXPIRY, now_ms + self.config().offsets_retention_check_interval_ms)

    def _remove_expired(self, pieces: tuple[GroupPlaces, ...], now_ms: int) -> Outcome:
        """Decide on some of the pieces; the rest follow in another turn."""
        now, later = first_pieces(pieces)
        expiry = self._expiry(now_ms)
        gone = [record for piece in now for record in expiry.decide(piece)]
        self.metrics.offset_expirations += len(gone)
        self.offsets.tidy()
        after = BackgroundWork(EXPIRY, _the_rest(later)) if later else self._next_expiry(now_ms)
        if not gone:
            return CoordinatorResult(None, effects=(after,))
        return CoordinatorResult(None, tuple(gone), (after,), EXPIRY, divisible=True)

    def _forget_topics(self, deleted: TopicsDeleted) -> Outcome:
        deletion = Deletion(self.offsets, self.topics, deleted.names)
        return CoordinatorResult(None, effects=(BackgroundWork(deleted, deletion.scan()),))

    def _remove_deleted(self, deleted: TopicsDeleted, pieces: tuple[GroupPlaces, ...]) -> Outcome:
        now, later = first_pieces(pieces)
        deletion = Deletion(self.offsets, self.topics, deleted.names)
        gone = [record for piece in now for record in deletion.decide(piece)]
        effects: tuple[Effect, ...] = (BackgroundWork(deleted, _the_rest(later)),) if later else ()
        if not gone:
            return CoordinatorResult(None, effects=effects)
        return CoordinatorResult(None, tuple(gone), effects, deleted, divisible=True)


def _the_rest(pieces: tuple[GroupPlaces, ...]) -> Steps[tuple[GroupPlaces, ...]]:
    yield
    return pieces
