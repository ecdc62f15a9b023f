"""Content of the ``quorum-state`` file: the current epoch, its leader and this node's vote. [P]

One line of JSON without a line end, as Apache Kafka 4.3 ``FileQuorumStateStore`` writes it. Version 0 belongs
to kraft.version 0 (voters come from the configuration); version 1 belongs to kraft.version 1: it holds the
directory id of the candidate voted for, and no voters.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.uuids import decode_uuid, encode_uuid
from service.metadata.raft.keys import NO_DIRECTORY, NOBODY

MAX_EPOCH: Final = 2**31 - 2
"""An epoch is an int32; one more epoch is left for an election after this one."""


class QuorumState(NamedTuple):
    """Election state that is persisted before any message depends on it; -1 means no leader, no vote.

    `version` is that of the file: version 0 holds `voters`, version 1 holds `voted_directory`.
    """

    epoch: int
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voters: tuple[int, ...] = ()
    voted_directory: UUID = NO_DIRECTORY
    version: int = 0


def encode_state(state: QuorumState) -> bytes:
    """Encode the file's content.

    >>> encode_state(QuorumState(epoch=1, leader_id=1, voters=(1,)))[:46]
    b'{"clusterId":"","leaderId":1,"leaderEpoch":1,"'
    >>> encode_state(QuorumState(epoch=1, leader_id=1, version=1))[-60:]
    b'votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAA","data_version":1}'
    """
    fields: dict[str, Any] = {
        "leaderId": state.leader_id,
        "leaderEpoch": state.epoch,
        "votedId": state.voted_id,
    }
    if state.version == 0:
        fields = {"clusterId": "", **fields, "appliedOffset": 0}
        fields["currentVoters"] = [{"voterId": voter} for voter in state.voters]
    else:
        fields["votedDirectoryId"] = encode_uuid(state.voted_directory)
    fields["data_version"] = state.version
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_state(data: bytes) -> QuorumState:
    """Decode either version. Raises `CorruptionError` for any other content."""
    try:
        fields: Any = json.loads(data)
        version = fields["data_version"]
        if version not in (0, 1):
            raise CorruptionError(f"quorum-state: data_version {version} is neither 0 nor 1")
        state = QuorumState(
            epoch=int(fields["leaderEpoch"]),
            leader_id=int(fields["leaderId"]),
            voted_id=int(fields["votedId"]),
            voters=tuple(int(voter["voterId"]) for voter in fields.get("currentVoters") or ()),
            voted_directory=decode_uuid(fields["votedDirectoryId"]) if version == 1 else NO_DIRECTORY,
            version=version,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise CorruptionError(f"quorum-state is malformed: {type(e).__name__}: {e}") from e
    if not 0 <= state.epoch <= MAX_EPOCH:
        raise CorruptionError(f"quorum-state: epoch {state.epoch} is not between 0 and {MAX_EPOCH}")
    return state
