"""Leader elections: when brokers come and go, on an operator's request, and periodically. [P]

Source: Apache Kafka ``ReplicationControlManager``: ``generateLeaderAndIsrUpdates``, ``electLeaders``,
``maybeBalancePartitionLeaders``, ``maybeElectUncleanLeaders``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.controller.decision import EXCESSIVE, ControllerResult
from service.metadata.controller.full_directories import DirectoriesWithoutRoom
from service.metadata.controller.partition_change import (
    LOST,
    Election,
    ElectionRules,
    PartitionTarget,
    change_partition,
    directory_of_new,
)
from service.metadata.controller.requests import (
    MAX_RECORDS_PER_OPERATION,
    ElectionResult,
    ElectionType,
    ElectLeaders,
    ResourceType,
)
from service.metadata.features import ELR_VERSION
from service.metadata.frames import newest
from service.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from service.metadata.partition_index import NO_LEADER_SHELF, NOT_PREFERRED_SHELF
from service.metadata.records import PartitionChangeRecord

MOST_ELECTIONS: Final = 1000
"""Elections of one round of a periodic task (Kafka's ``maxElectionsPerImbalance``)."""
_NOT_NEEDED: Final = "Leader election not needed for topic partition."
_NO_BROKER: Final = -1


def _no_broker_is_awaited(broker_id: int) -> bool:
    return False


class ElectionSettings(NamedTuple):
    """Defaults of election settings, and the broker whose own overrides apply (`node_id`)."""

    node_id: int = -1
    min_isr: int = 1
    """``min.insync.replicas``"""
    allows_unclean: bool = False
    """``unclean.leader.election.enable``"""
    checks_directories: bool = False
    """A replica in a directory that its broker did not register cannot lead."""
    is_awaited: Callable[[int], bool] = _no_broker_is_awaited
    """Returns whether a fenced broker still has a session: then no unclean election replaces it."""
    full: DirectoriesWithoutRoom | None = None
    """Directories without room; None: not considered."""


USUAL_ELECTIONS: Final = ElectionSettings()


class Elections:
    """Rules and eligible brokers of one image, looked up once each. For one decision."""

    def __init__(
        self,
        image: MetadataImage,
        settings: ElectionSettings,
        *,
        without: int = _NO_BROKER,
        joining: int = _NO_BROKER,
        unclean: int = _NO_BROKER,
        awaited: int = _NO_BROKER,
    ) -> None:
        """Exclude or include single brokers.

        `without` leaves every ISR and leads nothing; `joining` may lead though it is still fenced; `unclean`
        leaves ISR and ELR, as it may have lost records; `awaited` leads nothing yet and stays in sync.
        """
        self.image = image
        self.is_elr_enabled = image.features.get(ELR_VERSION, 0) > 0
        self._settings = settings
        self._excluded = {without, unclean}
        self._unclean = () if unclean == _NO_BROKER else (unclean,)
        self._able = {
            broker.id: broker
            for broker in image.brokers.values()
            if (not broker.fenced or broker.id == joining)
            and not broker.in_controlled_shutdown
            and broker.id not in self._excluded
            and broker.id != awaited
        }
        self._rules: dict[UUID, ElectionRules] = {}
        self._state: PartitionImage | None = None
        self._moved: Mapping[int, UUID] = {}
        """New directories of replicas in this change."""

    def rules(self, topic: TopicImage) -> ElectionRules:
        """Return the election rules of the topic's partitions."""
        rules = self._rules.get(topic.id)
        if rules is None:
            rules = self._rules[topic.id] = ElectionRules(
                min_isr=self._min_isr(topic.name),
                first_replicas=len(topic.partitions[0].replicas) if topic.partitions else 1,
                is_elr_enabled=self.is_elr_enabled,
                allows_unclean=self._allows_unclean(topic.name),
            )
        return rules

    def _min_isr(self, topic: str) -> int:
        value = self._setting(topic, "min.insync.replicas")
        return int(value) if value is not None and value.strip().isdecimal() else self._settings.min_isr

    def _allows_unclean(self, topic: str) -> bool:
        value = self._setting(topic, "unclean.leader.election.enable")
        return self._settings.allows_unclean if value is None else value.strip().lower() == "true"

    def _setting(self, topic: str, key: str) -> str | None:
        """Return the topic's override, this controller's own, or the cluster's; None where none is set."""
        for kind, name in (
            (ResourceType.TOPIC, topic),
            (ResourceType.BROKER, str(self._settings.node_id)),
            (ResourceType.BROKER, ""),
        ):
            value = self.image.config(kind, name).get(key)
            if value is not None:
                return value
        return None

    def change(
        self,
        topic: TopicImage,
        partition_id: int,
        state: PartitionImage,
        *,
        election: Election | None = None,
        wanted: PartitionTarget | None = None,
    ) -> PartitionChangeRecord | None:
        """Return the due change of one partition, or None. Excluded brokers leave its ISR.

        `election`: the kind that an operator or a periodic task requires. None: the kind of the topic's
        settings; an unclean one only once the sessions of all brokers that have the committed records are
        over. A restored partition whose tail is not loaded has nothing that a replica could have lost: any of
        them may lead, and begins anew.
        """
        rules = self.rules(topic)
        tails = self.image.restored_tails
        is_restored = bool(tails) and (topic.id, partition_id) in tails
        if wanted is None:
            isr = state.isr
            if not self._excluded.isdisjoint(isr):
                isr = tuple(one for one in isr if one not in self._excluded)
            is_unclean = not is_restored or state.has_leader
            wanted = PartitionTarget(isr=isr, unclean=self._unclean if is_unclean else ())
        self._state, self._moved = state, wanted.directories or {}
        if election is None:
            election = Election.UNCLEAN if is_restored else rules.election
            if election is Election.UNCLEAN and self._awaits_member(state):
                election = Election.ONLINE
        return change_partition(
            topic.id,
            partition_id,
            state,
            rules,
            self._may_lead,
            has_room=self._has_room,
            election=election,
            wanted=wanted,
            default_directory=self.default_directory,
        )

    def _may_lead(self, broker_id: int) -> bool:
        broker = self._able.get(broker_id)
        return broker is not None and self._replica_is_online(broker)

    def _replica_is_online(self, broker: BrokerImage) -> bool:
        """Return whether the broker's replica is in a working directory."""
        state = self._state
        if state is None:
            return False
        if not self._settings.checks_directories or broker.id not in state.replicas:
            return True
        directory = self._directory_of(broker.id)
        return directory is None or is_online(broker, directory)

    def _directory_of(self, broker_id: int) -> UUID | None:
        """Return the directory of the broker's replica; None where it is unknown."""
        if broker_id in self._moved:
            return self._moved[broker_id]
        state = self._state
        if state is None or broker_id not in state.replicas:
            return None
        at = state.replicas.index(broker_id)
        return state.directories[at] if at < len(state.directories) else None

    def _has_room(self, broker_id: int) -> bool:
        full, directory = self._settings.full, self._directory_of(broker_id)
        return full is None or directory is None or not full.is_full(broker_id, directory)

    def relieve(
        self, topic: TopicImage, partition_id: int, state: PartitionImage, broker_id: int, *, is_resting: bool
    ) -> PartitionChangeRecord | None:
        """Return the due change where the broker's replica is without room: another in-sync replica with room
        leads.

        A resting replica also leaves the ISR (invariant P15), so that no request waits for it, unless it
        keeps the leadership.
        """
        self._state, self._moved = state, {}
        others = tuple(one for one in state.isr if one != broker_id)
        leads = state.leader == broker_id
        if leads and not any(self._may_lead(one) and self._has_room(one) for one in others):
            return None
        leaves = is_resting and others and (leads or state.has_leader)
        return self.change(
            topic, partition_id, state, wanted=PartitionTarget(isr=others if leaves else state.isr)
        )

    def _awaits_member(self, state: PartitionImage) -> bool:
        """Return whether a broker that has all committed records may come back: no replica that may lack some
        leads until then (invariant P13)."""
        return any(
            map(self._may_return, {*state.isr, *state.eligible_leader_replicas, *state.last_known_elr})
        )

    def _may_return(self, broker_id: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        if broker is None or broker_id in self._able or broker_id in self._unclean:
            return False
        return self._replica_is_online(broker) and self._settings.is_awaited(broker_id)

    def default_directory(self, broker_id: int) -> UUID:
        """Return the directory of a new replica of the broker."""
        return directory_of_new(self.image.brokers.get(broker_id))


def is_online(broker: BrokerImage, directory: UUID) -> bool:
    """Return whether `directory` works on the broker (Kafka's ``DirectoryId.isOnline``)."""
    if directory.int < LOST.int:  # unassigned, or unknown yet
        return True
    return directory != LOST and (not broker.log_dirs or directory in broker.log_dirs)


def changes_in_steps(
    elections: Elections,
    partitions: Iterable[tuple[UUID, int]],
    concerns: Callable[[PartitionImage], bool] | None = None,
) -> Steps[list[PartitionChangeRecord]]:
    """Return the due changes of `partitions` for which `concerns` is true."""
    records: list[PartitionChangeRecord] = []
    for topic, number, state in with_topics(elections.image, partitions):
        if concerns is not None and not concerns(state):
            yield
            continue
        yield
        record = elections.change(topic, number, state)
        if record is not None:
            records.append(record)
    return records


def with_topics(
    image: MetadataImage, partitions: Iterable[tuple[UUID, int]]
) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
    """Yield partitions with their topics; consecutive partitions of a topic share one lookup."""
    topic: TopicImage | None = None
    for topic_id, number in partitions:
        if topic is None or topic.id != topic_id:
            topic = image.topics_by_id[topic_id]
        yield topic, number, topic.partitions[number]


def elect_leaders(
    image: MetadataImage, request: ElectLeaders, settings: ElectionSettings
) -> Steps[ControllerResult[list[ElectionResult]]]:
    """Elect leaders on an operator's request. A request for all partitions omits those that need none.

    Raises `RequestError` INVALID_REQUEST for an unknown election type, POLICY_VIOLATION for more than 10,000
    records.
    """
    try:
        kind = ElectionType(request.election_type)
    except ValueError as e:
        raise RequestError(ErrorCode.invalid_request, f"Unknown election type {request.election_type}") from e
    elections = Elections(image, settings)
    results: list[ElectionResult] = []
    records: list[PartitionChangeRecord] = []
    partitions: Iterable[tuple[str, int]]
    if request.partitions is None:
        partitions = ((name, number) for name, topic in _by_name(image) for number in topic.partitions)
    else:
        partitions = request.partitions
    for name, number in partitions:
        yield
        result, record = _elect(elections, name, number, kind)
        if record is not None:
            if len(records) == MAX_RECORDS_PER_OPERATION:
                raise RequestError(ErrorCode.policy_violation, EXCESSIVE)
            records.append(record)
        if request.partitions is not None or result.error is not ErrorCode.election_not_needed:
            results.append(result)
    return ControllerResult(tuple(map(newest, records)), results, is_atomic=False)


def _by_name(image: MetadataImage) -> Iterator[tuple[str, TopicImage]]:
    for name in sorted(image.topics_by_name):
        yield name, image.topics_by_name[name]


def _elect(
    elections: Elections, name: str, number: int, kind: ElectionType
) -> tuple[ElectionResult, PartitionChangeRecord | None]:
    topic = elections.image.topics_by_name.get(name)
    if topic is None:
        what = f"No such topic as {name}"
        return ElectionResult(name, number, ErrorCode.unknown_topic_or_partition, what), None
    state = topic.partitions.get(number)
    if state is None:
        what = f"No such partition as {name}-{number}"
        return ElectionResult(name, number, ErrorCode.unknown_topic_or_partition, what), None
    is_preferred = kind is ElectionType.PREFERRED
    if state.leader == state.replicas[0] if is_preferred else state.has_leader:
        return ElectionResult(name, number, ErrorCode.election_not_needed, _NOT_NEEDED), None
    election = Election.PREFERRED if is_preferred else Election.UNCLEAN
    record = elections.change(topic, number, state, election=election)
    if record is not None:
        return ElectionResult(name, number, ErrorCode.none), record
    if is_preferred:
        error, what = ErrorCode.preferred_leader_not_available, "The preferred leader was not available."
    else:
        error = ErrorCode.eligible_leaders_not_available
        what = "Eligible topic partition leaders are not available."
    return ElectionResult(name, number, error, what), None


def balance_leaders(image: MetadataImage, settings: ElectionSettings) -> Steps[ControllerResult[bool]]:
    """Elect preferred replicas where they can lead, up to a limit; the response: there may be more."""
    elections = Elections(image, settings)
    records: list[PartitionChangeRecord] = []
    for topic, number, state in with_topics(image, image.index.partitions(NOT_PREFERRED_SHELF)):
        yield
        if len(records) >= MOST_ELECTIONS:
            break
        record = elections.change(topic, number, state, election=Election.PREFERRED)
        if record is not None:
            records.append(record)
    return ControllerResult(tuple(map(newest, records)), len(records) >= MOST_ELECTIONS, is_atomic=False)


def elect_unclean_leaders(image: MetadataImage, settings: ElectionSettings) -> Steps[ControllerResult[bool]]:
    """Elect live replicas where there is no leader and the topic allows an unclean election.

    Partitions wait for brokers that have all committed records and still have a session. Stops at a limit;
    the response: there may be more.
    """
    elections = Elections(image, settings)
    records: list[PartitionChangeRecord] = []
    for topic, number, state in with_topics(image, image.index.partitions(NO_LEADER_SHELF)):
        yield
        if len(records) >= MOST_ELECTIONS:
            break
        if not elections.rules(topic).allows_unclean:
            continue
        record = elections.change(topic, number, state)
        if record is not None:
            records.append(record)
    return ControllerResult(tuple(map(newest, records)), len(records) >= MOST_ELECTIONS, is_atomic=False)
