"""Passwords: nothing that prints, copies or describes a configuration has one."""

from __future__ import annotations

import pickle
import traceback

import pytest

from service.config.cluster import ClusterConfig
from service.config.describing import describe_broker
from service.config.keys import ConfigType, to_text
from service.config.parsing import parse_value
from service.config.passwords import Password
from service.config.settings import BrokerConfig
from service.config.tables import BROKER_KEYS
from tests.unit.config.refusals import refused

SECRET = "pa$$-geheim-7"
JAAS = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="{SECRET}";'
WITH_SECRETS = {
    "ssl.keystore.password": SECRET,
    "ssl.key.password": SECRET,
    "ssl.truststore.password": SECRET,
    "ssl.keystore.key": SECRET,
    "ssl.keystore.certificate.chain": SECRET,
    "ssl.truststore.certificates": SECRET,
    "sasl.jaas.config": JAAS,
    "delegation.token.secret.key": SECRET,
    "listener.name.plaintext.ssl.key.password": SECRET,
    "listener.name.plaintext.plain.sasl.jaas.config": JAAS,
}


def test_a_password_shows_nothing_of_itself() -> None:
    password = Password(SECRET)
    assert (
        f"{password} {password!r} {[password]} {(password,)!s}" == "[hidden] [hidden] [[hidden]] ([hidden],)"
    )
    assert "%s %r" % (password, password) == "[hidden] [hidden]"  # noqa: UP031
    assert password.reveal() == SECRET
    assert password == Password(SECRET) != Password("other")
    assert len({password, Password(SECRET)}) == 1
    assert password != SECRET
    assert not Password("")


def test_a_password_is_not_written_anywhere_by_pickle() -> None:
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps(Password(SECRET))


def test_a_password_has_no_text_and_is_taken_as_it_stands_but_for_blanks_around_it() -> None:
    key = BROKER_KEYS["ssl.key.password"]
    assert key.type is ConfigType.PASSWORD
    value = parse_value(key, " a,b \\ c ")
    assert isinstance(value, Password)
    assert value.reveal() == "a,b \\ c"
    assert to_text(value) is None


def test_no_setting_of_a_node_shows_a_password() -> None:
    node = BrokerConfig.from_properties(WITH_SECRETS)
    alone = ClusterConfig.from_properties(WITH_SECRETS)
    for text in (repr(node), str(node), repr(alone), *alone.complaints()):
        assert SECRET not in text
        assert "geheim" not in text


def test_a_password_is_described_without_a_value_and_as_sensitive() -> None:
    described = {one.name: one for one in describe_broker(BrokerConfig.from_properties(WITH_SECRETS))}
    for name in WITH_SECRETS:
        one = described[name]
        assert (one.value, one.is_sensitive, one.type) == (None, True, 9), name
        assert one.synonyms
        assert {synonym.value for synonym in one.synonyms} == {None}, name
    assert SECRET not in repr(described)
    sensitive = [name for name, one in described.items() if one.is_sensitive]
    assert sensitive == sorted({*WITH_SECRETS, "firn.http.ssl.key.password"})


def test_no_error_beside_a_password_shows_it() -> None:
    for wrong in (
        "ssl.keystore.pasword",
        "listener.name.other.ssl.key.password",
        "listener.name.plaintext.ssl.key",
    ):
        assert SECRET not in refused({**WITH_SECRETS, wrong: SECRET})
    try:
        BrokerConfig.from_properties({**WITH_SECRETS, "num.partitions": "x"})
    except Exception:
        assert SECRET not in "".join(traceback.format_exc())
