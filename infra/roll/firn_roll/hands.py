"""Everything that is done to the world: terraform, commands on machines, the journal."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import RollError

PYTHON = "/opt/firn/current/bin/python"
ADDRESS = 'module.nodes.aws_instance.node["{}"]'
COMMAND_LIMIT_S = 900
"""What a machine may take to stop its nodes, which systemd kills at last."""
TERRAFORM_LIMIT_S = 3600
LINES = 12
"""So many of what a command said at last are told: terraform frames its errors."""
GOES_ALONG = ("aws_instance", "aws_volume_attachment", "aws_lb_target_group_attachment")
"""What is made anew with a machine. Nothing else may go, a volume least of all."""


@dataclass(frozen=True)
class Machine:
    """One machine as terraform tells it. `nodes`: id to port."""

    name: str
    instance_id: str
    host: str
    role: str
    nodes: dict[int, int]
    ssh: str


def machines_of(outputs: dict[str, Any]) -> dict[str, Machine]:
    """Read the machines from `terraform output -json`. Raises RollError where it describes no cluster."""
    try:
        commands = outputs["ssh_commands"]["value"]
        return {
            name: Machine(
                name,
                one["instance_id"],
                one["host"],
                one["role"],
                {node["id"]: node["port"] for node in one["nodes"]},
                commands[name],
            )
            for name, one in outputs["machines"]["value"].items()
        }
    except (KeyError, TypeError) as error:
        raise RollError(f"terraform output does not tell of a cluster: {error} is missing") from None


def taken(plan: dict[str, Any]) -> list[str]:
    """Addresses that a plan deletes, or makes anew."""
    changes = plan.get("resource_changes", [])
    return [one["address"] for one in changes if "delete" in one["change"]["actions"]]


class Hands:
    def __init__(self, environment: Path, journal: Path, terraform: str = "terraform") -> None:
        self.environment, self.journal, self.command = environment, journal, terraform

    def say(self, text: str) -> None:
        print(f"firn-roll: {text}", file=sys.stderr, flush=True)

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    # - the journal

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the environment's lock, as rolls with different journals would still share the machines."""
        with open(self.environment / "roll.json.lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RollError(f"another roll is under way: {file.name} is held") from None
            yield

    def read(self) -> dict[str, Any] | None:
        try:
            noted = json.loads(self.journal.read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise RollError(f"{self.journal} is no journal of a roll: {error}") from None
        if not isinstance(noted, dict) or not isinstance(noted.get("machines"), dict):
            raise RollError(f"{self.journal} is no journal of a roll")
        return noted

    def note(self, noted: dict[str, Any]) -> None:
        new = self.journal.with_name(f".{self.journal.name}.new")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(noted, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.journal)

    def age_s(self) -> float:
        """Return the seconds since the journal was written."""
        return time.time() - self.journal.stat().st_mtime

    def forget(self) -> None:
        self.journal.unlink(missing_ok=True)

    # - machines

    def on(self, machine: Machine, command: str, program: str = "") -> str:
        """Run a command on a machine with `program` as its input; return its output. Raises RollError."""
        return self._run([*shlex.split(machine.ssh), command], machine.name, COMMAND_LIMIT_S, program)

    # - terraform

    def machines(self) -> dict[str, Machine]:
        return machines_of(json.loads(self._terraform("output", "-json")))

    def client_config(self) -> str | None:
        """Return the file on the machines by which the cluster is asked, None where nobody logs in."""
        told = json.loads(self._terraform("output", "-json")).get("client_config", {}).get("value")
        return None if told is None else str(told)

    def replace(self, name: str) -> None:
        """A new machine for the old one, by a plan that takes away nothing else."""
        plan = self.environment / ".roll.tfplan"
        try:
            asked = f"-replace={ADDRESS.format(name)}"
            self._terraform("plan", "-input=false", f"-out={plan.name}", asked)
            shown = json.loads(self._terraform("show", "-json", plan.name))
            ours = {f'module.nodes.{kind}.node["{name}"]' for kind in GOES_ALONG}
            ours |= {f'module.nodes.{GOES_ALONG[1]}.data["{name}"]'}
            ours |= {f'module.bootstrap.{GOES_ALONG[2]}.node["{name}"]'}
            if others := sorted(set(taken(shown)) - ours):
                raise RollError(
                    f"the plan would take away more than machine {name}: {', '.join(others)}. Nothing was "
                    "done; look at `terraform plan`"
                )
            self._terraform("apply", "-input=false", plan.name)
        finally:
            plan.unlink(missing_ok=True)

    def _terraform(self, *arguments: str) -> str:
        command = [self.command, f"-chdir={self.environment}", *arguments]
        if arguments[0] in ("plan", "apply"):
            command.insert(3, "-no-color")
        return self._run(command, f"terraform {arguments[0]}", TERRAFORM_LIMIT_S)

    def _run(self, command: list[str], what: str, limit_s: float, given: str = "") -> str:
        try:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, errors="replace", timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            raise RollError(f"{what}: not done after {limit_s:.0f} s") from None
        except OSError as error:
            raise RollError(f"{what}: {command[0]}: {error.strerror}") from None
        if done.returncode:
            lines = [line.strip() for line in (done.stderr.strip() or done.stdout.strip()).splitlines()]
            words = " / ".join(line for line in lines[-LINES:] if line)
            raise RollError(f"{what}: exit code {done.returncode}: {words}")
        return done.stdout
