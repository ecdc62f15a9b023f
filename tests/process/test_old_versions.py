"""Old versions of objects that an erasure dropped, in a bucket that keeps versions: removed by their ids, or
named with what keeps them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from service.base.errors import StorageError
from service.node.old_versions import VersionsChild, _Talk
from service.remote.format.keys import SegmentKey, segment_key, topic_prefix
from service.tiering.copier import CallProgress
from service.tiering.erasing.leftovers import VersionsLeft
from tests.support.stores import CREDENTIALS, Store, s3_client

ROOT = Path(__file__).parents[2]
TOPIC = UUID(int=7)
KEY = segment_key(SegmentKey(TOPIC, 0, 0, 9, 1, UUID(int=1)))
OTHER = segment_key(SegmentKey(TOPIC, 0, 10, 19, 1, UUID(int=2)))
PREFIX = topic_prefix(TOPIC)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def place(store: Store) -> tuple[str, str]:
    bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
    return bucket, f"{prefix}/" if prefix else ""


def put(store: Store, key: str, **more: Any) -> None:
    bucket, prefix = place(store)
    s3_client(store.endpoint or "").put_object(Bucket=bucket, Key=f"{prefix}{key}", Body=b"records", **more)


def delete(store: Store, key: str) -> None:
    bucket, prefix = place(store)
    s3_client(store.endpoint or "").delete_object(Bucket=bucket, Key=f"{prefix}{key}")


def keep_versions(store: Store) -> None:
    s3_client(store.endpoint or "").put_bucket_versioning(
        Bucket=place(store)[0], VersioningConfiguration={"Status": "Enabled"}
    )


def versions(store: Store) -> list[str]:
    bucket, prefix = place(store)
    answer = s3_client(store.endpoint or "").list_object_versions(Bucket=bucket, Prefix=prefix)
    rows = [*answer.get("Versions", ()), *answer.get("DeleteMarkers", ())]
    return sorted(str(row["Key"]).removeprefix(prefix) for row in rows)


def remove(store: Store) -> VersionsLeft:
    child = VersionsChild(store.url, store.endpoint, "us-east-1")
    return child([PREFIX], lambda key, modified_ms: key == KEY, CallProgress())


def test_a_bucket_without_versions_has_none(moto_store: Store) -> None:
    put(moto_store, KEY)
    delete(moto_store, KEY)
    assert remove(moto_store) == VersionsLeft()


def test_versions_and_markers_of_what_was_dropped_are_removed(moto_store: Store) -> None:
    keep_versions(moto_store)
    for key in (KEY, OTHER):
        put(moto_store, key)
        put(moto_store, key)
        delete(moto_store, key)
    assert remove(moto_store) == VersionsLeft(removed=3)
    assert versions(moto_store) == [OTHER, OTHER, OTHER]


def test_the_current_version_stays(moto_store: Store) -> None:
    keep_versions(moto_store)
    put(moto_store, KEY)
    assert remove(moto_store) == VersionsLeft()
    assert versions(moto_store) == [KEY]


def test_a_bucket_that_does_not_answer_is_an_error(moto_store: Store) -> None:
    child = VersionsChild("s3://no-such-bucket-here/prefix", moto_store.endpoint, "us-east-1")
    with pytest.raises(StorageError, match="specified bucket does not exist"):
        child([PREFIX], lambda key, modified_ms: True, CallProgress())


def test_a_version_under_retention_is_named_with_its_date(moto_store: Store) -> None:
    client = s3_client(moto_store.endpoint or "")
    client.create_bucket(Bucket="locked-bucket", ObjectLockEnabledForBucket=True)
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
    more = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": until}
    client.put_object(Bucket="locked-bucket", Key=f"p/{KEY}", Body=b"records", **more)
    client.delete_object(Bucket="locked-bucket", Key=f"p/{KEY}")
    child = VersionsChild("s3://locked-bucket/p", moto_store.endpoint, "us-east-1")
    left = child([PREFIX], lambda key, modified_ms: True, CallProgress())
    assert left.left == 1
    assert left.locked == (f"{KEY} until {until.isoformat(timespec='seconds')}",)
    assert "no lifecycle rule takes them" in left.why
    listed = client.list_objects_v2(Bucket="locked-bucket")
    assert listed["KeyCount"] == 0, "without its marker a version that is kept is current again"
    assert child([PREFIX], lambda key, modified_ms: True, CallProgress()) == left


def test_the_working_directory_has_no_say_in_what_the_child_runs(
    moto_store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text("raise SystemExit('of the working directory')")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    assert remove(moto_store) == VersionsLeft()


class TwoPages:
    """A child that finds two pages of versions; what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self._pages = [[[KEY, "1", 5], [OTHER, "1", 6]], [[KEY, "2", 7]]]
        self._lines: list[str] = []

    def write(self, text: str) -> None:
        self.told.append(json.loads(text))
        if self.told[-1].get("remove"):
            self._answer(kept=[])
        if self._pages:
            self._answer(found=self._pages.pop(0))
        else:
            self._answer(days=None)

    def _answer(self, **fields: Any) -> None:
        self._lines.append(f"{json.dumps(fields)}\n")

    def flush(self) -> None:
        """Nothing is buffered."""

    def readline(self) -> str:
        return self._lines.pop(0)


def test_each_page_is_removed_before_the_next_one_is_read() -> None:
    """A bucket that keeps tails for a month may have a million: encoded in one piece they stop the loop."""
    child = TwoPages()
    talk = _Talk(cast("Any", child), cast("Any", child), lambda key, modified_ms: key == KEY, CallProgress())
    assert talk.run({"below": [PREFIX]}) == VersionsLeft(removed=2)
    search, markers = {"below": [PREFIX], "markers": False}, {"below": [PREFIX], "markers": True}
    pages = [{"remove": [[KEY, "1", 5]]}, {"remove": [[KEY, "2", 7]]}]
    assert child.told == [search, *pages, search, markers], "searched again until nothing is found"
