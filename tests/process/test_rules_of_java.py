"""Kafka's StandardAuthorizer, the Java class itself, gives the answers of ours to random questions."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from service.base.steps import at_once
from service.security.acls import AclEntry, AclSet
from service.security.audit import Audit
from service.security.authorizer import Authorizer
from service.security.operations import AclOperation, AclResourceType
from service.security.principal import Principal
from service.security.session import Session
from tests.support.acl_rules import HOSTS, NAMES, OPERATIONS, PRINCIPALS, TYPES, random_entry
from tests.support.java_clients import java
from tests.support.requirements import need_kafka_tools

pytestmark = pytest.mark.java
QUESTIONS = 10_000
SETS = 100


def test_ten_thousand_questions_have_the_answers_of_java(tmp_path: Path) -> None:
    need_kafka_tools()
    random = Random(431)
    lines: list[str] = []
    ours: list[bool] = []
    for _ in range(SETS):
        default = random.random() < 0.3
        entries = list(dict.fromkeys(random_entry(random) for _ in range(random.randrange(120))))
        lines.append(f"new\t{str(default).lower()}")
        lines += ["\t".join(map(str, ("acl", *one))) for one in entries]
        lines.append("load")
        authorizer = authorizer_of(entries, allow_everyone=default)
        for _ in range(QUESTIONS // SETS // 2):
            line, answer = question(random, authorizer)
            lines += line
            ours += answer
    program = java("Rules", log=tmp_path / "log")
    said, _ = program.communicate("\n".join(lines) + "\n", timeout=120)
    assert program.returncode == 0, (tmp_path / "log").read_text()
    assert len(ours) == QUESTIONS
    assert 0.1 < sum(ours) / len(ours) < 0.9
    theirs = [one == "1" for one in said.strip()]
    asked = [line for line in lines if line.startswith(("ask", "some"))]
    assert [one for one, a, b in zip(asked, ours, theirs, strict=True) if a != b] == []


def authorizer_of(entries: list[AclEntry], *, allow_everyone: bool) -> Authorizer:
    acls = AclSet.EMPTY.with_entries({UUID(int=n): one for n, one in enumerate(entries)}, ())
    audit = Audit(later=lambda seconds, call: None, api_name=str)
    return Authorizer(
        lambda: acls, audit, super_users=frozenset(), allow_everyone=allow_everyone, now=lambda: 0.0
    )


def question(random: Random, authorizer: Authorizer) -> tuple[list[str], list[bool]]:
    """The question about one resource, and that about some, as lines; and our answers."""
    # Java's class fails on a client that is called like the entries for everybody.
    kind, _, name = random.choice([one for one in PRINCIPALS if one != "User:*"]).partition(":")
    host = random.choice([one for one in HOSTS if one != "*"])
    operation, resource = AclOperation(random.choice(OPERATIONS)), AclResourceType(random.choice(TYPES))
    # Java's ResourcePattern takes no empty name; no request that is answered has one.
    on = random.choice([one for one in NAMES if one])
    session = Session(Principal(kind, name), host, "L", "PLAINTEXT")
    start = f"{kind}\t{name}\t{host}\t{int(operation)}\t{int(resource)}"
    answers = [
        authorizer.allows(session, operation, resource, on),
        at_once(authorizer.allows_any(session, operation, resource)),
    ]
    return [f"ask\t{start}\t{on}", f"some\t{start}"], answers
