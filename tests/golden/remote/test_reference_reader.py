"""docs/reference_reader.py reads what Firn reads, with the standard library alone."""

from __future__ import annotations

import ast
import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import UUID

import pytest

from service.base.threads import SystemThreads
from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.remote.format.keys import HeadKey, SegmentKey, parse_key
from service.remote.format.manifest import ManifestLimits, live_segments
from service.remote.reading.object_reader import open_page, open_published, open_topics
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.store import ObjectStore
from tests.golden.remote.generate import FOLDERS, TOPIC
from tests.support.cut_archives import CutWriter, Saved, row
from tests.support.older_format import version_1
from tests.support.rewritten import Rewriter, without_offsets
from tests.unit.spark.bucket import START_MS, Bucket, marker, transactional

SCRIPT = Path(__file__).parents[3] / "docs" / "reference_reader.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-S", str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def read(*arguments: object) -> list[dict[str, Any]]:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def shown(data: bytes | None) -> object:
    try:
        return None if data is None else bytes(data).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(bytes(data or b"")).decode()}


def by_firn(store: ObjectStore, topic: str, partition: int) -> list[dict[str, Any]]:
    """The records that Firn finds in this partition."""
    row = next(row for row in open_topics(store).topics if row.name == topic)
    chain = open_published(store, HeadKey(row.topic_id, partition))
    assert chain is not None
    manifest = chain.manifest
    found = []
    for entry in live_segments(manifest, lambda ref: open_page(store, ref, manifest)):
        for one in iter_records(store.get_range(entry.key, 0, entry.log_length)):
            if one.offset >= manifest.start_offset:
                headers = [[key, shown(value)] for key, value in one.headers]
                found.append(
                    {
                        "topic": topic,
                        "partition": partition,
                        "offset": one.offset,
                        "timestamp": one.timestamp,
                        "key": shown(one.key),
                        "value": shown(one.value),
                        "headers": headers,
                    }
                )
    return found


def objects(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key, max_size=1 << 30) for info in MemoryStore.list(store, "")}


def written(folder: Path, content: dict[str, bytes]) -> Path:
    for key, data in content.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def stored(folder: Path) -> MemoryStore:
    store = MemoryStore(SystemThreads())
    for path in folder.rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(folder)), path.read_bytes())
    return store


def batch(base_offset: int, codec: CompressionType = CompressionType.NONE) -> bytes:
    builder = BatchBuilder(base_offset, codec)
    builder.add(START_MS + base_offset, None, b"\xff\x00 not text", headers=[("h", b"\xfe"), ("n", None)])
    builder.add(START_MS - 5, "schlüssel".encode(), None)
    builder.add(START_MS, b"", b"v" * 3000)
    return bytes(builder.build())


@pytest.fixture
def bucket() -> Bucket:
    """Pages of two levels, a start inside a segment, transactions, gzip, what is no text."""
    bucket = Bucket(limits=ManifestLimits(entries=2, page_refs=2))
    bucket.topic("events", 2)
    for number in range(11):
        base = bucket.end("events")
        if number % 3:
            batches = [batch(base), batch(base + 3, CompressionType.GZIP), batch(base + 6)]
        else:
            batches = [transactional(base, 7, 2), batch(base + 2), marker(base + 5, 7, commit=True)]
        bucket.add("events", 0, batches)
    bucket.drop_before("events", 14)
    return bucket


def test_the_reference_reader_is_one_file_of_the_standard_library() -> None:
    source = SCRIPT.read_text()
    assert len(source.splitlines()) < 300
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [str(node.module)]
        assert all(name.split(".")[0] in {*sys.stdlib_module_names, "compression"} for name in names), names


@pytest.mark.parametrize("version", sorted(FOLDERS))
def test_the_reference_reader_and_firn_read_the_golden_bucket_alike(version: int) -> None:
    folder = FOLDERS[version]
    (topic,) = read(folder)
    assert (topic["name"], topic["partitions"]) == (TOPIC, 3)
    assert [(row["start_offset"], row["end_offset"]) for row in read(folder, TOPIC)] == [
        (0, 0),
        (0, 0),
        (0, 75),
    ]
    expected = by_firn(stored(folder), TOPIC, 2)
    assert len(expected) == 75
    assert read(folder, TOPIC, 2) == expected
    assert read(folder, topic["topic_id"], 2, "--from", 43, "--limit", 5) == expected[43:48]


def test_the_reference_reader_and_firn_read_a_long_chain_alike(bucket: Bucket, tmp_path: Path) -> None:
    folder = written(tmp_path, objects(bucket.store))
    expected = by_firn(bucket.store, "events", 0)
    assert expected[0]["offset"] == 14
    assert {ref.level for ref in bucket.manifest("events", 0).pages} >= {0, 1}
    assert read(folder, "events", 0) == expected
    assert read(folder, "events")[0] == {
        "topic": "events", "partition": 0, "start_offset": 14, "end_offset": bucket.end("events"),
    }  # fmt: skip


def test_the_reference_reader_and_firn_read_a_rewritten_chain_alike(bucket: Bucket, tmp_path: Path) -> None:
    """Segments were merged, lost records, or all of them, in pages of two levels and behind them."""
    rewriter = Rewriter(bucket.store, HeadKey(bucket.topic_id("events"), 0))
    groups = rewriter.groups()
    for number, group in enumerate(groups):
        base, last = group[0].base_offset, group[-1].last_offset
        if number % 3 == 0:
            rewriter.merge(base, last)
        elif number % 3 == 1:
            rewriter.erase(base, last, without_offsets(base, base + 4, last))
        else:
            rewriter.erase(base, last, lambda one: False)
    expected = by_firn(bucket.store, "events", 0)
    assert 0 < len(expected) < 60
    folder = written(tmp_path, objects(bucket.store))
    assert read(folder, "events", 0) == expected
    assert read(folder, "events")[0]["end_offset"] == bucket.end("events")
    for start in (0, 25, 40, 66):
        assert read(folder, "events", 0, "--from", start) == [
            one for one in expected if one["offset"] >= start
        ]


@pytest.mark.parametrize("is_older", [False, True])
def test_the_reference_reader_shows_committed_records_alone_where_asked(
    tmp_path: Path, is_older: bool
) -> None:
    bucket = Bucket()
    bucket.topic("events")
    # 7 is aborted in the second segment, 8 committed there, 9 aborted in the first, 5 open in the end.
    first = [transactional(0, 7), transactional(1, 8, 2), transactional(3, 9), marker(4, 9, commit=False)]
    rows = [(9, 3, 4, 0)]
    bucket.add("events", batches=[*first, batch(5)], txn_rows=rows, opened={7: 0, 8: 1}, is_older=is_older)
    second = [marker(8, 7, commit=False), marker(9, 8, commit=True), transactional(10, 7), batch(11)]
    rows = [(7, 0, 8, 1)]
    bucket.add("events", batches=second, txn_rows=rows, opened={7: 10}, is_older=is_older)
    folder = written(tmp_path, objects(bucket.store))

    def offsets(*options: object) -> list[int]:
        return [record["offset"] for record in read(folder, "events", 0, *options)]

    assert offsets("--committed") == [1, 2, 5, 6, 7]
    assert offsets("--committed", "--from", 6) == [6, 7]
    assert offsets() == [0, 1, 2, 3, 5, 6, 7, 10, 11, 12, 13]


def test_the_reference_reader_goes_on_behind_the_chain_into_the_newest_complete_cut(tmp_path: Path) -> None:
    """Producer 7's transaction begins in a segment and is aborted in a tail, 8's is open at the cut."""
    bucket = Bucket()
    bucket.topic("events", 2)
    bucket.topic("groups")
    bucket.add("events", batches=[batch(0), transactional(3, 7)], opened={7: 3})
    own = partial(own_batches, bucket.topic_id("events"), 0)
    writer = CutWriter(bucket.store)
    first = writer.tail([
        own([transactional(4, 7), batch(5)]),
        own_batches(bucket.topic_id("groups"), 0, [batch(0), batch(3)]),
    ])  # fmt: skip
    # The second leader did not have what the first one saved from 8 on.
    lost = writer.tail([own([batch(8), batch(11), batch(14)])], cut=2)
    second = writer.tail(
        [own([marker(8, 7, commit=False), batch(9), transactional(12, 8), batch(13)], 3)], cut=3
    )
    columns = {
        bucket.topic_id("events"): [row(16, stable=12), row(0)],
        bucket.topic_id("groups"): [row(6, start=3)],
    }
    writer.cut(columns, [first, lost, second], number=3)
    writer.cut(columns, [], number=4, is_complete=False)
    folder = written(tmp_path, objects(bucket.store))

    def offsets(topic: str, *options: object) -> list[int]:
        return [record["offset"] for record in read(folder, topic, 0, *options)]

    assert offsets("events") == [0, 1, 2, 3]
    assert offsets("events", "--tail") == [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15]
    assert offsets("events", "--committed") == [0, 1, 2]
    assert offsets("events", "--committed", "--tail") == [0, 1, 2, 5, 6, 7, 9, 10, 11]
    assert offsets("events", "--committed", "--tail", "--from", 6, "--limit", 3) == [6, 7, 9]
    assert offsets("groups", "--tail") == [3, 4, 5]
    assert read(folder, "events", 1, "--tail") == []
    shown = read(folder, "events", 0, "--tail", "--from", 9, "--limit", 1)
    assert (shown[0]["timestamp"], shown[0]["headers"]) == (
        START_MS + 9,
        [["h", {"base64": "/g=="}], ["n", None]],
    )
    for at in (0, 40, second.footer_position - 1, second.footer_position + 3, second.size - 1):
        data = bytearray(bucket.store.get(second.key, max_size=1 << 20))
        data[at] ^= 1
        (folder / second.key).write_bytes(data)
        done = run(folder, "events", 0, "--tail")
        assert done.returncode == 1, at
        assert second.key in done.stderr or "FIRN" in done.stderr, done.stderr
    (folder / second.key).unlink()
    assert run(folder, "events", 0, "--tail").stderr.startswith("FileNotFoundError")
    (folder / "CUT").unlink()
    assert "CUT" in run(folder, "events", 0, "--tail").stderr


def own_batches(topic_id: UUID, partition: int, batches: list[bytes], epoch: int = 0) -> Saved:
    """These batches as a leader of this epoch has them in its log."""
    data = bytearray()
    for one in batches:
        data += one[:12] + epoch.to_bytes(4, "big") + one[16:]
    return Saved(topic_id, partition, bytes(data), leader_epoch=epoch)


def test_the_reference_reader_uses_names_of_version_1_without_zstd(bucket: Bucket, tmp_path: Path) -> None:
    folder = written(tmp_path, version_1(objects(bucket.store)))
    done = run(folder, "events", 0, "--from", 14)
    assert [json.loads(line) for line in done.stdout.splitlines()] == by_firn(stored(folder), "events", 0)
    assert ("names of its segments" in done.stderr) is (sys.version_info < (3, 14))


class Ranges(SimpleHTTPRequestHandler):
    """Files by GET, whole or a range of them."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if "sig=x%2F" not in self.path or ("only-topics" in self.path and path.name != "topics.json"):
            self.send_error(403)
            return
        if not path.is_file():
            self.send_error(404)
            return
        data, wanted = path.read_bytes(), self.headers.get("Range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            data = data[int(first) : int(last) + 1]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def served(bucket: Bucket, tmp_path: Path) -> Iterator[str]:
    written(tmp_path / "a place", objects(bucket.store))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(tmp_path)))
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/a%20place/?sig=x%2F"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_reference_reader_reads_over_http_with_a_signed_query(bucket: Bucket, served: str) -> None:
    assert read(served, "events", 0) == by_firn(bucket.store, "events", 0)
    assert read(served, "events")[1]["end_offset"] == 0


def test_the_reference_reader_reports_access_denied(served: str) -> None:
    for arguments in (("events",), ("events", 1)):
        done = run(f"{served}&only-topics", *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("PermissionError: data/")
        assert "403" in done.stderr


def test_damage_is_noticed_wherever_it_is(bucket: Bucket, tmp_path: Path) -> None:
    sound = objects(bucket.store)
    newest = bucket.manifest("events", 0).entries[-1]
    head = json.loads(sound[next(key for key in sound if key.endswith("HEAD"))])
    page = bucket.manifest("events", 0).pages[-1].key
    places = [
        (newest.key, at) for at in (0, 40, newest.log_length - 1, newest.footer_position, newest.size - 20)
    ]
    for number, (key, at) in enumerate([*places, (head["manifest"], 30), (page, 30)]):
        data = bytearray(sound[key])
        data[at] ^= 1
        folder = written(tmp_path / str(number), {**sound, key: bytes(data)})
        done = run(folder, "events", 0)
        assert done.returncode == 1, (key, at)
        assert done.stderr.startswith(("ValueError", "error")), done.stderr


def test_a_codec_that_the_standard_library_lacks_is_named(tmp_path: Path) -> None:
    bucket = Bucket()
    bucket.topic("events")
    bucket.add("events", 0, [batch(0), batch(3, CompressionType.LZ4)])
    done = run(written(tmp_path, objects(bucket.store)), "events", 0)
    assert len(done.stdout.splitlines()) == 3, "what came before it is shown"
    assert "lz4, by which the batch at offset 3" in done.stderr


def test_segments_of_a_topic_that_does_not_exist_are_not_found(bucket: Bucket, tmp_path: Path) -> None:
    folder = written(tmp_path, objects(bucket.store))
    assert run(folder, "nobody").returncode == 1
    assert any(isinstance(parse_key(key), SegmentKey) for key in objects(bucket.store))
