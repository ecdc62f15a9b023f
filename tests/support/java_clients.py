"""Apache Kafka's Java client: members of groups and a producer, of tests/java/clients/Clients.java."""

from __future__ import annotations

import base64
import itertools
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.flow import Owners
from tests.support.java_programs import compiled
from tests.support.kafka_tools import RUNNER, environment
from tests.support.processes import end, wait_until

_names = itertools.count(1)


def java(
    program: str, *arguments: str, log: Path, settings: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A program of tests/java/clients as a process; its stderr goes to `log`."""
    own = {"KAFKA_CLASSES": str(compiled(program)), **(settings or {})}
    with log.open("ab") as stderr:
        return subprocess.Popen(
            [RUNNER, f".{program}", *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True,
            env={**os.environ, **environment(), **own},
        )  # fmt: skip


class JavaMember:
    """One consumer. `values` is what it has read, `owned` what it is given now."""

    def __init__(self, clients: JavaClients, name: str, owners: Owners | None) -> None:
        self.name = name
        self.values: list[bytes] = []
        self.owned: frozenset[tuple[str, int]] = frozenset()
        self.error = ""
        """the class of the exception that ended it, and its message"""
        self.has_left = threading.Event()
        self._clients, self._owners = clients, owners

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(number for _, number in self.owned)

    def leave(self) -> None:
        """Closes it, as a client that means well does."""
        self._clients.tell("leave", self.name)
        assert self.has_left.wait(60), f"{self.name} does not leave; {self._clients.log()}"
        assert not self.error, self.error

    def told(self, event: str, fields: Sequence[str]) -> None:
        """Takes an event of its own."""
        if event == "read":
            self.values.append(fields[3].encode())
        elif event == "has":
            self.owned = _places(fields)
        elif event in ("takes", "gives"):
            if self._owners is not None:
                getattr(self._owners, event)(self.name, _places(fields))
        elif event == "failed":
            self.error = ": ".join(fields)
        elif event == "left":
            self.has_left.set()
        else:
            raise AssertionError(f"no such event: {event}")


class JavaClients:
    """A Java machine of members and producers; for a `with`, which ends it."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._members: dict[str, JavaMember] = {}
        self._sent: list[list[str]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self._log_path = folder / "java.log"
        self._process = java("Clients", log=self._log_path)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)
        self._reader.join(30)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return  # the last one, cut by a kill
                event, *fields = line.rstrip("\n").split("\t")
                if event == "sent":
                    self._sent.append(fields)
                else:
                    self._members[fields[0]].told(event, fields[1:])

    def tell(self, *fields: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(fields) + "\n")
        self._process.stdin.flush()

    def join(
        self,
        group: str,
        topics: str,
        options: Mapping[str, object] | None = None,
        *,
        by: str = "names",
        owners: Owners | None = None,
    ) -> JavaMember:
        """Starts a member; `topics`, as `by` says: names, a pattern of Java's or of the broker (RE2)."""
        name = f"java-{next(_names)}"
        settings: dict[str, object] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            "metadata.max.age.ms": "500",
            **(options or {}),
        }
        if settings.get("group.protocol") != "consumer":
            settings = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 300, **settings}
        member = self._members[name] = JavaMember(self, name, owners)
        self.tell("join", name, by, topics, *(f"{key}={value}" for key, value in settings.items()))
        return member

    def send(self, topic: str, keys: Sequence[bytes]) -> list[int]:
        """Sends one record for each key; the partition of each."""
        encoded = [base64.b64encode(key).decode() for key in keys]
        self.tell("send", topic, f"bootstrap.servers={self.bootstrap}", "|", *encoded)
        wait_until("the Java producer to have sent", lambda: self._sent or self._process.poll() is not None)
        assert self._sent, self.log()
        return [int(one) for one in self._sent.pop()]

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()
        self._reader.join(30)

    def stop(self, seconds: float = 60) -> None:
        """SIGTERM, at which all members leave."""
        end(self._process, seconds)
        self._reader.join(30)
        assert all(member.has_left.is_set() for member in self._members.values()), self.log()

    def log(self) -> str:
        return "Java's log ends:\n" + self._log_path.read_text(errors="replace")[-2000:]


def _places(fields: Sequence[str]) -> frozenset[tuple[str, int]]:
    split = (one.rpartition("-") for one in fields)
    return frozenset((topic, int(number)) for topic, _, number in split)
