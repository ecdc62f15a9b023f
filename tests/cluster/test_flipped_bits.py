"""One bit of one file flips while the node is down: it is reported or harmless, and truncates nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import NodeFactory
from tests.support.clients import Admin, Confluent, Row, digest, make_rows
from tests.support.processes import Node
from tests.support.wire import RawConnection, offsets

KAFKA_STORAGE_ERROR = 56
SEGMENTED: dict[str, Any] = {"segment_bytes": "1048576"}
IDEMPOTENT: dict[str, Any] = {"enable.idempotence": True}
ROWS = 3_000
"""Of a kilobyte: three segments."""

OF_A_REPLICA = {
    "sealed-log": "struck-0/*.log",
    "index": "struck-0/*.index",
    "timeindex": "struck-0/*.timeindex",
    "snapshot": "struck-0/*.snapshot",
    "leader-epochs": "struck-0/leader-epoch-checkpoint",
    "topic-id": "struck-0/partition.metadata",
}
OF_THE_DIRECTORY = {
    "meta": "meta.properties",
    "recovery-points": "recovery-point-offset-checkpoint",
    "log-starts": "log-start-offset-checkpoint",
    "quorum-state": "__cluster_metadata-0/quorum-state",
    "durable-offset": "__cluster_metadata-0/durable-offset",
}
OFTEN = ("sealed-log", "leader-epochs", "durable-offset")
"""The others are `thorough`."""
FLIPS = 1
"""Of each kind of file and of stop; the simulator draws many more."""


class Flipped(NamedTuple):
    """The file that has a bit flipped, and its bytes before and after."""

    path: Path
    whole: bytes
    damaged: bytes


def flip(data: Path, pattern: str, source: random.Random) -> Flipped:
    """One bit of the first file (the oldest segment's) that has any."""
    path = next(path for path in sorted(data.glob(pattern)) if path.stat().st_size)
    whole = path.read_bytes()
    bit = source.randrange(8 * len(whole))
    print(f"{path.name}: bit {bit}")
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    return Flipped(path, whole, bytes(damaged))


def fill(node: Node) -> dict[str, list[Row]]:
    rows = {"struck": make_rows(ROWS, 1, seed=1), "other": make_rows(ROWS, 1, seed=2)}
    for topic, produced in rows.items():
        Admin(node.bootstrap).create(topic, **SEGMENTED)
        Confluent().produce(node.bootstrap, topic, produced, **IDEMPOTENT)
    node.stop()
    return rows


def logs(data: Path) -> dict[Path, bytes]:
    return {path.relative_to(data): path.read_bytes() for path in data.glob("[os]*-0*/*.log")}


def end(node: Node, topic: str) -> tuple[int, int]:
    """Error code and end offset."""
    with RawConnection(node.bootstrap) as connection:
        answer = offsets(connection, topic, 0, -1)
    return int(answer.error_code), int(answer.offset)


def is_whole(node: Node, topic: str, rows: list[Row]) -> bool:
    return digest(Confluent().read(node.bootstrap, topic, 0, 0, ROWS)) == digest(rows)


def log_since(node: Node, position: int) -> str:
    return node.stderr_path.read_text(errors="replace")[position:]


def outcome_of(node: Node, topic: str, rows: list[Row], flipped: Flipped, since: int) -> str:
    """It is whole; or it is offline, or its reader is told, and the log names what is damaged."""
    code, end_offset = end(node, topic)
    if code:
        assert code == KAFKA_STORAGE_ERROR
        assert f"{topic}-0" in log_since(node, since)
        return "offline"
    assert end_offset == ROWS, "end offsets do not go back"
    try:
        found = Confluent().read(node.bootstrap, topic, 0, 0, ROWS)
    except AssertionError as error:  # the client's, of its check of each batch, or of what it is answered
        what = str(error)
        was_told = "BAD_MSG" in what or "CRC" in what.upper() or flipped.path.name in log_since(node, since)
        if not was_told:
            raise
        return "told"
    assert digest(found) == digest(rows), "what is not as it was written is served as if it were"
    return "whole"


@pytest.mark.parametrize("stopped", ["hard", pytest.param("cleanly", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.thorough)
        for kind in (*OF_A_REPLICA, *OF_THE_DIRECTORY)
    ],
)
def test_a_flipped_bit_is_named_or_harmless_and_nothing_is_cut(
    kind: str, stopped: str, start_node: NodeFactory, tmp_path: Path
) -> None:
    node = start_node()
    rows = fill(node)
    if stopped == "hard":  # all of it lies below the recovery point of the stop before
        node.start()
        node.kill()
    pristine = tmp_path / "pristine"
    shutil.copytree(node.data, pristine)
    for seed in range(FLIPS):
        flipped = flip(
            node.data, {**OF_A_REPLICA, **OF_THE_DIRECTORY}[kind], random.Random(f"{kind} {stopped} {seed}")
        )
        before = logs(node.data)
        since = node.stderr_path.stat().st_size
        outcome = "refused"
        try:
            node.start()
        except AssertionError:
            assert kind in OF_THE_DIRECTORY, "one replica's file keeps no node down"
            assert flipped.path.name in log_since(node, since)
            assert flipped.path.read_bytes() == flipped.damaged, "left as it is"
        else:
            assert is_whole(node, "other", rows["other"])
            outcome = outcome_of(node, "struck", rows["struck"], flipped, since)
            node.stop()
        print(f"seed {seed}: {outcome}")
        assert logs(node.data) == before, "no byte of a log is cut away or moved"
        if flipped.path.read_bytes() == flipped.damaged:  # otherwise the node has replaced it since
            flipped.path.write_bytes(flipped.whole)
        node.start()
        for topic, produced in rows.items():
            assert end(node, topic) == (0, ROWS)
            assert is_whole(node, topic, produced)
        node.stop()
        shutil.rmtree(node.data)
        shutil.copytree(pristine, node.data)
