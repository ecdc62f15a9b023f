"""Grammar of `sasl.jaas.config`."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.security.jaas import LoginModule, parse_jaas, read_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def options(text: str) -> dict[str, str]:
    return dict(parse_jaas(f"{PLAIN} required {text};")[0].options)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ('username="alice" password="x;y"', {"username": "alice", "password": "x;y"}),
        ("username='alice' password=plain-word_1$", {"username": "alice", "password": "plain-word_1$"}),
        (r'a="\"\\\n\t\101\7x"', {"a": '"\\\n\tA\x07x'}),
        (r'a="\477"', {"a": "'7"}),
        ('a="1" /* b="2" */ c="3"', {"a": "1", "c": "3"}),
        ('a="1" // b="2"\n c="3"', {"a": "1", "c": "3"}),
        ('a="1" / b="2"\n c="3"', {"a": "1", "c": "3"}),
        ('a="1" a="2"', {"a": "2"}),
        ('a = "1"\n\tb= "2"', {"a": "1", "b": "2"}),
        ('user_bob="geheim" "quoted key"=é', {"user_bob": "geheim", "quoted key": "é"}),
        ("a=x.y", {"a": "x.y"}),
    ],
)
def test_options_are_read_as_java_does(text: str, found: dict[str, str]) -> None:
    assert options(text) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Login module not specified"),
        ("// nothing", "Login module not specified"),
        (f"{PLAIN}", "control flag not specified"),
        (f"{PLAIN};", "control flag is not available"),
        (f"{PLAIN} needed;", "Invalid login module control flag in JAAS"),
        (f"{PLAIN} required", "not terminated by semi-colon"),
        (f'{PLAIN} required a="geheim"', "not terminated by semi-colon"),
        (f"{PLAIN} required a;", "Value not specified for key 1 in"),
        (f"{PLAIN} required a=;", "Value not specified for key 1 in"),
        (f"{PLAIN} required a=123;", "Value not specified for key 1 in"),
        (f"{PLAIN} required a=-x;", "Value not specified for key 1 in"),
        (f'{PLAIN} required a "geheim";', "Value not specified for key 1 in"),
        (f'{PLAIN} required user_a=x user_b=ge"heim geheim";', "Value not specified for key 3 in"),
        (f"{PLAIN} required user_a=x geheim;", "Value not specified for key 2 in"),
        (f"{PLAIN} geheim=x;", "Invalid login module control flag in"),
        (f"{PLAIN} required; {PLAIN} required;", "contains 2 login modules, should be 1 module"),
        ("com.sun.security.auth.module.JndiLoginModule required;", "is not supported"),
        ("com.example.Mine required;", "is not supported"),
    ],
)
def test_values_are_not_repeated_where_kafka_refuses(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        read_jaas(text)
    assert "geheim" not in str(refused.value)


def test_values_are_in_no_repr() -> None:
    assert "geheim" not in repr(read_jaas(f'{PLAIN} Required user_a="geheim";'))
    assert read_jaas(f'{PLAIN} Required a="b";') == LoginModule(PLAIN, "REQUIRED", {"a": "b"})
