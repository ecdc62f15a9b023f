"""`firn erase` in buckets that keep versions, and under retention: what is left of the keys in old versions,
until when, and what is said where brokers may not look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from service.base.world import system_world
from tests.node.conftest import NodeThread, Talk
from tests.node.test_erase_orders import GONE, KEPT, SETTINGS, firn, given, produce
from tests.support.faults import Fault, Seen, fault_proxy
from tests.support.processes import wait_until
from tests.support.stores import CREDENTIALS, Store, s3_client

pytestmark = pytest.mark.thorough

GONE_MEANWHILE = ("NoSuchKey", "NoSuchVersion", "404")

Start = Callable[..., NodeThread]


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def talk_to() -> Iterator[Callable[[NodeThread], Talk]]:
    clients = []

    def talk(node: NodeThread) -> Talk:
        clients.append(node.client())
        return Talk(clients[-1])

    yield talk
    for one in clients:
        one.close()


class Versioned:
    """A bucket that keeps versions, as its owner sees it."""

    def __init__(self, store: Store) -> None:
        self.client = s3_client(store.endpoint or "")
        self.bucket = store.url.removeprefix("s3://").partition("/")[0]

    def rows(self, kind: str) -> list[Any]:
        pages = self.client.get_paginator("list_object_versions").paginate(Bucket=self.bucket)
        return [row for page in pages for row in page.get(kind, ())]

    def with_keys(self, needle: bytes) -> list[str]:
        """Versions, old ones among them, that have these bytes."""
        found = []
        for row in self.rows("Versions"):
            try:
                body = self.client.get_object(Bucket=self.bucket, Key=row["Key"], VersionId=row["VersionId"])
            except ClientError as e:
                if e.response["Error"]["Code"] not in GONE_MEANWHILE:
                    raise
                continue
            if needle in body["Body"].read():
                found.append(row["Key"])
        return found

    def names(self, part: str) -> list[str]:
        return [row["Key"] for row in self.rows("Versions") if part in row["Key"]]


def ordered(
    node: NodeThread,
    talk: Talk,
    bucket: Versioned,
    capsys: pytest.CaptureFixture[str],
    retention: Mapping[str, Any] | None = None,
) -> str:
    """An order on a topic whose objects, archived before, are under `retention`."""
    made = talk.create("events", remote_storage_enable="true", internal_segment_bytes="4000")
    produce(talk, made.topic_id, 20)
    wait_until("segments in the bucket", lambda: len(bucket.names(".seg")) >= 3)
    assert bucket.with_keys(GONE)
    for row in bucket.rows("Versions") if retention is not None else ():
        if ".seg" in row["Key"]:
            version = {"Bucket": bucket.bucket, "Key": row["Key"], "VersionId": row["VersionId"]}
            bucket.client.put_object_retention(**version, Retention=retention)
    code, order, said = firn(capsys, node, "start", *given(GONE), "--execute")
    assert code == 0, said
    wait_until("the order to be done", lambda: firn(capsys, node, "status", order["id"])[0] == 0, 90)
    return str(order["id"])


def is_gone(node: NodeThread, order: str, capsys: pytest.CaptureFixture[str]) -> bool:
    return "it is gone" in firn(capsys, node, "status", order)[2]


def started(start: Start, store: Store, **more: str) -> NodeThread:
    settings = {key.replace(".", "_"): value for key, value in store.node_settings.items()}
    # The store has today's clock.
    return start(system_world(), **{**SETTINGS, **settings, **more})


def test_no_old_version_has_a_byte_of_a_key_once_the_order_is_gone(
    start: Start,
    moto_store: Store,
    talk_to: Callable[[NodeThread], Talk],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = Versioned(moto_store)
    bucket.client.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration={"Status": "Enabled"})
    node = started(start, moto_store)
    order = ordered(node, talk_to(node), bucket, capsys)
    assert bucket.with_keys(GONE), "the objects that it dropped are there, or their versions"
    wait_until("the order to be gone", lambda: is_gone(node, order, capsys), 120)
    assert bucket.with_keys(GONE) == []
    assert bucket.with_keys(KEPT)
    wait_until("the order's document to be gone", lambda: not bucket.names("erase/"), 30)


def test_objects_under_retention_are_named_with_their_date_and_keep_the_order(
    start: Start,
    moto_store: Store,
    talk_to: Callable[[NodeThread], Talk],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = f"{Versioned(moto_store).bucket}-locked"
    store = Store(f"s3://{name}/log", moto_store.settings, moto_store.env, moto_store.endpoint)
    bucket = Versioned(store)
    bucket.client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    node = started(start, store)
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=2)
    # moto takes no checksum of ours for that of a PUT under a default retention, as S3 does.
    lock = {"Mode": "COMPLIANCE", "RetainUntilDate": until}
    order = ordered(node, talk_to(node), bucket, capsys, lock)
    found: dict[str, Any] = {}

    def is_locked() -> bool:
        found.update(firn(capsys, node, "status", order)[1])
        return bool(found["locked_objects"])

    wait_until("the locked versions to be named", is_locked, 90)
    assert found["state"] == "done", "nobody is shown one any more"
    assert found["versions_left"] >= found["locked_objects"] >= 3
    assert all(one.endswith(f" until {until.isoformat()}") for one in found["locked"])
    assert "old versions of objects are left" in found["waits"]
    assert "no lifecycle rule takes them" in found["waits"]
    assert not is_gone(node, order, capsys)
    assert bucket.with_keys(GONE)


def test_brokers_that_may_not_see_versions_say_what_they_need(
    start: Start,
    moto_store: Store,
    talk_to: Callable[[NodeThread], Talk],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = Versioned(moto_store)
    bucket.client.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration={"Status": "Enabled"})
    with fault_proxy(moto_store.endpoint or "") as proxy:
        proxy.plan = lambda seen: Fault.DENIED if "versioning" in seen.path else Fault.PASS
        node = started(start, moto_store.through(proxy.endpoint))
        order = ordered(node, talk_to(node), bucket, capsys)
        found: dict[str, Any] = {}

        def is_said() -> bool:
            found.update(firn(capsys, node, "status", order)[1])
            return found["versions_unknown"] is not None

        wait_until("the reason", is_said, 90)
        assert "s3:GetBucketVersioning, s3:ListBucketVersions and s3:DeleteObjectVersion" in found["waits"]
        proxy.plan = None
        wait_until("the order to be gone", lambda: is_gone(node, order, capsys), 120)
    assert bucket.with_keys(GONE) == []


def test_versions_that_brokers_may_not_delete_are_left_to_the_lifecycle_rule_and_its_date_is_told(
    start: Start,
    moto_store: Store,
    talk_to: Callable[[NodeThread], Talk],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bucket = Versioned(moto_store)
    bucket.client.put_bucket_versioning(Bucket=bucket.bucket, VersioningConfiguration={"Status": "Enabled"})
    rule = {
        "ID": "old", "Status": "Enabled", "Filter": {"Prefix": ""},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
    }  # fmt: skip
    bucket.client.put_bucket_lifecycle_configuration(
        Bucket=bucket.bucket, LifecycleConfiguration={"Rules": [rule]}
    )

    def refuse(seen: Seen) -> Fault:
        is_the_childs = "boto" in seen.headers.get("user-agent", "").lower()
        return Fault.UNDELETABLE if seen.keys and is_the_childs else Fault.PASS

    with fault_proxy(moto_store.endpoint or "") as proxy:
        proxy.plan = refuse
        node = started(start, moto_store.through(proxy.endpoint))
        order = ordered(node, talk_to(node), bucket, capsys)
        found: dict[str, Any] = {}

        def is_said() -> bool:
            found.update(firn(capsys, node, "status", order)[1])
            return bool(found["versions_left"])

        wait_until("the versions to be named", is_said, 90)
        assert (found["locked"], found["state"]) == ([], "done")
        assert "AccessDenied" in found["waits"]
        in_days = (found["versions_until_ms"] - found["done_ms"]) / 86_400_000
        assert 29.9 < in_days < 30.1
        proxy.plan = None
        wait_until("the order to be gone", lambda: is_gone(node, order, capsys), 120)
    assert bucket.with_keys(GONE) == []
