"""Value of `firn format --add-scram`, in the grammar of Kafka's ``ScramParser``."""

from __future__ import annotations

import base64

import pytest

from service.base.errors import ConfigError
from service.security.scram import credential_from, salted_password
from service.security.scram_argument import ScramArgument, parse_scram

MECHANISM = "SCRAM-SHA-256"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[name=alice,password=geheim]", ("alice", "geheim", None, None, 4096)),
        ('[name="al ice",password="ge=heim",iterations=16384]', ("al ice", "ge=heim", None, None, 16384)),
        ("[name=alice,password=geheim,salt=c2FsdA==]", ("alice", "geheim", None, b"salt", 4096)),
        ("[name=alice,saltedpassword=YWJj,salt=c2FsdA==,]", ("alice", None, b"abc", b"salt", 4096)),
        ('[name="alice,password=geheim]', ('"alice', "geheim", None, None, 4096)),
    ],
)
def test_users_are_read_as_kafka_reads_them(text: str, found: tuple[object, ...]) -> None:
    assert parse_scram(f" {MECHANISM}={text} ") == ScramArgument(MECHANISM, *found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("SCRAM-SHA-256", "Failed to find equals sign in SCRAM argument"),
        ("SCRAM-SHA-1=[name=a,password=geheim]", "The add-scram mechanism SCRAM-SHA-1 is not supported"),
        (f"{MECHANISM}=name=a,password=geheim]", r"start with \["),
        (f"{MECHANISM}=[name=a,password=geheim", r"end with \]"),
        (f"{MECHANISM}=[password=geheim]", "You must supply 'name'"),
        (f"{MECHANISM}=[name=,password=geheim]", "You must supply 'name'"),
        (f"{MECHANISM}=[name=a]", "one of 'password' or 'saltedpassword'"),
        (f"{MECHANISM}=[name=a,password=]", "is empty"),
        (f"{MECHANISM}=[name=a,saltedpassword=YWJj]", "You must supply 'salt'"),
        (f"{MECHANISM}=[name=a,password=geheim,saltedpassword=YWJj,salt=YWJj]", "one of them"),
        (f"{MECHANISM}=[name=a,saltedpassword=?,salt=YWJj]", "decode given saltedPassword"),
        (f"{MECHANISM}=[name=a,password=geheim,salt=?]", "decode given salt"),
        (f"{MECHANISM}=[name=a,password=geheim,iterations=4095]", "must be >= 4096"),
        (f"{MECHANISM}=[name=a,password=geheim,iterations=16385]", "must be <= 16384"),
        (f"{MECHANISM}=[name=a,password=geheim,iterations=many]", "parse iterations count: many"),
        (f"{MECHANISM}=[name=a,password=geheim,other=1]", "Unknown SCRAM configurations: other"),
        (f"{MECHANISM}=[name=a,,password=geheim]", "No equals sign found"),
        (f"{MECHANISM}=[geheim,name=a]", "No equals sign found"),
    ],
)
def test_everything_else_is_refused_without_the_password(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        parse_scram(text)
    assert "geheim" not in str(refused.value)


def test_keys_come_of_the_password_or_of_the_salted_one() -> None:
    salted = salted_password(MECHANISM, b"geheim", b"salt", 4096)
    wanted = credential_from(MECHANISM, salted, b"salt", 4096)
    given = base64.b64encode(salted).decode()
    for text in ("password=geheim", f"saltedpassword={given},salt=c2FsdA=="):
        found = parse_scram(f"{MECHANISM}=[name=a,{text}]").credential(lambda: b"salt")
        assert found == wanted


def test_a_password_is_in_no_repr() -> None:
    assert "geheim" not in repr(parse_scram(f"{MECHANISM}=[name=a,password=geheim]"))
