"""A real server behind a proxy that takes it away, throttles, and refuses credentials."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.remote.stores.errors import CredentialsExpired, ObjectNotFound, StoreRefused, StoreUnavailable
from service.remote.stores.obstore_store import open_store
from service.remote.stores.retrying_store import RetryingStore, open_retrying_store
from service.remote.stores.s3_access import S3Access
from service.remote.stores.store import ObjectStore
from tests.support.faults import TOKEN, Fault, FaultProxy, Seen, fault_proxy
from tests.support.stores import ACCESS, SECRET, s3_client
from tests.support.world import WORLD

SERVERS = ["moto", pytest.param("versitygw", marks=pytest.mark.versitygw)]
KEYS = "aws_access_key_id = {}\naws_secret_access_key = {}\n"
ROLE = "arn:aws:iam::123456789012:role/reader"


@pytest.fixture
def proxy(moto_contract_endpoint: str) -> Iterator[FaultProxy]:
    with fault_proxy(moto_contract_endpoint) as found:
        yield found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without credentials but what a test puts there; no environment that has some."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


def bucket_of(endpoint: str, name: str) -> str:
    s3_client(endpoint).create_bucket(Bucket=name)
    s3_client(endpoint).put_object(Bucket=name, Key="p/k", Body=b"0123456789")
    return f"s3://{name}/p"


READS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("k", max_size=10),
    "range": lambda store: bytes(store.get_range("k", 2, 3)),
    "suffix": lambda store: store.get_suffix("k", 3),
    "head": lambda store: store.head("k").size,
    "put": lambda store: store.put("k", b"0123456789"),
    "list": lambda store: [info.key for info in store.list("")],
}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("fault", [Fault.REFUSE, Fault.SLOW_DOWN, Fault.FAIL], ids=lambda fault: fault.name)
def test_each_call_waits_until_the_store_is_back(
    server: str, fault: Fault, home: Path, request: pytest.FixtureRequest
) -> None:
    endpoint = request.getfixturevalue(f"{server}_contract_endpoint")
    url = bucket_of(endpoint, f"away-{fault.name.lower().replace('_', '-')}")
    (home / "credentials").write_text("[default]\n" + KEYS.format(ACCESS, SECRET))
    with fault_proxy(endpoint) as proxy:
        store = open_retrying_store(url, endpoint=proxy.endpoint, timeout_s=60, world=WORLD)
        wanted = {name: call(store) for name, call in READS.items()}
        proxy.mode = fault
        found: dict[str, object] = {}
        threads = [
            threading.Thread(target=lambda name=name, call=call: found.update({name: call(store)}))
            for name, call in READS.items()
        ]
        for thread in threads:
            thread.start()
        # All six once, and some again; a store that throttles is asked less.
        while proxy.failed < (4 if fault is Fault.SLOW_DOWN else 9):
            time.sleep(0.05)
        assert not found
        proxy.mode = Fault.PASS
        for thread in threads:
            thread.join()
        assert found == wanted


def test_a_store_that_stays_away_is_given_up_in_time_with_one_line(proxy: FaultProxy, home: Path) -> None:
    (home / "credentials").write_text("[default]\n" + KEYS.format(ACCESS, SECRET))
    store = open_retrying_store("s3://any/p", endpoint=proxy.endpoint, timeout_s=3, world=WORLD)
    proxy.mode = Fault.REFUSE
    begun = time.monotonic()
    with pytest.raises(
        StoreUnavailable, match=r"no answer \(connection closed\) \(given up after [2-4] tries in \d+ s\)"
    ) as e:
        store.get_range("k", 0, 3)
    assert 3 <= time.monotonic() - begun < 15
    assert "\n" not in str(e.value)
    # A range that gets no answer is not looked into with a HEAD.
    assert {seen.method for seen in proxy.seen} == {"GET"}


def expired_unless(signer: str) -> Callable[[Seen], Fault]:
    return lambda seen: Fault.PASS if seen.signer == signer else Fault.EXPIRED


@pytest.mark.parametrize("name", ["get", "head", "put"])
def test_expired_credentials_are_read_again(
    name: str, proxy: FaultProxy, moto_contract_endpoint: str, home: Path
) -> None:
    url = bucket_of(moto_contract_endpoint, "expiring")
    (home / "credentials").write_text("[work]\n" + KEYS.format("OLDKEY", "x"))
    store = open_retrying_store(
        url, endpoint=proxy.endpoint, access=S3Access(profile="work"), timeout_s=60, world=WORLD
    )
    call = READS[name]
    wanted = call(store)
    proxy.plan = expired_unless("NEWKEY")
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(call(store)))
    thread.start()
    while proxy.failed < 2:
        time.sleep(0.02)
    assert not answers
    (home / "credentials").write_text("[work]\n" + KEYS.format("NEWKEY", "y"))
    thread.join()
    assert answers == [wanted]


def test_without_newer_credentials_it_is_said_in_one_line_and_no_secret(
    proxy: FaultProxy, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ENVKEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    proxy.mode = Fault.EXPIRED
    store = open_retrying_store("s3://any/p", endpoint=proxy.endpoint, timeout_s=60, world=WORLD)
    with pytest.raises(StoreRefused, match=r"have expired .*there are no newer ones in the environment") as e:
        store.get("k", max_size=10)
    assert not any(secret in str(e.value) for secret in ("hidden", TOKEN, "\n"))
    assert len(proxy.seen) == 1


def test_a_store_without_patience_has_the_newer_credentials_at_the_next_call(
    proxy: FaultProxy, moto_contract_endpoint: str, home: Path
) -> None:
    url = bucket_of(moto_contract_endpoint, "broker")
    (home / "credentials").write_text("[default]\n" + KEYS.format("OLDKEY", "x"))
    store = open_store(url, endpoint=proxy.endpoint, world=WORLD)
    store.get("k", max_size=10)
    (home / "credentials").write_text("[default]\n" + KEYS.format("NEWKEY", "y"))
    proxy.plan = expired_unless("NEWKEY")
    with pytest.raises(CredentialsExpired):
        store.get("k", max_size=10)
    assert store.get("k", max_size=10) == b"0123456789"


@pytest.fixture
def sts(moto_contract_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with fault_proxy(moto_contract_endpoint) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", found.endpoint)
        yield found


def test_a_role_is_assumed_with_the_profile_and_again_when_its_keys_have_expired(
    proxy: FaultProxy, sts: FaultProxy, moto_contract_endpoint: str, home: Path
) -> None:
    url = bucket_of(moto_contract_endpoint, "roles")
    (home / "credentials").write_text("[base]\n" + KEYS.format("BASEKEY", "x"))
    access = S3Access("base", ROLE, external_id="partner-7", role_session_name="nightly")
    store = open_retrying_store(url, endpoint=proxy.endpoint, access=access, timeout_s=60, world=WORLD)
    store.get("k", max_size=10)
    assert [seen.signer for seen in sts.seen] == ["BASEKEY"]
    first = proxy.seen[-1].signer
    assert first != "BASEKEY"
    proxy.plan = lambda seen: Fault.EXPIRED if seen.signer == first else Fault.PASS
    assert store.get("k", max_size=10) == b"0123456789"
    assert proxy.seen[-1].signer != first
    assert len(sts.seen) == 2


def test_an_sts_that_is_away_is_waited_for_and_one_that_refuses_is_not(
    sts: FaultProxy, proxy: FaultProxy, moto_contract_endpoint: str, home: Path
) -> None:
    url = bucket_of(moto_contract_endpoint, "sts-away")
    (home / "credentials").write_text("[base]\n" + KEYS.format("BASEKEY", "x"))
    store = open_retrying_store(
        url, endpoint=proxy.endpoint, access=S3Access("base", ROLE), timeout_s=60, world=WORLD
    )
    sts.plan = lambda seen: Fault.FAIL if seen.number < 4 else Fault.PASS
    assert store.get("k", max_size=10) == b"0123456789"
    sts.plan = lambda seen: Fault.UNKNOWN_KEY
    other = open_retrying_store(
        url, endpoint=proxy.endpoint, access=S3Access("base", ROLE), timeout_s=60, world=WORLD
    )
    with pytest.raises(StoreRefused, match=f"the role {ROLE} gives no credentials: HTTP 403"):
        other.get("k", max_size=10)


def test_two_stores_of_one_process_have_credentials_of_their_own(
    proxy: FaultProxy, moto_contract_endpoint: str, home: Path
) -> None:
    one, two = (
        bucket_of(moto_contract_endpoint, "bucket-one"),
        bucket_of(moto_contract_endpoint, "bucket-two"),
    )
    (home / "credentials").write_text(
        "[one]\n" + KEYS.format("KEYONE", "x") + "[two]\n" + KEYS.format("KEYTWO", "y")
    )
    owners = {"bucket-one": "KEYONE", "bucket-two": "KEYTWO"}
    proxy.plan = lambda seen: (
        Fault.PASS if owners[seen.path.split("/")[1]] == seen.signer else Fault.UNKNOWN_KEY
    )

    def opened(url: str, profile: str) -> ObjectStore:
        return open_retrying_store(url, endpoint=proxy.endpoint, access=S3Access(profile), world=WORLD)

    stores = [opened(one, "one"), opened(two, "two")]
    for _ in range(2):
        assert [store.get("k", max_size=10) for store in stores] == [b"0123456789"] * 2
    with pytest.raises(StoreRefused, match=r"it does not know this access key \(403 InvalidAccessKeyId\)"):
        opened(one, "two").get("k", max_size=10)


def test_errors_that_need_an_operator_are_named_in_one_line_at_once(
    proxy: FaultProxy, moto_contract_endpoint: str, home: Path
) -> None:
    (home / "credentials").write_text("[default]\n" + KEYS.format(ACCESS, SECRET))

    def said(url: str) -> str:
        store = open_retrying_store(url, endpoint=proxy.endpoint, world=WORLD)
        assert isinstance(store, RetryingStore)
        with pytest.raises(StoreRefused) as e:
            store.get_range("k", 0, 3)
        assert "\n" not in str(e.value)
        return str(e.value)

    assert "there is no such bucket (404 NoSuchBucket)" in said("s3a://not-there/p")
    proxy.mode = Fault.ELSEWHERE
    assert "lies in another region: say which (region, AWS_REGION)" in said("s3n://not-there/p")
    (home / "credentials").write_text("")
    begun = time.monotonic()
    assert "there are no AWS credentials: set AWS_ACCESS_KEY_ID" in said("s3://not-there/p")
    assert time.monotonic() - begun < 5


def test_a_metadata_service_that_is_not_there_takes_seconds(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    store: Any = open_retrying_store("s3://any/p", endpoint="http://127.0.0.1:9", world=WORLD)
    begun = time.monotonic()
    with pytest.raises(StoreRefused, match="there are no AWS credentials: set AWS_ACCESS_KEY_ID"):
        store.get("k", max_size=10)
    assert time.monotonic() - begun < 30


def test_s3a_is_s3(proxy: FaultProxy, moto_contract_endpoint: str, home: Path) -> None:
    url = bucket_of(moto_contract_endpoint, "hadoop").replace("s3://", "s3a://")
    (home / "credentials").write_text("[default]\n" + KEYS.format(ACCESS, SECRET))
    store = open_retrying_store(url, endpoint=proxy.endpoint, world=WORLD)
    assert store.get("k", max_size=10) == b"0123456789"
    with pytest.raises(ObjectNotFound):
        store.get("none", max_size=10)
