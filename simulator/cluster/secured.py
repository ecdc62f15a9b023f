"""World whose listeners are SASL_SSL over the fake seal, and whose nodes ask an authorizer.

Nodes log in at each other by PLAIN or SCRAM. Clients of the acts that every cluster has are the user `admin`;
those of `user_acts` are users whose rights and passwords `access_acts` changes, judged by `access`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable
from random import Random
from typing import Final, NamedTuple
from uuid import UUID

from service.metadata.access_records import scram_record
from service.metadata.records import UserScramCredentialRecord
from service.security.operations import AclOperation, AclResourceType
from service.security.plain import PLAIN
from service.security.principal import USER, Principal
from service.security.scram import credential_from, salted_password
from service.security.session import Session
from simulator.client import Client, Streams
from simulator.cluster import sealed
from simulator.cluster.access import History, Right
from simulator.cluster.world import ClusterWorld
from simulator.machine import Machine, Run
from simulator.model import Violation
from simulator.power_loss import Platter

SECRET: Final = "hush-"
"""Beginning of every password: no log line may have it."""
HOST: Final = "10.0.0.1"
"""Address of all clients."""
SCRAM: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
ITERATIONS: Final = 4096
USERS: Final = ("alice", "bob", "paul")
"""paul logs in by PLAIN, with a password that never changes."""
PAUL: Final = (USERS[2], f"{SECRET}paul")
_ADMIN: Final = ("admin", PLAIN, f"{SECRET}admin")
_NODE: Final = ("node", f"{SECRET}node")
_RENEWED_AFTER: Final = 0.8
_MODULES: Final = "org.apache.kafka.common.security"
_OFTEN_DEBUG: Final = 8
"""One history in so many has its nodes log everything, and the log is searched for passwords."""


class Account(NamedTuple):
    """Passwords that a user was given, in order: by which it may log in, the metadata says."""

    user: str
    mechanism: str
    passwords: list[str]


class SecuredWorld(ClusterWorld):
    """`ClusterWorld` with users. Made and used on its own loop."""

    brokers_apart = True

    def __init__(self, seed: int, *, nodes: int = 3, tiered: bool = False, keep_all: bool = False) -> None:
        chance = Random(seed ^ 0x5EC)
        self._chosen = _drawn(chance)
        salt = chance.randbytes(16)
        self.credentials = tuple(_credential(name, _NODE[0], _NODE[1], salt) for name in SCRAM)
        super().__init__(seed, nodes=nodes, tiered=tiered, keep_all=keep_all)
        self.chance = chance
        self.access = History(lambda: self.loop.now_s, HOST)
        self.access.passwords[salt] = _NODE[1]
        self.oracle.on_record = self.access.learn
        self.oracle.on_image = self.access.has_image
        self.oracle.on_leader = self.access.leads
        self.accounts = [
            *(Account(user, name, []) for user in USERS[:2] for name in SCRAM),
            Account(PAUL[0], PLAIN, [PAUL[1]]),
        ]
        self.pasts: dict[str, Platter] = {}
        """by machine: a copy of its disk"""
        self._leaks: list[str] = []
        sealed.use_fake_seals(self.loop, Random(chance.getrandbits(64)))
        Client.door = self._open_as_admin
        self._watch_logs(everything=not chance.randrange(_OFTEN_DEBUG))
        self.loop.after_turn = self._look

    def _drawn_settings(self, random: Random) -> dict[str, str]:
        return {**super()._drawn_settings(random), **self._chosen}

    def own_settings(self, settings: dict[str, str]) -> dict[str, str]:
        return {**settings, "listeners": settings["listeners"].replace("PLAINTEXT:", "CLIENTS:")}

    async def _open_as_admin(self, address: tuple[str, int]) -> Streams:
        began_s = self.loop.now_s
        try:
            made = await sealed.log_in(address, sealed.credentials(self.chance, *_ADMIN))
        except sealed.LoginRefused as e:
            raise Violation(f"S3: {address[0]} refuses the admin, asked at {began_s:.3f} s: {e}") from e
        if lifetime_ms := made.session.lifetime_ms:
            made.stream.until_s = self.loop.now_s + lifetime_ms / 1000 * _RENEWED_AFTER
        return made.stream.reader, made.stream

    def start(self, machine: Machine) -> Run:
        run = super().start(machine)
        self.access.starts(run.name)
        return run

    # What there is

    def topic_name(self, topic_id: UUID | None) -> str | None:
        """Return the name of a topic that ever was."""
        return next((name for name, known in self.oracle.names.items() if known == topic_id), None)

    def newest_of(self, values: Iterable[bytes]) -> float:
        """Return when the last of these values was made."""
        return max((self.born_s[int(one[1 : one.index(b".")]) - 1] for one in values), default=0.0)

    def who(self, random: Random) -> tuple[str, str, str]:
        """Return a user, a mechanism and a password: the last one given, an earlier one or a wrong one."""
        user, mechanism, passwords = random.choice([one for one in self.accounts if one.passwords])
        drawn = random.random()
        password = passwords[-1] if drawn < 0.85 else random.choice(passwords)
        if drawn > 0.95 and mechanism != PLAIN:
            password = f"{SECRET}wrong"
        return user, mechanism, password

    # Promises of all the time, and of the end

    def _watch_logs(self, *, everything: bool) -> None:
        logs = logging.getLogger("service")
        logs.addHandler(_Search(self._leaks))
        if everything:
            logs.setLevel(logging.DEBUG)

    def _look(self) -> None:
        self.oracle.look(self.machines)
        if self._leaks:
            raise Violation(f"S6: a log line has a password: {self._leaks[0]}")

    def all_say_the_same(self) -> None:
        """Check that every node decides as the committed metadata says. Raises `Violation` (S7)."""
        newest = self.access.newest
        rights = [
            Right(int(operation), int(kind), name)
            for kind, names in (
                (AclResourceType.TOPIC, [*self.oracle.names, "no-such"]),
                (AclResourceType.GROUP, ["g1", "g2"]),
                (AclResourceType.CLUSTER, ["kafka-cluster"]),
            )
            for name in names
            for operation in (3, 4, 5, 7, 8, 10, 11)
        ]
        for machine in self.machines:
            run = machine.run
            assert run is not None
            assert run.node is not None
            authorizer = run.node.parts.authorizer
            assert authorizer is not None
            for user in USERS:
                session = _session(user)
                for right in rights:
                    operation, kind = AclOperation(right.operation), AclResourceType(right.kind)
                    found = authorizer.allows(session, operation, kind, right.name, quiet=True)
                    if found is not newest.allows(user, HOST, right):
                        raise Violation(f"S7: {run.name} says {found} of {user} and {right}: it is not so")
        if self.tiered:
            self._look_through_the_bucket()

    def _look_through_the_bucket(self) -> None:
        """S6: copies of the metadata are without credentials."""
        salts = [salt for state in self.access.states for salt in state.salts.values()]
        for key, item in self.bucket.objects.items():
            if any(salt in item.data for salt in salts):
                raise Violation(f"S6: {key} in the bucket has a credential")


class _Search(logging.Handler):
    """Handler that looks for passwords in what nodes log."""

    def __init__(self, leaks: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._leaks = leaks

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info is not None:
            text += "".join(traceback.format_exception(*record.exc_info))
        if SECRET in text:
            self._leaks.append(text)


def _session(user: str) -> Session:
    return Session(Principal(USER, user), HOST, "CLIENTS", "SASL_SSL")


def _credential(mechanism: str, user: str, password: str, salt: bytes) -> UserScramCredentialRecord:
    salted = salted_password(mechanism, password.encode(), salt, ITERATIONS)
    return scram_record(user, SCRAM[mechanism], credential_from(mechanism, salted, salt, ITERATIONS))


def _drawn(random: Random) -> dict[str, str]:
    """Draw the settings of all nodes."""
    user, password = _NODE
    own = f'username="{user}" password="{password}"'
    known = " ".join(f'user_{name}="{word}"' for name, word in (_NODE, _ADMIN[::2], PAUL))
    plain, scram = (f"{_MODULES}.{name}LoginModule required" for name in ("plain.Plain", "scram.Scram"))
    jaas = "sasl.jaas.config"
    return {
        "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:SASL_SSL",
        "inter.broker.listener.name": "CLIENTS",
        "sasl.enabled.mechanisms": ",".join((PLAIN, *SCRAM)),
        "listener.name.controller.sasl.enabled.mechanisms": PLAIN,
        "sasl.mechanism.inter.broker.protocol": random.choice((PLAIN, *SCRAM)),
        "sasl.mechanism.controller.protocol": PLAIN,
        f"listener.name.clients.plain.{jaas}": f"{plain} {own} {known};",
        f"listener.name.controller.plain.{jaas}": f"{plain} {own} {known};",
        **{f"listener.name.clients.{name.lower()}.{jaas}": f"{scram} {own};" for name in SCRAM},
        "listener.name.clients.connections.max.reauth.ms": random.choice(("0", "4000", "10000")),
        "listener.name.controller.connections.max.reauth.ms": random.choice(("0", "4000", "10000")),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{_ADMIN[0]};User:{user}",
        "offsets.topic.replication.factor": "3",
        # Who was away for a while, or comes back with an old log, gets a snapshot.
        "metadata.log.max.record.bytes.between.snapshots": random.choice(("1500", "20000")),
        "metadata.max.retention.bytes": "1",
    }
