"""Steps of the question about some resource of a type: prefixes count, not names alone."""

from __future__ import annotations

from uuid import UUID

from service.security.acls import AclEntry, AclSet
from service.security.operations import AclOperation, AclPermissionType, AclResourceType, PatternType

TOPIC, WRITE = AclResourceType.TOPIC, AclOperation.WRITE
NAMES, PREFIXES = 1000, 249


def test_a_name_with_many_denied_prefixes_to_look_at_counts_as_many_steps() -> None:
    denied = [
        AclEntry(
            TOPIC, ("a" if size == PREFIXES else "b") * size, PatternType.PREFIXED, "User:u", "*",
            WRITE, AclPermissionType.DENY,
        )
        for size in range(1, PREFIXES + 1)
    ]  # fmt: skip
    allowed = [
        AclEntry(
            TOPIC, "a" * PREFIXES + str(number), PatternType.LITERAL, "User:u", "*",
            WRITE, AclPermissionType.ALLOW,
        )
        for number in range(NAMES)
    ]  # fmt: skip
    made = {UUID(int=number): entry for number, entry in enumerate([*denied, *allowed], 1)}
    steps = AclSet.EMPTY.with_entries(made, ()).allows_any(TOPIC, WRITE, "User:u", ("10.0.0.1",))
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer = end.value
            break
        count += 1
    assert answer is False
    assert count >= NAMES // 2  # 249 prefixes a name: two names are more than a step's work
