"""Child processes as kafka-python's fixtures want them, who wait for the words of one they started."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence


class ExternalService:
    """A server that somebody else runs."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def open(self) -> None:
        """Nothing is to be opened."""

    close = dump_logs = open

    def wait_for(self, pattern: str, timeout: float = 30) -> bool:
        return True


class SpawnedService:
    """A server of ours; `wait_for` tells whether it has said what fits a pattern."""

    def __init__(self, args: Sequence[str], env: Mapping[str, str]) -> None:
        self._args, self._env = args, env
        self._said: list[str] = []

    def start(self) -> None:
        self._process = subprocess.Popen(
            list(self._args), env=dict(self._env), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)

    def wait_for(self, pattern: str, timeout: float = 30) -> bool:
        deadline = time.monotonic() + max(timeout, 60)
        while time.monotonic() < deadline:
            if re.search(pattern, "".join(self._said), re.IGNORECASE):
                return True
            if self._process.poll() is not None:
                return False
            time.sleep(0.1)
        return False

    def dump_logs(self) -> None:
        print("".join(self._said))

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
