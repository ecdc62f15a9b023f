from __future__ import annotations

from uuid import UUID

import pytest

from service.remote.format import keys
from service.remote.format.keys import HeadKey, ManifestKey, PageKey, SegmentKey, SharedKey, parse_key

TOPIC = UUID("0f0e0d0c-0b0a-0908-0706-050403020100")
UPLOAD = UUID(int=255)
SEGMENT = SegmentKey(TOPIC, 12, 5, 1_000_000, 3, UPLOAD)


def test_names_are_as_the_layout_says() -> None:
    folder = "data/0f0e0d0c-0b0a-0908-0706-050403020100/12"
    upload = "00000000-0000-0000-0000-0000000000ff"
    assert keys.segment_key(SEGMENT) == (
        f"{folder}/00000000000000000005-00000000000001000000-0000000003-{upload}.seg"
    )
    assert keys.manifest_key(ManifestKey(TOPIC, 12, 7, 3, UPLOAD)) == (
        f"{folder}/manifest/00000000000000000007-0000000003-{upload}.json.gz"
    )
    assert keys.page_key(PageKey(TOPIC, 12, 0, 99, 1, UPLOAD)) == (
        f"{folder}/page/00000000000000000000-00000000000000000099-01-{upload}.json.gz"
    )
    assert keys.head_key(TOPIC, 12) == f"{folder}/HEAD"


@pytest.mark.parametrize(
    ("key", "parsed"),
    [
        (keys.segment_key(SEGMENT), SEGMENT),
        (keys.manifest_key(ManifestKey(TOPIC, 0, 7, 3, UPLOAD)), ManifestKey(TOPIC, 0, 7, 3, UPLOAD)),
        (keys.page_key(PageKey(TOPIC, 0, 0, 99, 1, UPLOAD)), PageKey(TOPIC, 0, 0, 99, 1, UPLOAD)),
        (keys.head_key(TOPIC, 2_147_483_647), HeadKey(TOPIC, 2_147_483_647)),
        ("cluster.json", SharedKey("cluster.json")),
        ("topics.json", SharedKey("topics.json")),
    ],
)
def test_every_name_parses_back(key: str, parsed: object) -> None:
    assert parse_key(key) == parsed


def test_names_sort_as_their_numbers_do() -> None:
    names = [
        keys.segment_key(SEGMENT._replace(base_offset=base, last_offset=1 << 62)) for base in (9, 10, 1 << 40)
    ]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "change",
    [
        lambda key: key + "x",
        lambda key: "x" + key,
        lambda key: "/" + key,
        lambda key: key.replace("/12/", "/012/"),
        lambda key: key.replace("/12/", "/-1/"),
        lambda key: key.replace("/12/", "/2147483648/"),
        lambda key: key.replace("/12/", "/1٢/"),
        lambda key: key.replace("00000000000000000005", "5"),
        lambda key: key.replace("00000000000000000005", "00000000000002000000"),
        lambda key: key.replace("00000000000001000000", "99999999999999999999"),
        lambda key: key.replace("0000000003", "9999999999"),
        lambda key: key.replace("0f0e", "0F0E"),
        lambda key: key.replace(".seg", ".tmp"),
        lambda key: key.replace("/12/", "/12/sub/"),
        lambda key: key + "\n",
    ],
)
def test_an_unknown_object_name_is_ignored(change: object) -> None:
    assert parse_key(change(keys.segment_key(SEGMENT))) is None  # type: ignore[operator]


@pytest.mark.parametrize("key", ["", "data", "HEAD", "data/x/0/HEAD", "cluster.json/x", "logs/1.seg"])
def test_other_objects_in_the_bucket_are_left_alone(key: str) -> None:
    assert parse_key(key) is None
