"""Clients × protocols × mechanisms × what goes wrong: what each is told by Firn, and by Apache Kafka.

``python -m tests.judges.matrix`` prints the table, and the rows that differ last.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.judges.clusters import SCRAM, Plan, SecuredCluster
from tests.judges.matrix_clients import CLIENTS, Confluent, Profile
from tests.support.certificates import Authority
from tests.support.issuers import ALLOWED, key_file, settings_of, token_of
from tests.support.processes import wait_until
from tests.support.quorums import Program

USERS: Final = {"alice": "secret", "bob": "pencil"}
"""alice may everything on what is open, bob nothing but to see what is half open."""
_PLAN: Final = Plan(
    plain=USERS,
    scram=[(one, name, word) for one in SCRAM for name, word in USERS.items()],
    brokers=1,
    listeners={
        "OAUTH": "SASL_SSL",
        "MTLS": "SSL",
        "EXPIRED": "SSL",
        "ELSEWHERE": "SSL",
        "ONLY_PLAIN": "SASL_PLAINTEXT",
    },
    settings={
        "allow.everyone.if.no.acl.found": "false",
        "super.users": "User:admin;User:ANONYMOUS",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
        "listener.name.mtls.ssl.client.auth": "required",
        "listener.name.expired.ssl.keystore.type": "PEM",
        "listener.name.expired.ssl.keystore.location": "{folder}/expired.pem",
        "listener.name.elsewhere.ssl.keystore.type": "PEM",
        "listener.name.elsewhere.ssl.keystore.location": "{folder}/elsewhere.pem",
        "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
        **settings_of("file://{folder}/keys.json", "oauth"),
        ALLOWED: "file://{folder}/keys.json",
        "listener.name.only_plain.sasl.enabled.mechanisms": "PLAIN",
    },
)
_TOPICS: Final = ("open", "half", "closed")
_GROUPS: Final = ("open", "closed")
_ON: Final = {
    "write read subscribe": _TOPICS,
    "write": ("absent",),
    "join commit group offsets delete_group": _GROUPS,
    "configs configure grow trim ends delete": ("half", "closed"),
    "create": ("new",),
    "broker_configs": ("1",),
    "grant": ("closed",),
    "add_user": ("mallory",),
    "users": ("bob",),
    "topics groups acls": ("",),
}
ACTS: Final = [(act, name) for acts, names in _ON.items() for act in acts.split() for name in names]
"""What bob tries."""
_BY_CERTIFICATE: Final = (("write", "open"), ("write", "half"), ("read", "half"), ("join", "closed"))
_TOKENS: Final = {
    "": partial(token_of, "alice"),
    ", expired token": partial(token_of, "alice", life_s=-120),
    ", token for another audience": partial(token_of, "alice", aud="elsewhere"),
    ", token of another issuer": partial(token_of, "alice", iss="https://elsewhere.test"),
    ", token with an unknown key": partial(token_of, "alice", kid="two"),
    ", no token at all": partial(str, "no.token.atall"),
}


class Row(NamedTuple):
    """One thing that one client does, in words."""

    situation: str
    client: str

    def __str__(self) -> str:
        return f"{self.situation} | {self.client}"


class Site:
    """A cluster with topics, groups and rights; and certificates, right and wrong."""

    def __init__(self, folder: Path, program: Program) -> None:
        self.cluster = SecuredCluster(folder, program, _PLAN)
        self.folder, self.ca = folder, self.cluster.ca
        other = Authority("Other CA")
        self.other = other.write(folder / "other.pem")
        key_file(folder, "one")
        self.ca.issue(kind="rsa", days=-0.1).write(folder / "expired.pem")
        self.ca.issue(kind="rsa", hosts=("elsewhere.example",)).write(folder / "elsewhere.pem")
        self.own = {
            "bob": self._own(self.ca.issue("bob", hosts=()), "bob"),
            "alice": self._own(self.ca.issue("alice", hosts=()), "alice"),
            "expired": self._own(self.ca.issue("alice", hosts=(), days=-0.1), "old"),
            "not yet valid": self._own(self.ca.issue("alice", hosts=(), starts_in_days=1), "new"),
            "of another CA": self._own(other.issue("alice", hosts=()), "stranger"),
        }

    def _own(self, issued: Any, name: str) -> Path:
        path = self.folder / f"{name}-client.pem"
        issued.write(path)
        return path

    def prepare(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap("PLAINTEXT"), "log_level": 0})
        for made in admin.create_topics([NewTopic(one, 1, 1) for one in ("open", "half", "closed")]).values():
            made.result(30)
        named = [("alice", ResourceType.TOPIC, "open", AclOperation.ALL)]
        named += [("alice", ResourceType.GROUP, "open", AclOperation.ALL)]
        named += [("bob", ResourceType.TOPIC, "open", AclOperation.ALL)]
        named += [("bob", ResourceType.GROUP, "open", AclOperation.ALL)]
        named += [("bob", ResourceType.TOPIC, "half", AclOperation.DESCRIBE)]
        bindings = [
            AclBinding(
                kind, name, ResourcePatternType.LITERAL, f"User:{who}", "*", what, AclPermissionType.ALLOW
            )
            for who, kind, name, what in named
        ]
        for added in admin.create_acls(bindings).values():
            added.result(30)
        alice = Confluent(self.profile("SASL_PLAINTEXT", "PLAIN", "alice", "secret"))
        for topic in ("open", "half", "closed"):
            Confluent(self.profile("PLAINTEXT")).write(topic)
        wait_until("alice's rights to be known", lambda: alice.ask("write", "open") == "ok")
        alice.ask("join", "open")

    def profile(
        self, listener: str, mechanism: str = "", user: str = "", password: str = "", **more: Any
    ) -> Profile:
        given = {
            "address": self.cluster.bootstrap(listener),
            "protocol": self.cluster.protocols[listener],
            "trusted": self.cluster.ca_pem,
        }
        return Profile(**{**given, **more}, mechanism=mechanism, user=user, password=password)

    def connections(self) -> Iterator[tuple[str, Profile]]:
        """Ways to connect, right and wrong; alice writes and reads a record on each."""
        for listener in ("SASL_PLAINTEXT", "SASL_SSL"):
            for mechanism in ("PLAIN", *SCRAM):
                login = f"{listener} {mechanism}"
                yield login, self.profile(listener, mechanism, "alice", "secret")
                yield f"{login}, wrong password", self.profile(listener, mechanism, "alice", "wrong")
                yield f"{login}, unknown user", self.profile(listener, mechanism, "nobody", "secret")
        alice = ("PLAIN", "alice", "secret")
        yield "SASL_SSL, wrong CA", self.profile("SASL_SSL", *alice, trusted=self.other)
        for words, token in _TOKENS.items():
            yield f"SASL_SSL OAUTHBEARER{words}", self.profile("OAUTH", token=token())
        yield "OAUTHBEARER not enabled", self.profile("SASL_SSL", token=_TOKENS[""]())
        for mechanism in SCRAM:
            yield f"{mechanism} not enabled", self.profile("ONLY_PLAIN", mechanism, "alice", "secret")
        yield "SSL, nobody known", self.profile("SSL")
        yield "SSL, wrong CA", self.profile("SSL", trusted=self.other)
        yield "SSL, server's certificate expired", self.profile("EXPIRED")
        yield "SSL, server's certificate for another name", self.profile("ELSEWHERE")
        yield "mTLS", self.profile("MTLS", own=self.own["alice"])
        for kind in ("expired", "not yet valid", "of another CA"):
            yield f"mTLS, client's certificate {kind}", self.profile("MTLS", own=self.own[kind])
        yield "mTLS, without a certificate", self.profile("MTLS")
        yield "mTLS, wrong CA", self.profile("MTLS", own=self.own["alice"], trusted=self.other)
        yield "PLAINTEXT to SSL", self.profile("SSL", protocol="PLAINTEXT")
        yield "SSL to PLAINTEXT", self.profile("PLAINTEXT", protocol="SSL")
        yield "PLAINTEXT to SASL_PLAINTEXT", self.profile("SASL_PLAINTEXT", protocol="PLAINTEXT")
        yield "SASL_PLAINTEXT to PLAINTEXT", self.profile("PLAINTEXT", *alice, protocol="SASL_PLAINTEXT")
        yield "SSL to SASL_SSL", self.profile("SASL_SSL", protocol="SSL")

    def ask_all(self, say: Any = print) -> dict[Row, str]:
        found: dict[Row, str] = {}

        def ask(situation: str, kind: Any, profile: Profile, act: str, name: str) -> None:
            if told := kind(profile).ask(act, name):
                found[Row(situation, kind.name)] = told
                say(f"{situation} | {kind.name} | {told}")

        for situation, profile in self.connections():
            for kind in CLIENTS:
                ask(situation, kind, profile, "write", "open")
        bob = self.profile("SASL_SSL", SCRAM[1], "bob", "pencil")
        by_certificate = self.profile("MTLS", own=self.own["bob"])
        for act, name in ACTS:
            for kind in CLIENTS:
                if hasattr(kind, act):
                    ask(f"bob: {act} {name}".strip(), kind, bob, act, name)
                if (act, name) in _BY_CERTIFICATE:
                    ask(f"bob by certificate: {act} {name}", kind, by_certificate, act, name)
        return found


DIFFERS: Final = {
    "PLAINTEXT to SSL": "Apache Kafka sends an alert before it closes, which a client may take for a frame",
    "bob: grant": "Apache Kafka's words are the request as Java prints it",
    "bob: acls": "Apache Kafka's words are the request as Java prints it",
    "bob: add_user": "Apache Kafka's words are the request as Java prints it",
}
"""Rows whose code alone is compared, and why."""


def differences(theirs: dict[Row, str], ours: dict[Row, str]) -> list[Row]:
    """Rows in which Firn tells something else than Apache Kafka."""

    def are_alike(row: Row, one: str, other: str) -> bool:
        if row.situation.startswith(tuple(DIFFERS)):
            return one.partition(":")[0] == other.partition(":")[0]
        (first, _, why), (second, _, other_why) = one.partition(" / "), other.partition(" / ")
        return first == second and (why == other_why or not why or not other_why)

    return [row for row, told in theirs.items() if not are_alike(row, told, ours.get(row, ""))]


def told_by(program: Program, folder: Path, say: Any = print) -> dict[Row, str]:
    site = Site(folder, program)
    with site.cluster.start():
        site.prepare()
        return site.ask_all(say)


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="firn-matrix-"))
    print(f"logs in {folder}")
    found = {program: told_by(program, folder / program.value) for program in (Program.KAFKA, Program.FIRN)}
    differ = differences(found[Program.KAFKA], found[Program.FIRN])
    for row in differ:
        print(f"DIFFERS {row}")
        for program, told in found.items():
            print(f"  {program.value}: {told.get(row)}")
    print(f"{len(found[Program.KAFKA])} rows, {len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
