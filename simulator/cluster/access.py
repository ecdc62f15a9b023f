"""Rights, credentials and quotas as the committed metadata has them, and when each process knew it.

Rights are found by brute force over all entries, in Kafka's words and without the nodes' code. Promises:

S1  a right is used only if an image that the process had meanwhile gives it
S2  a right is refused only if an image that the process had meanwhile lacks it
S3  a login succeeds, or fails, only if an image that the process had meanwhile says so
S4  no session is served after its end
S5  nobody is served by metadata from before the process started: what was committed by then counts
S6  no password stands in a log line, nor a key in the bucket
S7  in the end all nodes say the same of every user, in memory and to a client
S8  nobody is throttled without a quota of its own or of all users
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.metadata.records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from simulator.model import Violation

TOPIC, GROUP, CLUSTER = 2, 3, 4
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 2, 3, 4, 5, 6, 7, 8
DESCRIBE_CONFIGS, ALTER_CONFIGS = 10, 11
THE_CLUSTER: Final = "kafka-cluster"
_IMPLIED: Final = {DESCRIBE: (READ, WRITE, DELETE, ALTER), DESCRIBE_CONFIGS: (ALTER_CONFIGS,)}


class Entry(NamedTuple):
    """An access control entry."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int

    def matches(self, user: str, host: str, kind: int, name: str) -> bool:
        if self.kind != kind or self.principal not in (f"User:{user}", "User:*"):
            return False
        if self.host not in (host, "*"):
            return False
        return name.startswith(self.name) if self.pattern == PREFIXED else self.name in (name, "*")


class Right(NamedTuple):
    """An operation on a resource."""

    operation: int
    kind: int
    name: str


class Access(NamedTuple):
    """Entries, credentials and quotas of an image."""

    entries: dict[UUID, Entry]
    salts: dict[tuple[str, int], bytes]
    """of the credentials, by user and mechanism"""
    quotas: dict[tuple[object, str], float]

    def allows(self, user: str, host: str, right: Right) -> bool:
        found = [one for one in self.entries.values() if one.matches(user, host, right.kind, right.name)]
        if any(one.permission == DENY and one.operation in (ALL, right.operation) for one in found):
            return False
        enough = (ALL, right.operation, *_IMPLIED.get(right.operation, ()))
        return any(one.permission == ALLOW and one.operation in enough for one in found)


class Use(NamedTuple):
    """Statement of a response: that one of `rights` was there, or that none of them was."""

    rights: tuple[Right, ...]
    granted: bool
    not_before_s: float = 0.0
    """when what was served came to be: it was looked at, and the right asked for, later"""
    by_controller: bool = False
    """whether the active controller was to decide"""


class History:
    """Every state of the access, and the times at which each process had which image."""

    def __init__(self, now_s: Callable[[], float], host: str) -> None:
        """`host`: the address of all clients."""
        self._now_s = now_s
        self._host = host
        self.states = [Access({}, {}, {})]
        self._offsets = [-1]
        """at which each state begins"""
        self._images: dict[str, tuple[list[float], list[int]]] = {}
        """by process: times, and the states that its images have from then on"""
        self._leaders: tuple[list[float], list[str]] = [], []
        self._began: dict[str, int] = {}
        """by process: the state that was committed when it was started"""
        self.passwords: dict[bytes, str] = {}
        """by the salt that is used with it"""
        self.counted = {"uses": 0, "refusals": 0, "logins": 0, "login_refusals": 0, "throttles": 0}
        """what was judged"""

    # What happens

    @property
    def newest(self) -> Access:
        """Return the committed state."""
        return self.states[-1]

    def learn(self, record: Any, offset: int) -> None:
        """Take a committed record."""
        entries, salts, quotas = self.newest
        match record:
            case AccessControlEntryRecord():
                entries = {**entries, _id(record): _entry(record)}
            case RemoveAccessControlEntryRecord():
                entries = {key: one for key, one in entries.items() if key != _id(record)}
            case UserScramCredentialRecord():
                salts = {**salts, (str(record.name), int(record.mechanism)): bytes(record.salt)}
            case RemoveUserScramCredentialRecord():
                gone = str(record.name), int(record.mechanism)
                salts = {key: one for key, one in salts.items() if key != gone}
            case ClientQuotaRecord():
                parts = tuple((part.entity_type, part.entity_name) for part in record.entity)
                quotas = {key: one for key, one in quotas.items() if key != (parts, record.key)}
                if not record.remove:
                    quotas[parts, str(record.key)] = float(record.value)
            case _:
                return
        self.states.append(Access(entries, salts, quotas))
        self._offsets.append(offset)

    def offset_of(self, state: int) -> int:
        """Return the offset of the record that began a state."""
        return self._offsets[state]

    def has_image(self, run: str, offset: int) -> None:
        """Note that a process has an image from now on."""
        times, states = self._images.setdefault(run, ([], []))
        state = bisect_right(self._offsets, offset) - 1
        if not states or states[-1] != state:
            times.append(self._now_s())
            states.append(state)

    def leads(self, run: str) -> None:
        """Note that a process is the active controller from now on."""
        self._leaders[0].append(self._now_s())
        self._leaders[1].append(run)

    def starts(self, run: str) -> None:
        """Note that a process begins: it must know at least what is committed now."""
        self._began[run] = len(self.states) - 1

    # Verdicts

    def judge(self, run: str, user: str, use: Use, from_s: float) -> None:
        """Check what a response said to a request that was sent at `from_s`. Raises `Violation` (S1, S2)."""
        self.counted["uses" if use.granted else "refusals"] += 1
        from_s = max(from_s, use.not_before_s)
        runs = self._leaders_since(from_s) if use.by_controller else [run]
        what = f"{run} {'lets' if use.granted else 'does not let'} {user} do {use.rights}"
        had = self._had(runs, from_s, what)
        if not any(self._may(state, user, use.rights) is use.granted for state in had):
            said = f"in the images that {', '.join(runs)} had since {from_s:.3f} s it is otherwise"
            raise Violation(f"{'S1' if use.granted else 'S2'}: {what}, and {said}")

    def _may(self, state: int, user: str, rights: Iterable[Right]) -> bool:
        return any(self.states[state].allows(user, self._host, right) for right in rights)

    def logged_in(
        self, run: str, user: str, mechanism: int, password: str, from_s: float, *, accepted: bool
    ) -> None:
        """Check the end of a login that began at `from_s`. Raises `Violation` (S3)."""
        self.counted["logins" if accepted else "login_refusals"] += 1
        what = f"{run} {'accepts' if accepted else 'refuses'} a password of {user}"
        for state in self._had([run], from_s, what):
            salt = self.states[state].salts.get((user, mechanism))
            if (salt is not None and self.passwords.get(salt) == password) is accepted:
                return
        raise Violation(f"S3: {what}, and the images that it had since {from_s:.3f} s say otherwise")

    def throttled(self, run: str, user: str, from_s: float) -> None:
        """Check that a user that was throttled had a quota. Raises `Violation` (S8)."""
        self.counted["throttles"] += 1
        what = f"{run} throttles {user}"
        for state in self._had([run, *self._leaders_since(from_s)], from_s, what):
            if any(parts in ((("user", user),), (("user", None),)) for parts, _ in self.states[state].quotas):
                return
        raise Violation(f"S8: {what}, and no image that it had since {from_s:.3f} s has a quota for that")

    def _had(self, runs: Iterable[str], from_s: float, what: str) -> list[int]:
        """Return the states that processes had since `from_s`, but for those from before their start."""
        had = []
        for run in runs:
            times, states = self._images.get(run, ([], []))
            first, began = max(bisect_left(times, from_s) - 1, 0), self._began.get(run, 0)
            had += [state for state in states[first:] if state >= began]
        if not had:
            raise Violation(f"S5: {what}, and has not what was committed when it started")
        return had

    def _leaders_since(self, from_s: float) -> list[str]:
        times, runs = self._leaders
        return runs[max(bisect_left(times, from_s) - 1, 0) :]


def _id(record: AccessControlEntryRecord | RemoveAccessControlEntryRecord) -> UUID:
    return record.id or UUID(int=0)


def _entry(record: AccessControlEntryRecord) -> Entry:
    return Entry(
        int(record.resource_type),
        str(record.resource_name),
        int(record.pattern_type),
        str(record.principal),
        str(record.host),
        int(record.operation),
        int(record.permission_type),
    )
