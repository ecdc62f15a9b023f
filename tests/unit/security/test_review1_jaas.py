"""No error of sasl.jaas.config repeats a piece of a password that was quoted wrongly."""

from __future__ import annotations

import pytest

from service.base.errors import ConfigError
from service.security.jaas import read_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "


@pytest.mark.parametrize(
    "text",
    [
        PLAIN + 'username="a" password=hunter two-is-secret;',
        PLAIN + 'username="a" password="se"two-is-secret";',
        PLAIN + 'username="a" password=x;two-is-secret required;',
        PLAIN + 'username="a" password=x;y two-is-secret;',
        PLAIN + "two-is-secret;",
    ],
)
def test_no_piece_of_a_password_is_told(text: str) -> None:
    with pytest.raises(ConfigError) as found:
        read_jaas(text)
    assert "two-is-secret" not in str(found.value)
