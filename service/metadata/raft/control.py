"""Converts control records of the metadata log to and from the Raft machine's values. [P]

LeaderChange is version 0 under every kraft.version (Apache Kafka 4.3). KRaftVersion and KRaftVoters take
effect when they are appended (KIP-853).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kio.schema.k_raft_version_record.v0.data import KRaftVersionRecord
from kio.schema.leader_change_message.v0.data import LeaderChangeMessage
from kio.schema.leader_change_message.v0.data import Voter as LeaderChangeVoter
from kio.schema.types import BrokerId
from kio.schema.voters_record.v0.data import Endpoint as RecordEndpoint
from kio.schema.voters_record.v0.data import KRaftVersionFeature, VotersRecord
from kio.schema.voters_record.v0.data import Voter as RecordVoter
from kio.static.primitive import i16, i32, u16

from service.base.errors import CorruptionError
from service.metadata.batches import ControlMessage, ControlRecord, ControlType, MetadataBatch
from service.metadata.endpoint import Endpoint
from service.metadata.raft import events
from service.metadata.raft.keys import NO_DIRECTORY, ReplicaKey
from service.metadata.raft.voters import VoterHistory, VoterNode, VoterSet


class VoterRecords(NamedTuple):
    """Voters and kraft.version in a log or a snapshot; `voters` None: the configuration's voters are used."""

    voters: VoterSet | None = None
    version: int = 0


NO_VOTER_RECORDS: Final = VoterRecords()


def control_messages(voter_records: VoterRecords) -> tuple[ControlMessage, ...]:
    """Return the control records of a snapshot; none under kraft.version 0."""
    if voter_records.version == 0 or voter_records.voters is None:
        return ()
    return _version(voter_records.version), _voters(voter_records.voters)


def encode_records(records: Iterable[events.ControlRecord]) -> tuple[ControlMessage, ...]:
    """Convert the machine's control records to kio's messages."""
    return tuple(map(_message, records))


def _message(record: events.ControlRecord) -> ControlMessage:
    match record:
        case events.LeaderChange(leader_id, voters, granting):
            return LeaderChangeMessage(
                version=i16(0),
                leader_id=BrokerId(leader_id),
                voters=tuple(LeaderChangeVoter(voter_id=i32(voter)) for voter in voters),
                granting_voters=tuple(LeaderChangeVoter(voter_id=i32(voter)) for voter in granting),
            )
        case events.KRaftVersion(version):
            return _version(version)
        case events.KRaftVoters(voters):
            return _voters(voters)


def _version(version: int) -> KRaftVersionRecord:
    return KRaftVersionRecord(version=i16(0), k_raft_version=i16(version))


def _voters(voters: VoterSet) -> VotersRecord:
    return VotersRecord(version=i16(0), voters=tuple(map(_record_voter, voters)))


def _record_voter(voter: VoterNode) -> RecordVoter:
    directory = voter.key.directory_id
    return RecordVoter(
        voter_id=BrokerId(voter.node_id),
        voter_directory_id=None if directory == NO_DIRECTORY else directory,
        endpoints=tuple(
            RecordEndpoint(name=one.name, host=one.host, port=u16(one.port)) for one in voter.endpoints
        ),
        k_raft_version_feature=KRaftVersionFeature(
            min_supported_version=i16(voter.min_version), max_supported_version=i16(voter.max_version)
        ),
    )


def apply_voter_record(record: ControlRecord, before: VoterRecords) -> VoterRecords:
    """Return `before`, updated by one more record. `CorruptionError` for an unknown version."""
    match record.message:
        case KRaftVersionRecord() as message:
            return before._replace(version=int(message.k_raft_version))
        case VotersRecord() as message:
            return before._replace(voters=_voter_set(message))
        case None if record.control_type in (ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS):
            raise CorruptionError(f"control record of type {record.control_type}: unknown version")
        case _:
            return before


def _voter_set(record: VotersRecord) -> VoterSet:
    return VoterSet(
        VoterNode(
            ReplicaKey(int(voter.voter_id), voter.voter_directory_id or NO_DIRECTORY),
            tuple(Endpoint(str(one.name), str(one.host), int(one.port)) for one in voter.endpoints),
            int(voter.k_raft_version_feature.min_supported_version),
            int(voter.k_raft_version_feature.max_supported_version),
        )
        for voter in record.voters
    )


def learn(history: VoterHistory, batch: MetadataBatch) -> None:
    """Add the voters and the kraft.version in the control records of `batch` to `history`."""
    for i, record in enumerate(batch.control):
        voter_records = apply_voter_record(record, NO_VOTER_RECORDS)
        if voter_records.voters is not None:
            history.add(batch.base_offset + i, voter_records.voters)
        elif voter_records.version:
            history.add_version(batch.base_offset + i, voter_records.version)
