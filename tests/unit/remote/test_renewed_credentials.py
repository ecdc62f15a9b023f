"""Credentials that expire, and their providers."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from service.base.clock import ManualClock
from service.base.errors import ConfigError, FirnError
from service.base.threads import SystemThreads
from service.remote.stores.aws_credentials import credential_source
from service.remote.stores.errors import CredentialsMissing, StoreRefused, StoreUnavailable
from service.remote.stores.obstore_store import open_store
from service.remote.stores.renewed_credentials import RenewedCredentials
from service.remote.stores.s3_access import S3Access
from tests.support.world import WORLD

if TYPE_CHECKING:
    from obstore.store import S3Credential

ROLE = "arn:aws:iam::123456789012:role/reader"


class Source:
    """Gives ``key-1``, ``key-2`` …, each for an hour; or raises `failure`."""

    name = "the test"
    is_fixed = False

    def __init__(self, clock: ManualClock, hours: float = 1) -> None:
        self.clock = clock
        self.hours = hours
        self.asked: list[bool] = []
        self.given = 0
        self.failure: FirnError | None = None

    def fetch(self, *, fresh: bool) -> S3Credential:
        self.asked.append(fresh)
        if self.failure is not None:
            raise self.failure
        self.given += 1
        ends = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC) + timedelta(hours=self.hours)
        return {
            "access_key_id": f"key-{self.given}",
            "secret_access_key": "s",
            "token": None,
            "expires_at": ends,
        }


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def source(clock: ManualClock) -> Source:
    return Source(clock)


@pytest.fixture
def held(source: Source, clock: ManualClock) -> RenewedCredentials:
    return RenewedCredentials(source, clock, SystemThreads())


def test_credentials_are_renewed_a_minute_before_they_expire(
    held: RenewedCredentials, clock: ManualClock
) -> None:
    assert [held()["access_key_id"] for _ in range(3)] == ["key-1"] * 3
    clock.advance(3_539_000)
    assert held()["access_key_id"] == "key-1"
    clock.advance(2_000)
    assert held()["access_key_id"] == "key-2"


def test_valid_credentials_are_used_while_renewal_fails(
    held: RenewedCredentials, source: Source, clock: ManualClock
) -> None:
    held()
    source.failure = StoreUnavailable("away")
    clock.advance(3_570_000)
    assert held()["access_key_id"] == "key-1"
    clock.advance(40_000)
    with pytest.raises(StoreUnavailable, match="away"):
        held()
    source.failure = None
    clock.advance(1_000)
    assert held()["access_key_id"] == "key-2"


def test_refused_ones_are_replaced_once_however_many_ask(
    held: RenewedCredentials, source: Source, clock: ManualClock
) -> None:
    used = held()
    clock.advance(5_000)
    threads = [threading.Thread(target=held.renew, args=(used,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.asked == [False, True]
    assert held()["access_key_id"] == "key-2"


def test_the_reason_why_credentials_are_not_renewed_is_reported(
    held: RenewedCredentials, source: Source
) -> None:
    used = held()
    source.failure = StoreRefused("the role is not yours")
    with pytest.raises(StoreRefused, match="not yours"):
        held.renew(used)


def test_a_source_is_asked_at_most_once_a_second(
    held: RenewedCredentials, source: Source, clock: ManualClock
) -> None:
    source.failure = StoreRefused("no")
    for _ in range(10):
        with pytest.raises(StoreRefused):
            held()
        clock.advance(200)
    assert len(source.asked) == 2


def test_a_source_that_gives_the_same_again_is_told_apart(clock: ManualClock) -> None:
    source = credential_source({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, S3Access(), "x")
    assert source is not None
    assert source.is_fixed
    held = RenewedCredentials(source, clock, SystemThreads())
    used = held()
    clock.advance(2_000)
    assert not held.renew(used)


def test_keys_that_are_set_in_the_environment_later_are_found_when_the_old_ones_are_refused(
    clock: ManualClock,
) -> None:
    environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "t"}
    source = credential_source(environ, S3Access(), "x")
    assert source is not None
    held = RenewedCredentials(source, clock, SystemThreads())
    used = held()
    assert used.get("token") == "t"
    environ["AWS_SESSION_TOKEN"] = "u"
    clock.advance(2_000)
    assert held.renew(used)
    assert held().get("token") == "u"
    del environ["AWS_SECRET_ACCESS_KEY"]
    with pytest.raises(StoreRefused, match="both of them"):
        source.fetch(fresh=True)


@pytest.mark.parametrize(
    "given",
    [
        {"profile": ""},
        {"profile": "a\nb"},
        {"role_arn": "reader"},
        {"role_arn": "arn:aws:iam::123:role/x"},
        {"role_arn": ROLE, "external_id": "x"},
        {"role_arn": ROLE, "role_session_name": "a b"},
        {"external_id": "abc"},
        {"provider": "os"},
        {"provider": "os:"},
        {"provider": "os:system('x')"},
        {"provider": "a:b", "profile": "c"},
        {"provider": "a:b", "role_arn": ROLE},
    ],
    ids=str,
)
def test_names_that_will_not_do_are_refused_by_their_option(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"aws\."):
        S3Access(**given)


def test_a_profile_by_name_comes_before_the_environment(tmp_path: Path) -> None:
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "credentials").write_text(
        "[one]\naws_access_key_id=1\naws_secret_access_key=s\n[two]\naws_access_key_id=2\naws_secret_access_key=s\n"
        "[bare]\nregion=x\n"
    )
    environ = {
        "HOME": str(tmp_path),
        "AWS_ACCESS_KEY_ID": "e",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_PROFILE": "one",
    }
    for profile, key in ((None, "e"), ("one", "1"), ("two", "2")):
        source = credential_source(environ, S3Access(profile), "x")
        assert source is not None
        assert source.fetch(fresh=False)["access_key_id"] == key
    with pytest.raises(ConfigError, match=r"aws.profile: no profile 'three'"):
        credential_source(environ, S3Access("three"), "x")
    with pytest.raises(ConfigError, match=r"aws.profile: the profile 'bare' has no credentials"):
        credential_source(environ, S3Access("bare"), "x")


GIVEN: dict[str, Any] = {
    "access_key_id": "a",
    "secret_access_key": "hidden",
    "token": None,
    "expires_at": None,
}


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A module of the user's, with a function in a class."""
    module = SimpleNamespace(giver=SimpleNamespace(credentials=lambda: dict(GIVEN)), number=1)
    monkeypatch.setitem(sys.modules, "my_keys", module)
    return module


def test_a_provider_of_the_users_own_is_asked(provider: SimpleNamespace) -> None:
    source = credential_source({}, S3Access(provider="my_keys:giver.credentials"), "x")
    assert source is not None
    assert source.fetch(fresh=False) == GIVEN
    ends = datetime.now(timezone(timedelta(hours=2)))
    provider.giver.credentials = lambda: {**GIVEN, "token": "t", "expires_at": ends}
    # The callable of the beginning: a module is not looked at twice.
    assert source.fetch(fresh=True)["expires_at"] is None
    again = credential_source({}, S3Access(provider="my_keys:giver.credentials"), "x")
    assert again is not None
    assert again.fetch(fresh=True) == {**GIVEN, "token": "t", "expires_at": ends}


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {**GIVEN, "access_key_id": ""},
        {**GIVEN, "secret_access_key": "hid\nden"},
        {**GIVEN, "token": 7},
        {**GIVEN, "expires_at": datetime(2020, 1, 1)},
        {**GIVEN, "expires_at": "2020"},
        {**GIVEN, "more": "x"},
        {name: value for name, value in GIVEN.items() if name != "expires_at"},
    ],
    ids=str,
)
def test_credentials_of_a_provider_are_validated_and_never_shown(
    provider: SimpleNamespace, given: object
) -> None:
    provider.giver.credentials = lambda: given
    source = credential_source({}, S3Access(provider="my_keys:giver.credentials"), "x")
    assert source is not None
    with pytest.raises(ConfigError, match=r"my_keys:giver\.credentials") as e:
        source.fetch(fresh=False)
    assert "hid" not in str(e.value)


def test_a_provider_that_fails_is_asked_again_and_one_that_is_not_there_is_refused(
    provider: SimpleNamespace,
) -> None:
    def fails() -> None:
        raise OSError("its vault is away")

    provider.giver.credentials = fails
    source = credential_source({}, S3Access(provider="my_keys:giver.credentials"), "x")
    assert source is not None
    with pytest.raises(StoreUnavailable, match="OSError: its vault is away"):
        source.fetch(fresh=False)
    for name in ("nowhere:f", "my_keys:nothing", "my_keys:number"):
        with pytest.raises(ConfigError, match=rf"aws.credentials.provider {name}"):
            credential_source({}, S3Access(provider=name), "x")


def test_without_any_credentials_and_a_metadata_service_that_may_not_be_asked_it_is_said_at_once() -> None:
    store = open_store(
        "s3://b/p",
        world=replace(WORLD, environ={"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}),
    )
    with pytest.raises(StoreRefused, match="there are no AWS credentials: set AWS_ACCESS_KEY_ID") as e:
        store.get("k", max_size=1)
    assert not isinstance(e.value, CredentialsMissing)


def test_access_is_for_s3_alone_and_no_url_holds_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="s3:// alone"):
        open_store(tmp_path.as_uri(), access=S3Access(profile="x"), world=WORLD)
    for url, endpoint in (("s3://key:hidden@b/p", None), ("s3://b/p", "http://key:hidden@host")):
        with pytest.raises(ConfigError, match="do not belong in a URL") as e:
            open_store(url, endpoint=endpoint, world=replace(WORLD, environ={}))
        assert "hidden" not in str(e.value)
