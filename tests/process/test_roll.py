"""Machines taken one after another, on a model of a cluster; and every thing that is done failing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.roll.firn_roll.__main__ import main
from infra.roll.firn_roll.errors import RollError
from infra.roll.firn_roll.hands import Hands, Machine, machines_of, taken
from infra.roll.firn_roll.rolling import INSTALL, REPLACE, RESTART, STOP, Options, roll

ORDER = ["c2", "c3", "c1", "1", "2", "3"]
"""c1 leads at first."""
ONE = Options(names=("2",))


class ModelHands(Hands):
    """A cluster of three controllers and three brokers. `fail_at`: so many things are done before one fails,
    `after`: and whether it was done all the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, folder / "roll.json")
        self.made = {
            name: Machine(name, f"i-{name}", f"firn-{name}", self.role(name), {self.node(name): 9092}, "ssh")
            for name in ("1", "2", "3", "c1", "c2", "c3")
        }
        self.config: str | None = None
        self.asked: list[str] = []
        self.away: set[str] = set()
        self.back_at: dict[str, float] = {}
        self.leader = "c1"
        self.only: list[str] = []
        self.command_config = ""
        self.time = 0.0
        self.done: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.fail_at, self.after, self.calls = -1, False, 0

    @staticmethod
    def role(name: str) -> str:
        return "controller" if name.startswith("c") else "broker"

    @staticmethod
    def node(name: str) -> int:
        return int(name.replace("c", "90"))

    def say(self, text: str) -> None:
        self.said.append(text)

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.away -= {name for name, at in self.back_at.items() if at <= self.time}
        self.back_at = {name: at for name, at in self.back_at.items() if at > self.time}

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        self.calls += 1
        if self.calls == self.fail_at and not self.after:
            raise RollError("planted")
        yield
        if self.calls == self.fail_at:
            raise RollError("planted")

    def note(self, noted: dict[str, Any]) -> None:
        with self.step():
            super().note(noted)

    def machines(self) -> dict[str, Machine]:
        return dict(self.made)

    def client_config(self) -> str | None:
        return self.config

    def on(self, machine: Machine, command: str, program: str = "") -> str:
        if program:
            return self.told(machine, command)
        with self.step():
            if command == STOP:
                self.stop(machine.name)
            elif command == INSTALL:
                self.back_at[machine.name] = self.time + 20
                self.done.append(("installed", machine.name))
            else:
                raise AssertionError(command)
        return ""

    def stop(self, name: str) -> None:
        assert self.away <= {name}, f"{name} stops while {self.away} is away"
        assert name not in self.back_at
        self.away.add(name)
        if self.leader == name:
            self.leader = next(one for one in ("c1", "c2", "c3") if one != name)

    def replace(self, name: str) -> None:
        with self.step():
            assert self.away == {name}, "it was stopped before"
            self.done.append(("replaced", name))
            self.made[name] = replace(self.made[name], instance_id=f"{self.made[name].instance_id}'")
            self.back_at[name] = self.time + 100

    def told(self, machine: Machine, command: str) -> str:
        if machine.name in self.away:
            raise RollError("ssh: exit code 255")
        self.asked.append(command)
        words = command.removeprefix("sudo runuser -u firn -- ").split()
        given = dict(zip(words[2::2], words[3::2], strict=True))
        assert given["--brokers"] == "1,2,3"
        assert given["--controllers"] == "901,902,903"
        self.command_config = given.get("--command-config", "")
        assert given["--bootstrap"] == f"firn-{machine.name}:9092"
        without = given.get("--without", "")
        lacks = [f"{name} is away" for name in sorted(self.away) if str(self.node(name)) != without]
        # As whole.py has it, which tells of a voter that is to be away neither that it is nor that it is not.
        lacks += [f"{one} still serves" for one in ("1", "2", "3") if one == without and one not in self.away]
        return json.dumps({"lacks": lacks, "leader": self.node(self.leader), "only": self.only})


def test_machines_log_in_with_the_file_that_is_named(tmp_path: Path) -> None:
    hands = ModelHands(tmp_path)
    roll(hands, replace(ONE, command_config="/etc/firn/client.properties"))
    assert hands.command_config == "/etc/firn/client.properties"


def test_one_machine_after_another_the_leader_of_the_controllers_at_last(tmp_path: Path) -> None:
    hands = ModelHands(tmp_path)
    roll(hands, Options())
    assert hands.done == [("replaced", name) for name in ORDER]
    assert not hands.away
    assert hands.read() is None
    assert hands.time >= 6 * 100
    roll(hands, Options(action=RESTART, names=("2", "c1")))
    assert hands.done[6:] == [("installed", "c1"), ("installed", "2")]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("action", [REPLACE, RESTART])
def test_a_roll_resumes_after_any_failure(tmp_path: Path, action: str, after: bool) -> None:
    tmp_path.joinpath("whole").mkdir()
    whole = ModelHands(tmp_path / "whole")
    roll(whole, Options(action=action))
    assert whole.calls > 30
    for k in range(1, whole.calls + 1):
        folder = tmp_path / f"{k}"
        folder.mkdir()
        hands = ModelHands(folder)
        hands.fail_at, hands.after = k, after
        with pytest.raises(RollError, match="planted"):
            roll(hands, Options(action=action))
        roll(hands, Options(action=action))
        names = [name for _, name in hands.done]
        # What was done and not noted is done again where that does no harm: a machine is never made twice.
        assert sorted(set(names)) == sorted(ORDER), k
        assert len(names) <= 6 + (action == RESTART), k
        assert not hands.away, k
        assert hands.read() is None, k


def test_a_cluster_that_wants_a_login_is_asked_as_the_admin(tmp_path: Path) -> None:
    hands = ModelHands(tmp_path)
    hands.config = "/etc/firn/secrets/client.properties"
    roll(hands, ONE)
    assert hands.done == [("replaced", "2")]
    begin, end = "sudo runuser -u firn -- /opt/firn/", " --command-config /etc/firn/secrets/client.properties"
    assert {(one.startswith(begin), end in one) for one in hands.asked} == {(True, True)}
    hands.asked.clear()
    roll(hands, replace(ONE, command_config="/etc/firn/other.properties"))
    assert {" --command-config /etc/firn/other.properties" in one for one in hands.asked} == {True}


def test_nothing_is_begun_while_the_cluster_is_not_whole(tmp_path: Path) -> None:
    hands = ModelHands(tmp_path)
    hands.away.add("3")
    with pytest.raises(RollError, match=r"not whole before .*: 3 is away"):
        roll(hands, Options(patience_s=60))
    assert hands.done == []
    assert hands.away == {"3"}
    hands.back_at["3"] = hands.time + 30
    roll(hands, Options(patience_s=600))
    assert len(hands.done) == 6


def begun(folder: Path, options: Options) -> ModelHands:
    """Machine 2 is begun with, by a run that ended before it was stopped."""
    hands = ModelHands(folder)
    hands.fail_at = 2
    with pytest.raises(RollError, match="planted"):
        roll(hands, options)
    assert hands.read()["machines"]["2"]["step"] == "begun"  # type: ignore[index]
    assert not hands.away
    return hands


@pytest.mark.parametrize("options", [ONE, replace(ONE, action=RESTART)])
def test_a_resumed_roll_waits_for_other_nodes_that_are_away(tmp_path: Path, options: Options) -> None:
    hands = begun(tmp_path, options)
    hands.away.add("3")
    with pytest.raises(RollError, match=r"not whole before 2 after .*3 is away"):
        roll(hands, replace(options, patience_s=60))
    assert hands.away == {"3"}
    hands.back_at["3"] = hands.time + 30
    roll(hands, options)
    assert [name for _, name in hands.done] == ["2"]
    assert not hands.away


def test_partitions_of_one_replica_that_came_meanwhile_are_not_taken_away(tmp_path: Path) -> None:
    hands = begun(tmp_path, ONE)
    hands.only = ["scratch-0"]
    with pytest.raises(RollError, match="nobody else has scratch-0"):
        roll(hands, ONE)
    assert not hands.away


def test_a_machine_that_was_made_by_hand_meanwhile_is_not_stopped_again(tmp_path: Path) -> None:
    """As when it was gone before it could be stopped."""
    hands = begun(tmp_path, ONE)
    hands.made["2"] = replace(hands.made["2"], instance_id="i-other")
    roll(hands, ONE)
    assert hands.done == []
    assert not hands.away
    assert hands.read() is None


def test_a_machine_that_does_not_come_back_ends_it(tmp_path: Path) -> None:
    hands = ModelHands(tmp_path)
    hands.replace = lambda name: hands.done.append(("lost", name))  # type: ignore[method-assign]
    with pytest.raises(RollError, match="no other machine for c2"):
        roll(hands, Options(patience_s=600))
    assert hands.done == [("lost", "c2")]
    assert hands.read()["machines"]["c2"]["step"] == "stopped"  # type: ignore[index]


def test_partitions_of_one_replica_are_not_taken_away_unasked(tmp_path: Path) -> None:
    hands = ModelHands(tmp_path)
    hands.only = ["scratch-0"]
    with pytest.raises(RollError, match=r"nobody else has scratch-0.*--unreplicated"):
        roll(hands, Options())
    assert not hands.away
    roll(hands, Options(unreplicated=True))
    assert len(hands.done) == 6


def test_a_journal_of_another_roll_is_refused(tmp_path: Path) -> None:
    hands = ModelHands(tmp_path)
    hands.fail_at = 3
    with pytest.raises(RollError, match="planted"):
        roll(hands, Options(names=("2", "3")))
    for other in (Options(), Options(action=RESTART, names=("2", "3"))):
        with pytest.raises(RollError, match="of another roll"):
            roll(hands, other)
    (tmp_path / "roll.json").write_text("[]")
    with pytest.raises(RollError, match="no journal"):
        roll(hands, Options())


@pytest.mark.parametrize(("hours", "options"), [(23, Options()), (25, Options(resume=True))])
def test_an_old_roll_journal_is_resumed_only_on_request(tmp_path: Path, hours: int, options: Options) -> None:
    """Machines that it calls done may have an image that is not the one meant now."""
    hands = ModelHands(tmp_path)
    hands.fail_at = 12
    with pytest.raises(RollError, match="planted"):
        roll(hands, Options())
    assert [name for name, one in (hands.read() or {})["machines"].items() if one.get("step") == "done"] == [
        "c2"
    ]
    roll_ago(hands, 25)
    before, so_far = hands.read(), list(hands.done)
    with pytest.raises(RollError, match=r"written 25 hours ago.*--resume"):
        roll(hands, Options())
    assert (hands.read(), hands.done) == (before, so_far)
    roll_ago(hands, hours)
    roll(hands, options)
    assert [name for _, name in hands.done] == ORDER
    assert any("goes on" in line for line in hands.said)


def roll_ago(hands: Hands, hours: int) -> None:
    """The journal was written so long ago."""
    written = time.time() - hours * 3600
    os.utime(hands.journal, (written, written))


def test_two_rolls_at_a_time_are_refused(tmp_path: Path) -> None:
    hands, other = ModelHands(tmp_path), ModelHands(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    for journal in (hands.journal, tmp_path / "elsewhere" / "roll.json"):
        other.journal = journal
        with hands.alone(), pytest.raises(RollError, match="another roll is under way"):
            roll(other, Options())
    assert not other.done


def test_a_machine_that_is_not_there_and_a_node_that_is_alone_are_refused(tmp_path: Path) -> None:
    hands = ModelHands(tmp_path)
    with pytest.raises(RollError, match="no machine 4"):
        roll(hands, Options(names=("4",)))
    hands.made = {"1": replace(hands.made["1"], role="alone")}
    with pytest.raises(RollError, match="alone"):
        roll(hands, Options())


OUTPUTS = {
    "machines": {
        "value": {
            "c1": {
                "instance_id": "i-1",
                "host": "firn-c1",
                "role": "controller",
                "nodes": [{"id": 901, "port": 9093}],
            }
        }
    },
    "ssh_commands": {"value": {"c1": "ssh -o X='a b' admin@i-1"}},
}


def test_machines_are_what_terraform_tells() -> None:
    assert machines_of(OUTPUTS) == {
        "c1": Machine("c1", "i-1", "firn-c1", "controller", {901: 9093}, "ssh -o X='a b' admin@i-1")
    }
    with pytest.raises(RollError, match="ssh_commands"):
        machines_of({"machines": OUTPUTS["machines"]})


TERRAFORM = """\
#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
with open(here / "said", "a") as file:
    file.write(" ".join(sys.argv[2:]) + "\\n")
if sys.argv[2] == "show":
    print((here / "plan.json").read_text())
if sys.argv[2] == "output":
    print((here / "outputs.json").read_text())
if sys.argv[2] == "apply" and (here / "broken").exists():
    sys.exit("Error: no such image")
"""


def change(address: str, *actions: str) -> dict[str, Any]:
    return {"address": address, "change": {"actions": list(actions)}}


NODE, DATA = 'module.nodes.aws_instance.node["2"]', 'module.nodes.aws_volume_attachment.data["2"]'


@pytest.fixture
def hands(tmp_path: Path) -> Hands:
    command = tmp_path / "terraform"
    command.write_text(TERRAFORM.format(python=sys.executable))
    command.chmod(0o755)
    (tmp_path / "outputs.json").write_text(json.dumps(OUTPUTS))
    return Hands(tmp_path, tmp_path / "roll.json", str(command))


def test_the_file_to_log_in_by_is_what_terraform_tells(hands: Hands) -> None:
    assert hands.client_config() is None  # an environment of before
    for told in (None, "/etc/firn/secrets/client.properties"):
        outputs = {**OUTPUTS, "client_config": {"value": told}}
        (hands.environment / "outputs.json").write_text(json.dumps(outputs))
        assert hands.client_config() == told


def planned(hands: Hands, *changes: dict[str, Any]) -> None:
    (hands.environment / "plan.json").write_text(json.dumps({"resource_changes": list(changes)}))


def test_a_machine_is_replaced_by_a_plan_that_was_looked_at(hands: Hands) -> None:
    template = change('module.nodes.aws_launch_template.node["1"]', "update")
    planned(hands, change(NODE, "delete", "create"), change(DATA, "delete", "create"), template)
    hands.replace("2")
    said = (hands.environment / "said").read_text().splitlines()
    assert [line.split()[0] for line in said] == ["plan", "show", "apply"]
    assert f"-replace={NODE}" in said[0]
    assert said[2].endswith(".roll.tfplan")
    assert hands.machines() == machines_of(OUTPUTS)


@pytest.mark.parametrize(
    "other",
    [
        'module.nodes.aws_ebs_volume.data["2"]',
        'module.nodes.aws_instance.node["1"]',
        "module.archive.aws_s3_bucket.archive",
    ],
)
def test_a_plan_that_takes_more_away_is_not_applied(hands: Hands, other: str) -> None:
    planned(hands, change(NODE, "delete", "create"), change(other, "delete"))
    with pytest.raises(RollError, match="more than machine 2"):
        hands.replace("2")
    assert "apply" not in (hands.environment / "said").read_text()
    assert taken({"resource_changes": [change(other, "update")]}) == []


def test_a_terraform_failure_is_reported_with_its_message(hands: Hands) -> None:
    planned(hands)
    (hands.environment / "broken").touch()
    with pytest.raises(RollError, match="terraform apply: exit code 1: Error: no such image"):
        hands.replace("2")


def test_a_command_on_a_machine_goes_as_one_word_and_takes_its_program(hands: Hands) -> None:
    here = Machine("1", "i-1", "firn-1", "broker", {1: 9092}, f"{sys.executable} -c 'import sys; "
                   "print(sys.argv[1:], sys.stdin.read())'")  # fmt: skip
    assert hands.on(here, "a 'b c'", "program") == "[\"a 'b c'\"] program\n"
    with pytest.raises(RollError, match="1: exit code 3"):
        hands.on(replace(here, ssh=f"{sys.executable} -c 'raise SystemExit(3)'"), "x")


def test_a_cluster_that_was_whole_for_a_moment_is_not_enough(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nowhere", "--settle", "1"])
    assert "--settle: 10 or more" in capsys.readouterr().err


def test_the_command_says_what_is_wrong_and_leaves_with_1(hands: Hands) -> None:
    command = [sys.executable, "-m", "infra.roll.firn_roll", str(hands.environment)]
    (hands.environment / "outputs.json").write_text("{}")
    done = subprocess.run(
        [*command, "--terraform", hands.command], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "firn-roll: terraform output does not tell of a cluster" in done.stderr
    assert "goes on from here" in done.stderr
