"""One machine at a time: the cluster is whole, it stops, is made anew, the cluster is whole again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import RollError
from .hands import PYTHON, Hands, Machine

POLL_S = 3.0
FRESH_S = 86_400
"""Whoever goes on with a roll later than that may mean another image than that roll began with."""
AS_FIRN = "sudo runuser -u firn -- "
"""Whoever the file with the password is for."""
STOP = "sudo systemctl stop 'firn@*.service'"
INSTALL = "sudo systemctl restart firn-boot.service"
REPLACE, RESTART = "replace", "restart"
BEGUN, STOPPED, MADE, DONE = "begun", "stopped", "made", "done"
"""What the journal says of a machine; nothing where it was not begun."""


@dataclass(frozen=True)
class Options:
    """`settle_s`: so long the cluster has to be whole. `unreplicated`: go on where partitions have no other
    replica. `resume`: what a journal calls done is done, however old it is. `command_config`: the file on the
    machines by which the cluster is asked; None for what terraform tells."""

    action: str = REPLACE
    names: tuple[str, ...] = ()
    settle_s: float = 15
    patience_s: float = 3600
    unreplicated: bool = False
    resume: bool = False
    command_config: str | None = None


def roll(hands: Hands, options: Options) -> None:
    """Raises RollError; the next call goes on from there."""
    with hands.alone():
        _Roll(hands, options).run()


class _Roll:
    def __init__(self, hands: Hands, options: Options) -> None:
        self.hands, self.options = hands, options
        self.machines = hands.machines()
        self.command_config = options.command_config or hands.client_config()
        if any(one.role == "alone" for one in self.machines.values()):
            raise RollError("a node that is alone is away while it is replaced: terraform apply -replace")
        self.noted = self._journal()
        self.program = (Path(__file__).parent / "whole.py").read_text("utf-8")
        self.leader = -1

    def _journal(self) -> dict[str, Any]:
        names = self.options.names or tuple(sorted(self.machines))
        wanted = {"action": self.options.action, "machines": {name: {} for name in names}}
        found = self.hands.read()
        noted = found or wanted
        if noted["action"] != self.options.action or set(noted["machines"]) != set(wanted["machines"]):
            raise RollError(
                f"{self.hands.journal} is of another roll ({noted['action']} of "
                f"{', '.join(sorted(noted['machines']))}): end that one first, or remove the file"
            )
        if unknown := sorted(set(names) - set(self.machines)):
            raise RollError(f"there is no machine {', '.join(unknown)}")
        if found is not None:
            self._goes_on(found["machines"])
        return noted

    def _goes_on(self, machines: dict[str, Any]) -> None:
        done = ", ".join(sorted(name for name, entry in machines.items() if entry.get("step") == DONE))
        journal, age_s = self.hands.journal, self.hands.age_s()
        if age_s > FRESH_S and not self.options.resume:
            raise RollError(
                f"{journal} was written {age_s / 3600:.0f} hours ago, and calls done: {done or 'none'}. They "
                "may have an older image than is meant now: --resume goes on, without the file all are taken"
            )
        self.hands.say(f"goes on where {journal} ends; done: {done or 'none'}")

    def run(self) -> None:
        while (name := self._next()) is not None:
            self._one(name)
        self.hands.forget()
        self.hands.say("done")

    def _next(self) -> str | None:
        """Return the next machine: a begun one; then controllers, the leader last; then brokers."""
        left: list[str] = [name for name in self.noted["machines"] if self._step(name) != DONE]
        if not left or (begun := [name for name in left if self._step(name)]):
            return begun[0] if left else None
        if any(self.machines[name].role == "controller" for name in left):
            self._wait("whole before the next machine", self.machines[left[0]])

        def order(name: str) -> tuple[bool, bool, int, str]:
            machine = self.machines[name]
            return machine.role != "controller", self.leader in machine.nodes, len(name), name

        return min(left, key=order)

    def _step(self, name: str) -> str:
        return str(self.noted["machines"][name].get("step", ""))

    def _note(self, name: str, step: str) -> None:
        self.noted["machines"][name]["step"] = step
        self.hands.note(self.noted)

    def _one(self, name: str) -> None:
        machine, entry = self.machines[name], self.noted["machines"][name]
        begun = self._step(name) == BEGUN
        if begun and machine.instance_id != entry["was"]:
            self._note(name, MADE)  # by hand, as when the one that was could not be reached any more
        elif begun or not self._step(name):
            # Begun by a run that ended there, who knows how long ago: it may be stopped, as was meant, or
            # serve while another one is away by now.
            told = self._wait(f"whole before {name}", machine, away=(False, True) if begun else (False,))
            if told["only"] and not self.options.unreplicated:
                raise RollError(
                    f"nobody else has {', '.join(told['only'])}, away while {name} is: give them replicas, "
                    "or go on with --unreplicated"
                )
            entry["was"] = machine.instance_id
            self._note(name, BEGUN)
        if self._step(name) == BEGUN:
            self.hands.say(f"stopping the nodes of {name} ({machine.host})")
            self.hands.on(machine, STOP)
            self._wait(f"served by the others while {name} is away", machine, away=(True,))
            self._note(name, STOPPED)
        if self._step(name) == STOPPED:
            self._make(machine, entry["was"])
            self._note(name, MADE)
        self._wait(f"whole with {name}", self.machines[name])
        self._note(name, DONE)
        self.hands.say(f"{name} is done")

    def _make(self, machine: Machine, was: str) -> None:
        if self.options.action == RESTART:
            self.hands.say(f"starting {machine.name}")
            self.hands.on(machine, INSTALL)
            return
        if machine.instance_id == was:
            self.hands.say(f"replacing {machine.name}: terraform, some minutes")
            self.hands.replace(machine.name)
            self.machines = self.hands.machines()
        if self.machines[machine.name].instance_id == was:
            raise RollError(f"terraform has made no other machine for {machine.name}")

    # - looking

    def _wait(self, what: str, machine: Machine, *, away: tuple[bool, ...] = (False,)) -> dict[str, Any]:
        """Wait until the other brokers report a whole cluster for a while; return the last report. `away`:
        with the machine, without it, or either."""
        hands, begun, fine_since, said = self.hands, self.hands.now(), None, ""
        while True:
            told = min((self._look(machine, away=one) for one in away), key=lambda one: len(one["lacks"]))
            now = hands.now()
            if told["lacks"]:
                fine_since = None
                if (text := "; ".join(told["lacks"])) != said:
                    said = text
                    hands.say(f"not yet {what}: {text}")
            else:
                fine_since = now if fine_since is None else fine_since
                if now - fine_since >= self.options.settle_s:
                    self.leader = int(told["leader"])
                    return told
            if now - begun >= self.options.patience_s:
                raise RollError(f"not {what} after {self.options.patience_s:.0f} s: {said}")
            hands.sleep(POLL_S)

    def _look(self, machine: Machine, *, away: bool) -> dict[str, Any]:
        """Return the cluster's state from the first of the other brokers that answers."""
        ids = {role: _ids(self.machines.values(), role) for role in ("broker", "controller")}
        own = ",".join(map(str, machine.nodes))
        asked = f"--brokers {ids['broker']} --controllers {ids['controller']} --about {own}"
        python = PYTHON
        if self.command_config is not None:
            python = f"{AS_FIRN}{PYTHON}"
            asked += f" --command-config {shlex.quote(self.command_config)}"
        failures = []
        for other in self.machines.values():
            if other.role != "broker" or other.name == machine.name:
                continue
            place = f"{other.host}:{min(other.nodes.values())}"
            rest = f"{asked} --without {own}" if away else asked
            try:
                said = self.hands.on(other, f"{python} - --bootstrap {place} {rest}", self.program)
                told = json.loads(said)
                return {"lacks": list(told["lacks"]), "leader": told["leader"], "only": list(told["only"])}
            except RollError as error:
                failures.append(f"{other.name} does not tell: {error}")
            except (ValueError, KeyError, TypeError):
                failures.append(f"{other.name} tells {said[:200]!r}")
        return {"lacks": failures or ["no other broker"], "leader": -1, "only": []}


def _ids(machines: Iterable[Machine], role: str) -> str:
    return ",".join(str(node) for one in machines if one.role == role for node in one.nodes)
