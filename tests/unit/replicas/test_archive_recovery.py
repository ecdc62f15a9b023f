"""A takeover of the documents in a bucket: whether the newest copy left is the last there was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from service.metadata.bucket_copy import MetadataCopy, NewestCopy
from service.metadata.controller.adoption_control import BucketContent
from service.metadata.image import MetadataImage
from service.metadata.publisher import MetadataOptions, Publisher
from service.remote.catalog import CatalogEntry
from service.remote.format.keys import MetadataKey, metadata_key
from service.remote.format.metadata_ref import MetadataRef
from service.replicas.archive_recovery import BucketContents, found_of, log_users
from service.tiering.recovery import ArchivedPartition, RecoveredArchive
from tests.support.world import WORLD

TOPIC = UUID(int=7)
LAST_RECORD_MS = 1_000


def _fail(what: str, error: BaseException) -> None:
    raise AssertionError(what) from error


def doubt_where(written_ms: int, publisher: Publisher) -> str | None:
    """Why settings are doubted, where all documents say the same and an archive that they do not know was
    written at `written_ms`."""
    image = replace(MetadataImage(), offset=9, epoch=3, timestamp_ms=LAST_RECORD_MS)
    ref = MetadataRef(metadata_key(MetadataKey(10, 3, UUID(int=1))), 10, 3, 100, 0)
    entry = CatalogEntry(1, "manifest", 1, 0, 10, 1, 100)
    archive = RecoveredArchive({(TOPIC, 0): ArchivedPartition("events", entry, 1, written_ms)}, (), (), -1)
    newest = NewestCopy(MetadataCopy(ref, image, 5_000), ref, ())
    return found_of(BucketContents(newest, None, archive, ()), MetadataImage(), publisher).doubt


@pytest.mark.parametrize(("written_ms", "is_doubted"), [(1_001, True), (1_000, False), (0, False)])
def test_a_topic_that_was_archived_after_the_newest_copy_proves_that_a_later_one_is_lost(
    written_ms: int, is_doubted: bool, tmp_path: Path
) -> None:
    publisher = Publisher(MetadataOptions(1, tmp_path), WORLD, on_fatal=_fail)
    doubt = doubt_where(written_ms, publisher)
    assert (doubt is not None) == is_doubted
    assert doubt is None or f"does not know topic events ({TOPIC})" in doubt


def test_a_recovery_says_how_many_users_have_to_be_set_again(caplog: pytest.LogCaptureFixture) -> None:
    image = replace(MetadataImage(), offset=9, epoch=3)
    ref = MetadataRef(metadata_key(MetadataKey(10, 3, UUID(int=1))), 10, 3, 100, 0, omitted_users=7)
    archive = RecoveredArchive({}, (), (), -1)
    for named, is_newer, words in (
        (ref, True, "7 users had SCRAM credentials"),
        (ref, False, ""),
        (ref._replace(omitted_users=0), True, ""),
        (ref._replace(omitted_users=0, omitted_settings=2), True, "2 settings of brokers were passwords"),
        (None, True, ""),
    ):
        bucket = BucketContents(NewestCopy(MetadataCopy(ref, image, 5_000), named, ()), None, archive, ())
        caplog.clear()
        log_users(bucket, BucketContent((), image, is_newer, -1, 0), MetadataImage())
        assert words in caplog.text
        assert bool(caplog.text) == bool(words)
