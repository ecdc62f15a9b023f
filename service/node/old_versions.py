"""Old versions of objects that an erasure dropped, removed by a child process of the node.

boto3, which can list versions, holds the interpreter's lock for long and stays in memory, so no broker loads
it (`remote/stores/boto3_client.py`). The child is there for one call: it writes what it finds, a page at a
time, and is told which of it to remove. Neither side holds more: a bucket that keeps tails for a month may
have a million versions. Lines of JSON both ways; the credentials are those of the environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Final

from service.remote.stores.errors import StoreRefused, StoreUnavailable
from service.tiering.copier import CallProgress
from service.tiering.erasing.leftovers import VersionsLeft
from service.tiering.erasing.remains import IsDead

if TYPE_CHECKING:
    from service.inspect.old_versions import OldVersion

_MOST_LOCKED: Final = 20
_END_S: Final = 10.0
_MOST_SEARCHES: Final = 5
"""Searches until one finds nothing to remove: removing amid a listing may have hidden others from it."""


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
            [sys.executable, "-P", "-m", "service.node.old_versions"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            return _Talk(process.stdin, process.stdout, is_dead, progress).run(order)
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

    def run(self, order: dict[str, Any]) -> VersionsLeft:
        """Remove versions until there are none, or none but those that the store keeps; then delete markers,
        where nothing is kept below one."""
        removed = 0
        for _ in range(_MOST_SEARCHES):
            left = self._search({**order, "markers": False})
            removed += left.removed
            if not left.removed:
                break
        else:
            left = left._replace(unknown="the store goes on listing versions that it says are removed")
        if left == VersionsLeft():
            removed += self._search({**order, "markers": True}).removed
        return left._replace(removed=removed)

    def _search(self, order: dict[str, Any]) -> VersionsLeft:
        """Have what is dead removed, a page at a time."""
        _tell(self._to_child, order)
        dead = left = locked_count = newest_ms = 0
        why, locked = "", list[str]()
        while "found" in (line := self._line()):
            some = [row for row in line["found"] if self._is_dead(row[0], row[2])]
            _tell(self._to_child, {"remove": some})
            if not some:
                continue
            kept = self._line()["kept"]
            dead, left = dead + len(some), left + len(kept)
            newest_ms = max(newest_ms, *(row[2] for row in some))
            why = why or (kept[0][2] if kept else "")
            dates = [f"{key} until {end}" for key, _, _, end in kept if end]
            locked_count += len(dates)
            locked += dates[: _MOST_LOCKED - len(locked)]
        if not left:
            return VersionsLeft(removed=dead)
        until, until_ms = _until(line["days"], newest_ms)
        return VersionsLeft(
            removed=dead - left,
            left=left,
            why=f"{why}; {until}",
            locked=tuple(locked),
            locked_count=locked_count,
            until_ms=until_ms,
        )

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


def _until(days: int | None, newest_ms: int) -> tuple[str, int | None]:
    """Return when a lifecycle rule of so many days takes versions, the newest of which was written at a
    time."""
    if days is None:
        return "no lifecycle rule takes them", None
    at = datetime.fromtimestamp(newest_ms / 1000, UTC) + timedelta(days=days)
    words = f"the lifecycle rule takes them by {at.isoformat(timespec='seconds')} at the earliest"
    return words, int(at.timestamp() * 1000)


def _tell(file: IO[str], document: dict[str, Any]) -> None:
    file.write(f"{json.dumps(document)}\n")
    file.flush()


def main() -> int:
    """Serve the searches that come from standard input."""
    from service.base.errors import ConfigError, FirnError

    try:
        while line := sys.stdin.readline():
            _serve(json.loads(line))
    except FirnError as e:
        _tell(sys.stdout, {"error": str(e), "is_refused": isinstance(e, (ConfigError, StoreRefused))})
        return 1
    return 0


def _serve(order: dict[str, Any]) -> None:
    """Tell what there is, a page at a time, and remove what of it is to go."""
    from service.inspect.old_versions import AT_ONCE, OldVersion, OldVersions
    from service.remote.stores.boto3_client import s3_client

    client, address = s3_client(order["url"], order["endpoint"], order["region"], os.environ)
    versions = OldVersions(client, address)

    def found() -> Iterator[OldVersion]:
        for below in order["below"] if versions.are_kept() else ():
            if order["markers"]:
                yield from versions.markers(below)
            else:
                yield from versions.found(below, takes_current=order["takes_current"])

    is_any_kept, all_of_it = False, found()
    while page := list(islice(all_of_it, AT_ONCE)):
        _tell(sys.stdout, {"found": page})
        dead = [OldVersion(*row) for row in json.loads(sys.stdin.readline())["remove"]]
        if dead:
            kept = versions.remove(dead)
            is_any_kept = is_any_kept or bool(kept)
            _tell(sys.stdout, {"kept": kept})
    _tell(sys.stdout, {"days": versions.expiry_days() if is_any_kept else None})


if __name__ == "__main__":
    sys.exit(main())
