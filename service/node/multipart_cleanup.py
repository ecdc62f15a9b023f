"""Ending abandoned multipart uploads from the node: a child process once per sweep.

The child (`service.remote.stores.abandoned_uploads`) loads boto3, which this process never should. It
inherits the environment, and with it the credentials; it never outlives the call that started it by more
than its own time limit, even when this process is killed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any, Final

from service.base.errors import StorageError
from service.remote.stores.abandoned_uploads import MAX_LINE_BYTES, TIME_LIMIT_S
from service.tiering.ports import ChooseUploads

CHILD: Final = (sys.executable, "-m", "service.remote.stores.abandoned_uploads")
_ERROR_CHARACTERS: Final = 1000


class UploadsChild:
    """`tiering.ports.AbandonedUploads` for one S3 prefix. Owned by the event loop."""

    def __init__(
        self,
        url: str,
        endpoint: str | None,
        region: str | None,
        *,
        time_limit_s: float = TIME_LIMIT_S,
        command: Sequence[str] = CHILD,
    ) -> None:
        self._time_limit_s = time_limit_s
        self._command = [*command, url]
        if endpoint is not None:
            self._command += ["--endpoint", endpoint]
        if region is not None:
            self._command += ["--region", region]

    async def __call__(self, older_than_ms: int, choose: ChooseUploads) -> int:
        """Run the child, ask `choose` about what it found; how many uploads it aborted.

        Raises `StorageError` when it fails, or takes too long; cancelled, it takes the child along.
        """
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                "--older-than-ms",
                str(older_than_ms),
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                limit=MAX_LINE_BYTES,
                start_new_session=True,  # Ctrl-C is for the node, which ends this
            )
        except OSError as e:
            raise StorageError(f"cannot start the look for abandoned uploads: {e}") from e
        try:
            async with asyncio.timeout(self._time_limit_s):
                return await _talk(child, choose)
        except TimeoutError as e:
            raise StorageError(f"abandoned uploads: no answer within {self._time_limit_s:g} s") from e
        finally:
            if child.returncode is None:
                child.kill()
                await child.communicate()


async def _talk(child: Process, choose: ChooseUploads) -> int:
    assert child.stdout is not None
    line = await child.stdout.readline()
    answer = b""
    if line:
        keys: Sequence[str] = _field(line, "keys")
        answer = json.dumps({"dead": list(await choose(keys))}).encode() + b"\n"
    output, errors = await child.communicate(answer)
    if child.returncode != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2][:_ERROR_CHARACTERS]
        raise StorageError(f"abandoned uploads: {last or f'exit code {child.returncode}'}")
    aborted: int = _field(output, "aborted")
    return aborted


def _field(line: bytes, name: str) -> Any:
    try:
        return json.loads(line)[name]
    except (ValueError, KeyError, TypeError) as e:
        raise StorageError(f"abandoned uploads: not an answer: {line[:100]!r}") from e
