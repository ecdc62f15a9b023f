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

from service.remote.stores.errors import StoreRefused, StoreUnavailable
from service.tiering.copier import CallProgress
from service.tiering.erasing.leftovers import VersionsLeft
from service.tiering.erasing.remains import IsDead

_MOST_LOCKED: Final = 20
_END_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class VersionsChild:
    """A `tiering.erasing.remains.VersionsOf` for one bucket. Blocks; for an offload thread."""

    url: str
    endpoint: str | None
    region: str | None

    def __call__(
        self,
        prefixes: Sequence[str],
        is_dead: IsDead,
        progress: CallProgress,
        /,
        *,
        takes_current: bool = False,
    ) -> VersionsLeft:
        """Remove the versions below `prefixes` that are dead, the current ones only if `takes_current`;
        return how many are left, and why.

        Raises `StoreRefused` where the store says no, `StoreUnavailable` where it does not answer, or the
        child fails.
        """
        order = {
            "url": self.url,
            "endpoint": self.endpoint,
            "region": self.region,
            "below": list(prefixes),
            "takes_current": takes_current,
        }
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
        return _left(len(dead), answer["kept"], answer["days"], newest_ms)

    def _line(self) -> dict[str, Any]:
        self._progress.advance(1)
        line = self._from_child.readline()
        if not line:
            raise ValueError("the child process ended")
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("the child process does not answer in objects")
        if "error" in found:
            raise (StoreRefused if found["is_refused"] else StoreUnavailable)(str(found["error"]))
        return found


def _left(dead: int, kept: Sequence[Sequence[str]], days: int | None, newest_ms: int) -> VersionsLeft:
    """Return what is left of so many dead versions, the newest of which was written at a time."""
    if not kept:
        return VersionsLeft(removed=dead)
    until, until_ms = "no lifecycle rule takes them", None
    if days is not None:
        at = datetime.fromtimestamp(newest_ms / 1000, UTC) + timedelta(days=days)
        until = f"the lifecycle rule takes them by {at.isoformat(timespec='seconds')} at the earliest"
        until_ms = int(at.timestamp() * 1000)
    locked = [f"{key} until {end}" for key, _, _, end in kept if end]
    return VersionsLeft(
        removed=dead - len(kept),
        left=len(kept),
        why=f"{kept[0][2]}; {until}",
        locked=tuple(locked[:_MOST_LOCKED]),
        locked_count=len(locked),
        until_ms=until_ms,
    )


def _tell(file: IO[str], document: dict[str, Any]) -> None:
    file.write(f"{json.dumps(document)}\n")
    file.flush()


def main() -> int:
    """Serve one order from standard input."""
    from service.base.errors import ConfigError, FirnError
    from service.inspect.old_versions import AT_ONCE, OldVersion, OldVersions
    from service.remote.stores.boto3_client import s3_client

    order = json.loads(sys.stdin.readline())
    try:
        client, address = s3_client(order["url"], order["endpoint"], order["region"], os.environ)
        versions = OldVersions(client, address)
        if versions.are_kept():
            page: list[OldVersion] = []
            for below in order["below"]:
                for one in versions.found(below, takes_current=order["takes_current"]):
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
        _tell(sys.stdout, {"error": str(e), "is_refused": isinstance(e, (ConfigError, StoreRefused))})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
