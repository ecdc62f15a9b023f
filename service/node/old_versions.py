"""Old versions of objects that an erasure dropped, removed by a child process of the node.

boto3, which can list versions, holds the interpreter's lock for long and stays in memory, so no broker loads
it (`remote/stores/boto3_client.py`). The child is there for one search: it writes what it finds, is told
which of it to remove, and ends. Lines of JSON both ways; the credentials are those of the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import IO, Any, Final

from service.base.errors import StorageError
from service.remote.stores.errors import StoreUnavailable
from service.tiering.copier import CallProgress
from service.tiering.erasing.remains import IsDead, VersionsLeft

_MOST_LOCKED: Final = 20
_END_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class VersionsChild:
    """A `tiering.erasing.remains.VersionsOf` for one bucket. Blocks; for an offload thread."""

    url: str
    endpoint: str | None
    region: str | None

    def __call__(self, prefixes: Sequence[str], is_dead: IsDead, progress: CallProgress) -> VersionsLeft:
        """Remove the old versions below `prefixes` that are dead; return how many are left, and why.

        Raises `StorageError` where the store does not answer, or the child fails.
        """
        order = {"url": self.url, "endpoint": self.endpoint, "region": self.region, "below": list(prefixes)}
        process = subprocess.Popen(
            [sys.executable, "-m", "service.node.old_versions"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _tell(process.stdin, order)
            return _Talk(process.stdin, process.stdout, is_dead, progress).run()
        except (OSError, ValueError, KeyError) as e:
            raise StoreUnavailable(f"the search for old versions failed: {e}") from e
        finally:
            process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()


class _Talk:
    def __init__(
        self, to_child: IO[str], from_child: IO[str], is_dead: IsDead, progress: CallProgress
    ) -> None:
        self._to_child = to_child
        self._from_child = from_child
        self._is_dead = is_dead
        self._progress = progress

    def run(self) -> VersionsLeft:
        dead: list[list[Any]] = []
        newest_ms = 0
        while True:
            line = self._line()
            if "error" in line:
                raise StorageError(str(line["error"]))
            if "found" not in line:
                break
            for key, version_id, modified_ms in line["found"]:
                if self._is_dead(key, modified_ms):
                    dead.append([key, version_id, modified_ms])
                    newest_ms = max(newest_ms, modified_ms)
        if not dead:
            return VersionsLeft()
        _tell(self._to_child, {"remove": dead})
        answer = self._line()
        if "error" in answer:
            raise StorageError(str(answer["error"]))
        return _left(len(dead), answer["kept"], answer["days"], newest_ms)

    def _line(self) -> dict[str, Any]:
        self._progress.advance(1)
        line = self._from_child.readline()
        if not line:
            raise ValueError("the child process ended")
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("the child process does not answer in objects")
        return found


def _left(dead: int, kept: Sequence[Sequence[str]], days: int | None, newest_ms: int) -> VersionsLeft:
    """Return what is left of so many dead versions, the newest of which was written at a time."""
    if not kept:
        return VersionsLeft(removed=dead)
    until = "no lifecycle rule takes them"
    if days is not None:
        at = datetime.fromtimestamp(newest_ms / 1000, UTC) + timedelta(days=days)
        until = f"the lifecycle rule takes them by {at.isoformat(timespec='seconds')} at the earliest"
    locked = tuple(f"{key} until {end}" for key, _, _, end in kept if end)[:_MOST_LOCKED]
    return VersionsLeft(dead - len(kept), len(kept), f"{kept[0][2]}; {until}", locked)


def _tell(file: IO[str], document: dict[str, Any]) -> None:
    file.write(f"{json.dumps(document)}\n")
    file.flush()


def main() -> int:
    """Serve one order from standard input."""
    from service.base.errors import FirnError
    from service.inspect.old_versions import AT_ONCE, OldVersion, OldVersions
    from service.remote.stores.boto3_client import s3_client

    order = json.loads(sys.stdin.readline())
    try:
        client, address = s3_client(order["url"], order["endpoint"], order["region"], os.environ)
        versions = OldVersions(client, address)
        if versions.are_kept():
            page: list[OldVersion] = []
            for below in order["below"]:
                for one in versions.found(below):
                    page.append(one)
                    if len(page) == AT_ONCE:
                        _tell(sys.stdout, {"found": page})
                        page = []
            if page:
                _tell(sys.stdout, {"found": page})
        _tell(sys.stdout, {})
        line = sys.stdin.readline()
        if line:
            dead = [OldVersion(*row) for row in json.loads(line)["remove"]]
            _tell(sys.stdout, {"kept": versions.remove(dead), "days": versions.expiry_days()})
    except FirnError as e:
        _tell(sys.stdout, {"error": str(e)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
