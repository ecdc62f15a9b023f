"""Reads a Firn archive with Python's standard library alone: docs/bucket-format.md as a program.

    reference_reader.py PLACE                        topics
    reference_reader.py PLACE TOPIC                  the topic's partitions and their offsets
    reference_reader.py PLACE TOPIC PARTITION        records [--from OFFSET] [--limit RECORDS] [--committed]

PLACE is a folder, or an http(s) URL below which each object is had by a plain GET (its query, say a shared
access signature, is sent with every one). Each line of the output is one JSON document; keys and values that
are not UTF-8 are {"base64": …}. Without --committed records of aborted transactions are shown, too, and what
lies behind the beginning of one that is open at the archive's end; transaction markers never are. Every
checksum is verified. Of codecs the standard library has gzip: batches of others are an error that says which.
Manifests of version 1 are zstd, which it has since Python 3.14; with an older one the segments of a folder
are found by their names, which do not tell what of it is live.
"""

import argparse
import base64
import json
import os
import struct
import sys
import zlib
from itertools import islice
from urllib import error, parse, request

MAX_DOCUMENT, MAX_BATCH = 64 << 20, 512 << 20
BLOCK, BATCH = struct.Struct(">qIIqqqqII"), struct.Struct(">qiibIhiqqqhii")
ABORTED, PRODUCER = struct.Struct(">hqqqq"), struct.Struct(">qhiqiqiq")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7")
CRC32C = list(range(256))
for _ in range(8):
    CRC32C = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in CRC32C]


def check(holds, what):
    if not holds:
        raise ValueError(what)


def crc32c(data):  # CRC-32C (Castagnoli), which zlib does not have
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC32C[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Place:
    """Objects by their keys, from a folder or over HTTP."""

    def __init__(self, place):
        self.folder = place
        self.url = parse.urlsplit(place) if place.startswith(("http://", "https://")) else None

    def get(self, key, start=0, length=None):
        """The object, or `length` bytes of it. FileNotFoundError where there is none."""
        most = MAX_DOCUMENT + 1 if length is None else length
        if self.url:
            data = self._http(key, start, length, most)
        else:
            with open(os.path.join(self.folder, *key.split("/")), "rb") as file:
                file.seek(start)
                data = file.read(most)
        check(len(data) == length if length is not None else len(data) < most, f"{key}: of another size")
        return data

    def _http(self, key, start, length, most):
        path = f"{self.url.path.rstrip('/')}/{parse.quote(key)}"
        asked = request.Request(self.url._replace(path=path).geturl())
        if length is not None:
            asked.add_header("Range", f"bytes={start}-{start + length - 1}")
        try:
            with request.urlopen(asked, timeout=60) as answer:
                check(answer.status == 206 or start == 0, f"{key}: the server knows no ranges")
                return answer.read(most)
        except error.HTTPError as e:
            kind = {403: PermissionError, 404: FileNotFoundError}.get(e.code)  # 403: it may well be there
            raise (kind(f"{key}: HTTP {e.code}") if kind else e) from e


def document(data, kind):
    fields = json.loads(data)
    found = (fields.get("format"), fields.get("format_version"))
    check(found in ((kind, 1), (kind, 2)), f"{found}, not {kind} of version 1 or 2")
    body, seal, crc = data.rpartition(b',"document_crc32c":')  # in small documents, but for older ones
    check(not seal or crc == b"%d}" % crc32c(body), f"{kind}: wrong checksum")
    return fields


def unpack(data, most=MAX_DOCUMENT):
    """One gzip member (zlib verifies its checksum), or a zstd frame, which version 1 has."""
    if data[:2] == b"\x1f\x8b":
        stream = zlib.decompressobj(31)
        body = stream.decompress(data, most)
        check(stream.eof and not stream.unused_data, "not one gzip member, or too large")
        return body
    try:
        from compression import zstd
    except ImportError:
        raise NotImplementedError("zstd, in which manifests of version 1 are packed") from None
    return zstd.ZstdDecompressor().decompress(data, most)


class Partition:
    """The live segments of one partition, from HEAD through the manifest and its pages."""

    def __init__(self, place, topic_id, number):
        self.place, self.folder = place, f"data/{topic_id}/{number}"
        self.start_offset, self.end_offset, self.rows = 0, 0, []
        try:
            head = document(place.get(f"{self.folder}/HEAD"), "firn-head")
        except FileNotFoundError:
            return  # nothing was ever archived
        try:
            self._open(head)
        except NotImplementedError as e:
            if place.url:
                raise
            print(f"{self.folder}: going by the names of its segments, for lack of {e}", file=sys.stderr)
            self._list()

    def _open(self, head):
        data = self.place.get(head["manifest"])
        check(len(data) == head["stored_size"] and crc32c(data) == head["crc32c"], head["manifest"])
        manifest = document(unpack(data), "firn-manifest")
        self.start_offset, self.end_offset = manifest["start_offset"], manifest["end_offset"]
        rows = [*self._pages(manifest["pages"]), *manifest["segments"]]
        self.rows = [row for row in rows if row["last_offset"] >= self.start_offset]
        ends = [row["last_offset"] + 1 for row in self.rows]
        check([row["base_offset"] for row in self.rows[1:]] == ends[:-1], "the chain has a gap")
        check(not ends or ends[-1] == self.end_offset, "the chain ends elsewhere")

    def _pages(self, refs):
        for ref in refs:
            if ref["last_offset"] >= self.start_offset:
                data = self.place.get(ref["key"], 0, ref["stored_size"])
                check(crc32c(data) == ref["crc32c"], f"{ref['key']}: wrong checksum")
                page = document(unpack(data), "firn-manifest-page")
                yield from self._pages(page["children"]) if page["level"] else page["children"]

    def _list(self):
        folder = os.path.join(self.place.folder, *self.folder.split("/"))
        for name in sorted(name for name in os.listdir(folder) if name.endswith(".seg")):
            if not self.rows or int(name[:20]) == self.end_offset:
                size, self.end_offset = os.path.getsize(os.path.join(folder, name)), int(name[21:41]) + 1
                self.start_offset = self.start_offset if self.rows else int(name[:20])
                self.rows += [{"key": f"{self.folder}/{name}", "size": size, "last_offset": int(name[21:41])}]

    def records(self, offset, committed=False):
        """Records from `offset` on, as dictionaries; where asked, of committed transactions alone."""
        offset, end, aborted = max(offset, self.start_offset), self.end_offset, {}
        if committed and self.rows:
            end, aborted = self._stable_end(), self._aborted(offset)
        for row in self.rows:
            for at, size, crc, _, last, *_ in self._blocks(row) if row["last_offset"] >= offset else ():
                if last >= offset:
                    data = self.place.get(row["key"], at, size)
                    check(crc32c(data) == crc, f"{row['key']}: block at {at}: wrong checksum")
                    yield from (one for one in decode(data, aborted) if offset <= one["offset"] < end)

    def _stable_end(self):
        """The first offset of a transaction that is open at the archive's end, or that end."""
        footer = self._footer(self.rows[-1])
        if "open_from" in footer:
            return footer["open_from"]
        snapshot = self._section(self.rows[-1], footer, "producer_snapshot")  # of an older writer, or plain
        firsts = [one[-1] for one in PRODUCER.iter_unpack(snapshot[10:])]
        return min((first for first in firsts if first >= 0), default=self.end_offset)

    def _aborted(self, offset):
        """Producer -> (first offset, the marker's) of all transactions that were aborted from `offset` on."""
        found = {}
        for row in self.rows:
            if row["last_offset"] >= offset:
                index = self._section(row, self._footer(row), "txn_index")
                for _, producer, first, last, _ in ABORTED.iter_unpack(index):
                    found.setdefault(producer, []).append((first, last))
        return found

    def _footer(self, row):
        key, size = row["key"], row["size"]
        trailer = self.place.get(key, max(size - 16, 0), 16)
        length, crc, magic = struct.unpack(">II8s", trailer)
        check(magic in (b"FIRNSEG1", b"FIRNSEG2") and length <= size - 16, f"{key}: not a segment")
        body = self.place.get(key, size - 16 - length, length)
        check(crc32c(body + trailer[:4]) == crc == row.get("footer_crc", crc), f"{key}: another footer")
        return document(body, "firn-segment")

    def _section(self, row, footer, name):
        section = footer["sections"][name]
        if not section["length"]:
            return b""
        data = self.place.get(row["key"], section["position"], section["length"])
        check(crc32c(data) == section["crc32c"], f"{row['key']}: {name}: wrong checksum")
        return data

    def _blocks(self, row):
        """The block table of a segment: rows as `BLOCK` has them."""
        footer = self._footer(row)
        table, step = self._section(row, footer, "block_table"), footer.get("block_row_bytes", BLOCK.size)
        return [BLOCK.unpack_from(table, at) for at in range(0, len(table), step)]


def decode(data, aborted):
    """The records in whole batches of format v2, but those of `aborted` transactions."""
    at = 0
    while at < len(data):
        base, length, _, magic, crc, kind, _, first, newest, producer, *_, count = BATCH.unpack_from(data, at)
        end = at + 12 + length
        check(magic == 2 and at + BATCH.size <= end <= len(data), f"no batch at offset {base}")
        check(crc32c(memoryview(data)[at + 21 : end]) == crc, f"batch at offset {base}: wrong checksum")
        records, at = data[at + BATCH.size : end], end
        if kind & 0x10 and any(begin <= base <= last for begin, last in aborted.get(producer, ())):
            continue
        codec = CODECS[kind & 7]
        if codec not in ("none", "gzip"):
            raise NotImplementedError(f"codec {codec}, by which the batch at offset {base} is compressed")
        reader = Reader(unpack(records, MAX_BATCH) if codec == "gzip" else records)
        for _ in range(0 if kind & 0x20 else count):  # 0x20: a transaction marker
            reader.varint(), reader.take(1)  # the record's length, and attributes that mean nothing yet
            timestamp, offset = first + reader.varint(), base + reader.varint()
            key, value = reader.shown(), reader.shown()
            headers = [[reader.shown(), reader.shown()] for _ in range(reader.varint())]
            timestamp = newest if kind & 8 else timestamp  # of the append, not of its making
            yield {"offset": offset, "timestamp": timestamp, "key": key, "value": value, "headers": headers}


class Reader:
    """Kafka's variable-length integers, and what they announce."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, size):
        check(0 <= size <= len(self.data) - self.at, "a record ends beyond its batch")
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self):
        value = shift = 0
        while (byte := self.take(1)[0]) > 127 and shift < 63:
            value, shift = value | (byte & 127) << shift, shift + 7
        value |= byte << shift
        return value >> 1 ^ -(value & 1)

    def shown(self):
        data = self.take(size) if (size := self.varint()) >= 0 else None
        try:
            return data if data is None else data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}


def lines(place, asked):
    topics = document(place.get("topics.json"), "firn-topics")["topics"]
    topic = next((one for one in topics if asked.topic in (one["name"], one["topic_id"])), None)
    if asked.topic is None:
        yield from ({name: one[name] for name in ("name", "topic_id", "partitions")} for one in topics)
    elif topic is None:
        raise KeyError(asked.topic)
    elif asked.partition is None:
        for number in range(topic["partitions"]):
            found = Partition(place, topic["topic_id"], number)
            offsets = {"start_offset": found.start_offset, "end_offset": found.end_offset}
            yield {"topic": topic["name"], "partition": number, **offsets}
    else:
        found = Partition(place, topic["topic_id"], asked.partition)
        records = found.records(asked.offset, asked.committed)
        for record in islice(records, asked.limit):
            yield {"topic": topic["name"], "partition": asked.partition, **record}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("place")
    parser.add_argument("topic", nargs="?")
    parser.add_argument("partition", nargs="?", type=int)
    parser.add_argument("--from", dest="offset", type=int, default=0)
    parser.add_argument("--limit", type=int, default=sys.maxsize)
    parser.add_argument("--committed", action="store_true")
    try:
        asked = parser.parse_args()
        for line in lines(Place(asked.place), asked):
            print(json.dumps(line, ensure_ascii=False))
    except (NotImplementedError, LookupError, ValueError, struct.error, zlib.error, OSError) as e:
        sys.exit(f"{type(e).__name__}: {e}")
