"""Captures the golden files beside it from real clients and a real Apache Kafka 4.3.1 broker.

    python tests/golden/records/capture.py BOOTSTRAP DATA_DIR CONSOLE_PRODUCER...

BOOTSTRAP is host:port of a throw-away broker that keeps its log under DATA_DIR on this machine,
CONSOLE_PRODUCER is the command that runs Kafka's kafka-console-producer. Writes:

- ``<client>-<codec>.log``: what the broker stored of `SENT`, by each client and codec;
- ``answers.json``: batches as a producer could send them, the topic's config, the broker's error code, and
  the batch it stored where it took it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import confluent_kafka
import kafka
from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from service.records.batch import HEADER, BatchHeader, CompressionType, compute_crc, iter_headers
from service.records.builder import BatchBuilder, encode_record
from tests.support.built_batches import build_batch

HERE = Path(__file__).parent
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
T0 = int(time.time() * 1000)
SENT: list[dict[str, Any]] = [
    {"timestamp": T0, "key": "tail-N14228", "value": "EWR-IAH", "headers": []},
    {
        "timestamp": T0 + 5,
        "key": None,
        "value": "LGA-IAH" * 30,
        "headers": [["origin", "LGA"], ["empty", ""]],
    },
    {"timestamp": T0 - 7, "key": "", "value": "", "headers": [["null", None], ["größe", "ü"]]},
    {"timestamp": T0 + 1, "key": "tombstone", "value": None, "headers": []},
]
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "bounded": {"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "1000"},
    **{f"to-{codec}": {"compression.type": codec} for codec in ("uncompressed", *CODECS[1:])},
}
FIELD_NAMES = BatchHeader._fields[1:]


def patched(batch: bytes, payload: bytes | None = None, *, keep_crc: bool = False, **fields: int) -> bytes:
    """``batch`` with other header fields or records; length and checksum follow unless given."""
    out = bytearray(batch[:61]) + (batch[61:] if payload is None else payload)
    values = dict(zip(FIELD_NAMES, HEADER.unpack_from(batch), strict=True))
    values["batch_length"] = len(out) - 12
    HEADER.pack_into(out, 0, *(values | fields).values())
    if not keep_crc:
        struct.pack_into(">I", out, 17, compute_crc(out, 0, len(out)))
    return bytes(out)


def cases() -> dict[str, tuple[str, bytes]]:
    """Return the topic and the bytes to produce of each case, by its name."""
    good = bytes(build_batch([(T0, b"k", b"v1"), (T0 + 3, None, b"v2"), (T0 + 2, b"", None)]))
    out = framing_cases(good) | codec_cases(good) | attribute_cases(good) | timestamp_cases(good)
    out["too large"] = bytes(build_batch([(T0, None, b"x" * 1_048_588)]))
    for name, payload in bad_records().items():
        out[name] = patched(bytes(build_batch([(T0, None, b"a")])), payload)
    swapped = [encode_record(i, 0, None, b"v") for i in (0, 2, 1)]
    batch = bytearray(build_batch([(T0, None, b"v")] * 3))
    out["offsets not in order"] = patched(bytes(batch), b"".join(swapped))
    return {name: ("plain", data) for name, data in out.items()} | other_topics_cases(out)


def framing_cases(good: bytes) -> dict[str, bytes]:
    out: dict[str, bytes] = {"good": good, "nothing": b"", "two batches": good + good}
    for extra in (5, 20, 61):
        out[f"{extra} zero bytes after the batch"] = good + bytes(extra)
        out[f"{extra} high bytes after the batch"] = good + b"\x7f" * extra
    for cut in (5, 11, 12, 13, 16, 17, 26, 40, 60, 61, len(good) - 1):
        out[f"cut at {cut}"] = good[:cut]
    for length in (-1, -(2**31), 0, 13, 14, 20, 48, 49, len(good) - 13, len(good) - 11, 2**31 - 1):
        out[f"length {length}"] = patched(good, batch_length=length, keep_crc=True)
    out["48 bytes, all there"] = good[:8] + struct.pack(">i", 36) + good[12:48]
    for magic in (-1, 0, 1, 3, 127):
        out[f"magic {magic}"] = patched(good, magic=magic)
    out["checksum"] = patched(good, crc=0, keep_crc=True)
    out["base offset 1"] = patched(good, base_offset=1)
    out["leader epoch 9"] = patched(good, partition_leader_epoch=9)
    for count, delta in (
        (0, -1),
        (0, 2),
        (-1, 2),
        (2, 2),
        (4, 2),
        (4, 3),
        (2, 1),
        (3, -1),
        (3, 3),
        (2**31 - 1, 2**31 - 2),
    ):
        out[f"count {count}, delta {delta}"] = patched(good, record_count=count, last_offset_delta=delta)
    return out


def codec_cases(good: bytes) -> dict[str, bytes]:
    out: dict[str, bytes] = {}
    for codec in (5, 6, 7):
        out[f"codec {codec}"] = patched(good, attributes=codec)
    for name in CODECS[1:]:
        codec = CompressionType[name.upper()]
        packed = bytes(build_batch([(T0 + i, b"key", b"value" * 20) for i in range(10)], codec=codec))
        out[f"{name}, good"] = packed
        out[f"{name}, uncompressed records"] = patched(good, attributes=codec)
        out[f"{name}, cut payload"] = patched(packed, packed[61:-9])
        out[f"{name}, empty payload"] = patched(packed, b"")
        out[f"{name}, one record more"] = patched(packed, record_count=11, last_offset_delta=10)
        out[f"{name}, one record less"] = patched(packed, record_count=9, last_offset_delta=8)
        out[f"{name}, max timestamp"] = patched(packed, max_timestamp=T0)
    return out


def attribute_cases(good: bytes) -> dict[str, bytes]:
    out = {"control": patched(good, attributes=0x20)}
    out["transactional"] = patched(good, attributes=0x10, producer_id=1, producer_epoch=0, base_sequence=0)
    out["producer id without sequence"] = patched(good, producer_id=1, producer_epoch=0)
    out["sequence without producer id"] = patched(good, base_sequence=5)
    out["typed append time"] = patched(good, attributes=8)
    for bit in (6, 7, 8, 14):
        out[f"attribute bit {bit}"] = patched(good, attributes=1 << bit)
    return out


def timestamp_cases(good: bytes) -> dict[str, bytes]:
    out = {"max timestamp too high": patched(good, max_timestamp=T0 + 999_999_999)}
    out["max timestamp too low"] = patched(good, max_timestamp=-1)
    for ahead in (3_500_000, 3_700_000, 10**15):
        out[f"timestamp ahead {ahead}"] = bytes(build_batch([(T0, None, b"a"), (T0 + ahead, None, b"b")]))
    out["timestamp 0"] = bytes(build_batch([(0, None, b"a")]))
    out["timestamp -1"] = bytes(build_batch([(-1, None, b"a"), (-1, None, b"b")]))
    out["timestamp -5"] = patched(bytes(build_batch([(0, None, b"a")])), base_timestamp=-5, max_timestamp=-5)
    out["timestamp beyond 64 bits"] = patched(good, base_timestamp=2**63 - 1)
    return out


def other_topics_cases(out: dict[str, bytes]) -> dict[str, tuple[str, bytes]]:
    """Return some of the cases for topics with other settings than "plain"."""
    topics: dict[str, tuple[str, bytes]] = {}
    for topic in TOPICS:
        if topic != "plain":
            for name in (
                "good",
                "gzip, good",
                "zstd, good",
                "lz4, good",
                "snappy, good",
                "typed append time",
            ):
                topics[f"{topic}: {name}"] = (topic, out[name])
    for name in ("timestamp 0", "timestamp -1", "timestamp ahead 3700000"):
        topics[f"append-time: {name}"] = ("append-time", out[name])
        topics[f"bounded: {name}"] = ("bounded", out[name])
    builder = BatchBuilder(producer_id=7, producer_epoch=1, base_sequence=0, codec=CompressionType.GZIP)
    for i in range(5):
        builder.add(T0 + i, b"k%d" % i, b"v" * i, [("h", b"x"), ("n", None)])
    topics["to-zstd: idempotent with headers"] = ("to-zstd", bytes(builder.build()))
    return topics


def bad_records() -> dict[str, bytes]:
    record = encode_record(0, 0, None, b"a")
    body = record[1:]

    def framed(body: bytes) -> bytes:
        return bytes([len(body) * 2]) + body

    return {
        "record length too short": bytes([record[0] - 2]) + body,
        "record length too long": bytes([record[0] + 2]) + body,
        "record length with a byte more": bytes([record[0] + 2]) + body + b"\0",
        "record length negative": b"\x01" + body,
        "record length 0": b"\x00",
        "record length of 2 GiB": b"\xfe\xff\xff\xff\x0f" + body,
        "record length varint of 6 bytes": b"\x80\x80\x80\x80\x80\x00" + body,
        "timestamp varint of 11 bytes": framed(b"\0" + b"\x80" * 10 + b"\0" + b"\0\x01\x02a\0"),
        "key beyond the record": framed(b"\0\0\0\x7eab"),
        "key length -5": framed(b"\0\0\0\x09\x02a\0"),
        "value beyond the record": framed(b"\0\0\0\x01\x7eab"),
        "header count -1": framed(b"\0\0\0\x01\x02a\x01"),
        "header count too high": framed(b"\0\0\0\x01\x02a\x08"),
        "header count of 2^31": framed(b"\0\0\0\x01\x02a\xfe\xff\xff\xff\x0f"),
        "header key null": framed(b"\0\0\0\x01\x02a\x02\x01\x01"),
        "header value beyond the record": framed(b"\0\0\0\x01\x02a\x02\x02k\x7e"),
        "record attributes set": framed(b"\xff\0\0\x01\x02a\0"),
        "no header count": framed(b"\0\0\0\x01\x02a"),
    }


class RawProducer:
    """Speaks Produce v8 with whatever bytes it is given."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(":")
        self._address = (host, int(port))

    def produce(self, topic: str, records: bytes) -> tuple[int, int]:
        """(error code, base offset); error code -2 where the broker closed the connection."""
        name = topic.encode()
        body = struct.pack(">hhih", 0, 8, 1, -1) + struct.pack(">hhi", -1, -1, 5000)
        body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, 0, len(records)) + records
        with socket.create_connection(self._address) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.makefile("rb")
            head = answer.read(4)
            if len(head) < 4:
                return -2, -1
            data = answer.read(struct.unpack(">i", head)[0])
        return struct.unpack_from(">hq", data, 4 + 4 + 2 + len(name) + 4 + 4)


def stored_batches(data_dir: Path, topic: str) -> dict[int, bytes]:
    (path,) = (data_dir / f"{topic}-0").glob("*.log")
    data = path.read_bytes()
    return {h.base_offset: data[h.position : h.end] for h in iter_headers(data)}


def capture_answers(bootstrap: str, data_dir: Path) -> None:
    producer = RawProducer(bootstrap)
    rows = []
    for name, (topic, data) in cases().items():
        code, offset = producer.produce(topic, data)
        error = "CONNECTION_CLOSED" if code == -2 else ErrorCode(code).name
        row = {"name": name, "config": TOPICS[topic], "produced": data.hex(), "error": error}
        if not code:
            row["stored"] = stored_batches(data_dir, topic)[offset].hex()
        if len(data) > 1_000_000:
            row["produced"] = (
                f"{data[:70].hex()} then {data[70]:02x} to {len(data)} bytes, last {data[-1]:02x}"
            )
        rows.append(row)
        print(f"{name:45} {error}")
    document = {"now_ms": T0, "broker": "Apache Kafka 4.3.1", "cases": rows}
    (HERE / "answers.json").write_text(json.dumps(document, indent=1) + "\n")


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def with_confluent(bootstrap: str, topic: str, codec: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 200}
    )
    for record in SENT:
        headers = [(k, encoded(v)) for k, v in record["headers"]]
        producer.produce(
            topic,
            encoded(record["value"]),
            encoded(record["key"]),
            0,
            timestamp=record["timestamp"],
            headers=headers,
        )
    assert not producer.flush(10)


def with_kafka_python(bootstrap: str, topic: str, codec: str) -> None:
    kind = None if codec == "none" else codec
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, compression_type=kind, linger_ms=200)
    for record in SENT:
        headers = [(k, encoded(v) or b"") for k, v in record["headers"]]  # it knows no null header value
        producer.send(
            topic, encoded(record["value"]), encoded(record["key"]), headers, 0, record["timestamp"]
        )
    producer.close()


def with_aiokafka(bootstrap: str, topic: str, codec: str) -> None:
    async def run() -> None:
        kind = None if codec == "none" else codec
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=kind) as producer:
            builder = producer.create_batch()
            for r in SENT:
                headers = [(k, encoded(v)) for k, v in r["headers"]]
                builder.append(
                    key=encoded(r["key"]),
                    value=encoded(r["value"]),
                    timestamp=r["timestamp"],
                    headers=headers,
                )
            await (await producer.send_batch(builder, topic, partition=0))

    asyncio.run(run())


def with_java(command: list[str], bootstrap: str, topic: str, codec: str) -> None:
    lines = "h1:x,h2:y\tkey-1\tvalue one\nh1:z\tkey-2\tvalue two\nh3:\tkey-3\t" + "long" * 50 + "\n"
    options = ["--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec]
    for name in ("parse.key=true", "parse.headers=true"):
        options += ["--reader-property", name]
    subprocess.run([*command, *options], input=lines.encode(), check=True, capture_output=True)


def main(bootstrap: str, data_dir: Path, console_producer: list[str]) -> None:
    clients = {
        "confluent-kafka": with_confluent,
        "kafka-python": with_kafka_python,
        "aiokafka": with_aiokafka,
    }
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, 1, config=config) for name, config in TOPICS.items()]
    topics += [NewTopic(f"{client}-{codec}", 1) for client in (*clients, "java") for codec in CODECS]
    for future in admin.create_topics(topics).values():
        future.result(30)
    time.sleep(1)
    capture_answers(bootstrap, data_dir)
    for codec in CODECS:
        for client, send in clients.items():
            send(bootstrap, f"{client}-{codec}", codec)
        with_java(console_producer, bootstrap, f"java-{codec}", codec)
        for client in (*clients, "java"):
            batches = stored_batches(data_dir, f"{client}-{codec}")
            (HERE / f"{client}-{codec}.log").write_bytes(b"".join(batches.values()))
            print(client, codec, [len(b) for b in batches.values()])
    (HERE / "sent.json").write_text(json.dumps({"now_ms": T0, "records": SENT}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
