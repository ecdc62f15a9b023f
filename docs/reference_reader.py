"""Reads a Firn archive with Python's standard library alone: docs/bucket-format.md as a program.

    reference_reader.py PLACE                   topics
    reference_reader.py PLACE TOPIC             the topic's partitions and their offsets
    reference_reader.py PLACE TOPIC PARTITION   records [--from OFFSET] [--limit COUNT] [--committed] [--tail]

PLACE is a folder, or an http(s) URL for plain GETs (its query is sent with every one). Output is one JSON
document a line; what is not UTF-8 is {"base64": …}. Transaction markers are not shown; records of aborted
transactions, and what lies behind the beginning of one that is open at the end, are without --committed.
--tail goes on behind the segments, into the newest complete cut. Every checksum is verified. Batches of other
codecs than gzip are an error that says which. Manifests of version 1 are zstd; Python before 3.14 lacks it,
and goes by the names of a folder's segments, which may be dead ones.
"""

import argparse
import base64
import io
import json
import os
import struct
import sys
import zlib
from itertools import chain, islice
from urllib import error, parse, request

MAX_DOCUMENT, MAX_BATCH = 64 << 20, 512 << 20
BLOCK, BATCH = struct.Struct(">qIIqqqqII"), struct.Struct(">qiibIhiqqqhii")
ABORTED, PRODUCER = struct.Struct(">hqqqq"), struct.Struct(">qhiqiqiq")
MAGICS, ABORT = (b"FIRNSEG1", b"FIRNSEG2", b"FIRNTAIL"), "\0\0\0\0"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "5", "6", "7")
CRC32C = list(range(256))
for _ in range(8):
    CRC32C = [crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for crc in CRC32C]


def check(holds, what):
    if not holds:
        raise ValueError(what)


def checksum(data):  # CRC-32C (Castagnoli), which zlib does not have
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC32C[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


class Place:
    """Objects by their keys, or parts of them, from a folder or over HTTP."""

    def __init__(self, place):
        self.folder, self.url = place, parse.urlsplit(place) if "://" in place else None

    def get(self, key, start=0, length=None):
        most = MAX_DOCUMENT + 1 if length is None else length
        if self.url:
            data = self._http(key, start, length, most)
        else:
            with open(os.path.join(self.folder, *key.split("/")), "rb") as file:
                file.seek(start)
                data = file.read(most)
        check(len(data) == length if length is not None else len(data) < most, f"{key}: of another size")
        return data

    def proved(self, key, position, length, crc32c, **_):
        data = self.get(key, position, length) if length else b""
        check(checksum(data) == crc32c, f"{key}: wrong checksum of the {length} bytes at {position}")
        return data

    def _http(self, key, start, length, most):
        path = f"{self.url.path.rstrip('/')}/{parse.quote(key)}"
        part = {} if length is None else {"Range": f"bytes={start}-{start + length - 1}"}
        asked = request.Request(self.url._replace(path=path).geturl(), headers=part)
        try:
            with request.urlopen(asked, timeout=60) as answer:
                check(answer.status == 206 or start == 0, f"{key}: the server knows no ranges")
                return answer.read(most)
        except error.HTTPError as e:
            kind = {403: PermissionError, 404: FileNotFoundError}.get(e.code)  # 403: it may well be there
            raise (kind(f"{key}: HTTP {e.code}") if kind else e) from e


def document(data, kind):
    fields = json.loads(data)
    check(fields.get("format") == kind and fields.get("format_version") in (1, 2), f"not a {kind} 1 or 2")
    body, seal, crc = data.rpartition(b',"document_crc32c":')  # in small documents, but for older ones
    check(not seal or crc == b"%d}" % checksum(body), f"{kind}: wrong checksum")
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
    """Live segments of a partition, from HEAD through the manifest and its pages, and what lies behind."""

    def __init__(self, place, topic_id, number):
        self.place, self.topic_id, self.number, self.rows = place, topic_id, number, []
        self.folder, self.start_offset, self.end_offset = f"data/{topic_id}/{number}", 0, 0
        try:
            head = document(place.get(f"{self.folder}/HEAD"), "firn-head")
        except FileNotFoundError:
            return  # nothing was ever archived
        try:
            self._open(head)
        except NotImplementedError as e:
            check(not place.url, e)
            print(f"{self.folder}: going by the names of its segments, for lack of {e}", file=sys.stderr)
            self._list()

    def _open(self, head):
        data = self.place.proved(head["manifest"], 0, head["stored_size"], head["crc32c"])
        manifest = document(unpack(data), "firn-manifest")
        self.start_offset, self.end_offset = manifest["start_offset"], manifest["end_offset"]
        rows = [*self._pages(manifest["pages"]), *manifest["segments"]]
        self.rows = [row for row in rows if row["last_offset"] >= self.start_offset]
        ends = [row["last_offset"] + 1 for row in self.rows]
        begins = [*(row["base_offset"] for row in self.rows[1:]), self.end_offset]
        check(not ends or begins == ends, f"{self.folder}: the chain has a gap, or ends elsewhere")

    def _pages(self, refs):
        for ref in refs:
            if ref["last_offset"] >= self.start_offset:
                data = self.place.proved(ref["key"], 0, ref["stored_size"], ref["crc32c"])
                page = document(unpack(data), "firn-manifest-page")
                yield from self._pages(page["children"]) if page["level"] else page["children"]

    def _list(self):
        folder = os.path.join(self.place.folder, *self.folder.split("/"))
        for name in sorted(name for name in os.listdir(folder) if name.endswith(".seg")):
            first, last, size = int(name[:20]), int(name[21:41]), os.path.getsize(os.path.join(folder, name))
            if first == self.end_offset or not self.rows:
                self.start_offset, self.end_offset = self.start_offset if self.rows else first, last + 1
                self.rows += [{"key": f"{self.folder}/{name}", "size": size, "last_offset": last}]

    def records(self, offset, committed=False, with_tail=False):
        """Records from `offset` on, as dictionaries; where asked, of committed transactions alone."""
        offset, aborted, tail = max(offset, self.start_offset), {}, list(self._tail()) if with_tail else []
        end = tail[-1][-1] if tail else self.end_offset
        if committed:
            opened, aborted = self._transactions(offset)
            for *where, first, after in tail:
                for producer, ends, one in decode(self.place.proved(*where)):
                    if producer is not None and first <= one["offset"] < after:
                        begin = opened.setdefault(producer, one["offset"])
                        if ends is not None and opened.pop(producer) < one["offset"] and ends == ABORT:
                            aborted.setdefault(producer, []).append((begin, one["offset"]))
            end = min([end, *opened.values()])
        for *where, first, after in chain(self._blocks(offset), tail):
            for producer, ends, one in decode(self.place.proved(*where)) if after > offset else ():
                is_dead = any(begin <= one["offset"] <= last for begin, last in aborted.get(producer, ()))
                if ends is None and not is_dead and max(first, offset) <= one["offset"] < min(after, end):
                    yield one

    def _blocks(self, offset):
        """Key, position, length and checksum of blocks; their first offset, and the one behind them."""
        for row in self.rows:
            if row["last_offset"] >= offset:
                footer = self._footer("firn-segment", row["key"], row["size"], row.get("footer_crc"))
                table = self.place.proved(row["key"], **footer["sections"]["block_table"])
                for place in range(0, len(table), footer.get("block_row_bytes", BLOCK.size)):
                    at, size, crc, first, last, *_ = BLOCK.unpack_from(table, place)
                    yield row["key"], at, size, crc, first, last + 1

    def _tail(self):
        """The same of sections behind the segments, in tails of the newest complete cut."""
        kept = [one for one in document(self.place.get("CUT"), "firn-cuts")["kept"] if one["is_complete"]]
        check(kept, "CUT: no cut is complete")
        data = self.place.proved(kept[-1]["key"], 0, kept[-1]["stored_size"], kept[-1]["crc32c"])
        cut = document(unpack(data), "firn-cut")
        columns = cut["topics"].get(self.topic_id, {"end": []})
        if self.number < len(columns["end"]):
            row = {name: values[self.number] for name, values in columns.items()}
            sections = [one for tail in cut["tails"] for one in self._sections(*tail)]
            at = max(self.end_offset, row["start"])
            end = min(row["end"], row["saved"]) if row["waits"] or row["saved"] >= row["end"] else 0
            while at < end:  # what a later leader saved takes the place of what earlier ones did
                begun = [one for one in sections if one["first_offset"] <= at]
                one = begun and max(begun, key=lambda x: (x["leader_epoch"], x["end_offset"] > at, x["key"]))
                check(one and one["end_offset"] > at, f"{self.folder}: offset {at} is in no tail")
                age = one["leader_epoch"], one["key"]
                later = (it["first_offset"] for it in sections if (it["leader_epoch"], it["key"]) > age)
                after = min([end, one["end_offset"], *(first for first in later if first > at)])
                yield one["key"], one["position"], one["length"], one["crc32c"], at, after
                at = after

    def _sections(self, key, size, _, crc, *__):
        last_epoch = self.rows[-1].get("leader_epochs", [[-1]])[-1][0] if self.rows else -1
        footer = self._footer("firn-tail", key, size, crc)
        for values in footer["sections"]:
            one = dict(zip(footer["columns"], values, strict=True), key=key)
            if (one["topic_id"], one["partition"]) == (self.topic_id, self.number):
                yield from [one] if one["last_batch_epoch"] >= last_epoch else []

    def _transactions(self, offset):
        """By producers: where open transactions begin; where aborted ones begin, and their markers."""
        opened, aborted = {}, {}
        for row in self.rows:
            if row["last_offset"] >= offset or row is self.rows[-1]:
                footer = self._footer("firn-segment", row["key"], row["size"], row.get("footer_crc"))
                index = self.place.proved(row["key"], **footer["sections"]["txn_index"])
                for _, producer, first, last, _ in ABORTED.iter_unpack(index):
                    aborted.setdefault(producer, []).append((first, last))
                snapshot = self.place.proved(row["key"], **footer["sections"]["producer_snapshot"])[10:]
                opened = {one[0]: one[-1] for one in PRODUCER.iter_unpack(snapshot) if one[-1] >= 0}
                opened = opened or {-1: footer.get("open_from", self.end_offset)}
        return {who: at for who, at in opened.items() if at < self.end_offset}, aborted

    def _footer(self, kind, key, size, known):
        trailer = self.place.get(key, max(size - 16, 0), 16)
        length, crc, magic = struct.unpack(">II8s", trailer)
        check(magic in MAGICS and length <= size - 16, f"{key}: not a {kind}")
        body = self.place.get(key, size - 16 - length, length)
        check(checksum(body + trailer[:4]) == crc and known in (None, crc), f"{key}: another footer")
        return document(body if body[:1] == b"{" else unpack(body, MAX_BATCH), kind)


def decode(data):
    """Records of batches of format v2: whose transaction's (or None), which marker (or None), the record."""
    at = 0
    while at < len(data):
        base, length, _, magic, crc, kind, _, first, newest, producer, *_, count = BATCH.unpack_from(data, at)
        end = at + 12 + length
        check(magic == 2 and at + BATCH.size <= end <= len(data), f"no batch at offset {base}")
        check(checksum(memoryview(data)[at + 21 : end]) == crc, f"batch at offset {base}: wrong checksum")
        records, at, codec = data[at + BATCH.size : end], end, CODECS[kind & 7]
        if codec not in ("none", "gzip"):
            raise NotImplementedError(f"codec {codec}, by which the batch at offset {base} is compressed")
        reader = Reader(unpack(records, MAX_BATCH) if codec == "gzip" else records)
        for _ in range(count):
            reader.varint(), reader.take(1)  # the record's length, and attributes that mean nothing yet
            timestamp, offset = first + reader.varint(), base + reader.varint()
            key, value = reader.shown(), reader.shown()
            headers = [[reader.shown(), reader.shown()] for _ in range(reader.varint())]
            timestamp = newest if kind & 8 else timestamp  # of the append, not of its making
            one = {"offset": offset, "timestamp": timestamp, "key": key, "value": value, "headers": headers}
            yield producer if kind & 0x10 else None, key if kind & 0x20 else None, one


class Reader(io.BytesIO):  # Kafka's variable-length integers, and what they announce
    def take(self, size):
        data = self.read(size)
        check(len(data) == size, "a record ends beyond its batch")
        return data

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
    if asked.topic is None:
        yield from ({name: one[name] for name in ("name", "topic_id", "partitions")} for one in topics)
        return
    topic = {one[by]: one for by in ("topic_id", "name") for one in topics}[asked.topic]
    for number in range(topic["partitions"]) if asked.partition is None else [asked.partition]:
        found = Partition(place, topic["topic_id"], number)
        rows = [{"start_offset": found.start_offset, "end_offset": found.end_offset}]
        if asked.partition is not None:
            rows = islice(found.records(asked.offset, asked.committed, asked.tail), asked.limit)
        yield from ({"topic": topic["name"], "partition": number, **row} for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, kind in (("place", {}), ("topic", {"nargs": "?"}), ("partition", {"nargs": "?", "type": int})):
        parser.add_argument(name, **kind)
    parser.add_argument("--from", dest="offset", type=int, default=0)
    parser.add_argument("--limit", type=int, default=sys.maxsize)
    for flag in ("--committed", "--tail"):
        parser.add_argument(flag, action="store_true")
    try:
        asked = parser.parse_args()
        for line in lines(Place(asked.place), asked):
            print(json.dumps(line, ensure_ascii=False))
    except (NotImplementedError, LookupError, ValueError, struct.error, zlib.error, OSError) as e:
        sys.exit(f"{type(e).__name__}: {e}")
