"""Steps of `deploy/try-image`: build the image, look at it, boot three nodes, stop them, lose a volume."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from .building import ROOT, build, buildah, compressed_size, configuration, size_of, unpacked
from .composed import Service, services
from .containers import Container, network, space
from .tools import Failed, need, run, say, wait_for

COMPOSE: Final = ROOT / "deploy" / "compose" / "compose.yaml"
NODES: Final = ("firn-1", "firn-2", "firn-3")
BOOTSTRAP: Final = "firn-1:9092,firn-2:9092,firn-3:9092"
RECORDS: Final = 5_000


def main() -> int:
    parser = argparse.ArgumentParser(prog="deploy/try-image", description="Build Firn's image and try it.")
    parser.add_argument("--base", metavar="IMAGE", help="the base (default: a Debian made by debootstrap)")
    parser.add_argument("--no-build", action="store_true", help="try the image that was built before")
    parser.add_argument("--keep", action="store_true", help="keep the logs and volumes, and say where")
    asked = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="firn-try-"))
    try:
        need(os.geteuid() == 0, "root is needed, for namespaces")
        if not asked.no_build:
            build(asked.base)
        with image() as (told, tree):
            looks(told, tree)
            boots(told, tree, home)
    except (Failed, OSError, subprocess.SubprocessError) as error:
        print(f"try-image: {error}", file=sys.stderr)
        return 1
    finally:
        if asked.keep:
            say(f"logs and volumes: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    say("all passed")
    return 0


@contextlib.contextmanager
def image() -> Iterator[tuple[dict[str, Any], Path]]:
    """Unpack the image; gives its configuration and its root folder."""
    container, tree = unpacked()
    try:
        yield configuration(), tree
    finally:
        buildah("rm", container)


def looks(told: Mapping[str, Any], tree: Path) -> None:
    """Check what the image says of itself and has in it."""
    need(told["User"] == "10001:10001", f"its user is {told['User']}")
    need(told["Entrypoint"][0] == "/usr/bin/tini", "its first process is not tini")
    need(told["Healthcheck"]["Test"] == ["CMD", "firn-health"], "it has no health check")
    need("/var/lib/firn" in told["Volumes"], "it has no volume")
    labels = told["Labels"]
    version = run("chroot", str(tree), "firn", "--version").strip()
    revision = labels["org.opencontainers.image.revision"]
    need(labels["org.opencontainers.image.version"] in version, f"label and program differ: {version}")
    need(revision and revision in version, f"commit {revision} is not in {version!r}")
    need("compiled" in version and "not compiled" not in version, version)
    for path in ("usr/bin/gcc", "opt/firn/bin/pip", "root/.cache"):
        need(not (tree / path).exists(), f"the image has /{path}")
    others = run("find", str(tree / "opt"), "-perm", "/o+w", "-not", "-type", "l")
    need(not others, f"anybody may write to {others}")
    say(f"{version}; {size_of(tree) / 1e6:.0f} MB, {compressed_size(tree) / 1e6:.0f} MB compressed")


def boots(told: Mapping[str, Any], tree: Path, home: Path) -> None:
    """Boot the nodes of the compose file, and everything else of it that the image brings."""
    found = services(COMPOSE, {})
    with network([*NODES, "console", "bucket", "s3"]) as addresses, contextlib.ExitStack() as stack:
        made = {}
        for name in (*NODES, "console", "bucket"):
            made[name] = Container(name, told, tree, home, addresses)
            stack.callback(made[name].kill)
        refuses_unasked(made["firn-1"], found["firn-1"])
        stack.enter_context(s3(found["s3"], home))
        begin(made["bucket"], found["bucket"])
        need(made["bucket"].ended(60) == 0, made["bucket"].tail())
        forms(made, found)
        serves(made)
        made["console"].files["/run/console-token"] = COMPOSE.with_name("console-token")
        begin(made["console"], found["console"])
        wait_for("the console", lambda: made["console"].passes(*found["console"].check))
        say("the console answers to its token")
        has_no_zombies(made["firn-2"])
        ends_in_order(made, found)
        comes_back(made, found)
        loses_a_volume(made, found)


def begin(container: Container, service: Service, **more: str) -> None:
    container.start({**service.environ, **more}, service.command, service.entrypoint)


@contextlib.contextmanager
def s3(service: Service, home: Path) -> Iterator[None]:
    """Run versitygw as the compose file does, but the one of `make fetch-tools`: there may be no registry."""
    binary = next((ROOT / ".cache").glob("versitygw-*/versitygw"), None)
    need(binary, "versitygw is not there: make fetch-tools")
    (home / "s3").mkdir()
    words = [str(home / "s3") if word == "/data" else word for word in service.command or ()]
    with (home / "s3.log").open("ab") as output:
        process = subprocess.Popen(
            ["ip", "netns", "exec", space("s3"), str(binary), *words],
            env={**os.environ, **service.environ}, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        health = ("ip", "netns", "exec", space("s3"), sys.executable, str(ROOT / "deploy/image/firn-health"))
        url = service.check[-1]
        wait_for(
            "versitygw", lambda: "0" in run("sh", "-c", f"{' '.join(health)} {url}; echo $?", fine=(0,))[-2:]
        )
        yield
    finally:
        process.terminate()
        process.wait(10)


def refuses_unasked(container: Container, service: Service) -> None:
    """Check that an empty volume is not formatted unless the environment says so."""
    begin(container, service, FIRN_IMAGE_FORM="")
    need(container.ended(60) == 1, "an empty volume was taken without being told")
    need("is empty: no meta.properties" in container.tail(), container.tail())
    need(not [*container.volume.iterdir()], "something was written to the volume")
    say("an empty volume is refused unless FIRN_IMAGE_FORM says otherwise")


def forms(made: Mapping[str, Container], found: Mapping[str, Service]) -> None:
    for name in NODES:
        begin(made[name], found[name])
    took = ready(made, found)
    user = made["firn-1"].run("id", "-u").strip()
    need(user == "10001", f"it runs as {user}")
    need(made["firn-1"].passes("firn-health"), "its health check fails")
    written = made["firn-1"].run("sh", "-c", "touch /opt/firn/x 2>&1 || true")
    need("Read-only" in written, f"the root can be written to: {written}")
    say(f"three nodes are ready after {took:.1f} s, as user {user}, on a read-only root")


def ready(made: Mapping[str, Container], found: Mapping[str, Service]) -> float:
    """Wait until each node passes the check of the compose file; return the seconds."""
    took = 0.0
    for name in NODES:
        try:
            took += wait_for(name, lambda name=name: made[name].passes(*found[name].check), 180)  # type: ignore[misc]
        except Failed as error:
            raise Failed(f"{error}\n{made[name].tail()}") from None
    return took


def serves(made: Mapping[str, Container]) -> None:
    """Make a topic that is tiered, write to it, read it back."""
    node = made["firn-1"]
    firn = ("--bootstrap-server", BOOTSTRAP)
    node.run(
        "firn",
        "topic",
        "create",
        "tried",
        "--partitions",
        "6",
        "--config",
        "remote.storage.enable=true",
        *firn,
    )
    lines = "".join(f"record {number}\n" for number in range(RECORDS))
    node.run("firn", "produce", "tried", *firn, text=lines)
    need(count(node) == RECORDS, f"{count(node)} of {RECORDS} records came back")
    whole(node)
    say(f"{RECORDS} records written with acks=all and read back; nothing is wrong with the cluster")


def count(node: Container) -> int:
    """Return how many of the records are read."""
    text = node.run("firn", "consume", "tried", "--to", "end", "--bootstrap-server", BOOTSTRAP)
    return len({line for line in text.splitlines() if line.startswith("record ")})


def whole(node: Container) -> None:
    """Wait until nothing is wrong with the cluster."""
    said = ""

    def is_whole() -> bool:
        nonlocal said
        said = node.run("firn", "cluster", "describe", "--bootstrap-server", BOOTSTRAP, fine=(0, 1))
        return "wrong: nothing" in said

    try:
        wait_for("a cluster with nothing wrong", is_whole, 90)
    except Failed as error:
        raise Failed(f"{error}\n{said}") from None


def has_no_zombies(node: Container) -> None:
    """Leave an orphan behind, which the first process has to collect."""
    node.run("sh", "-c", "(sleep 0.2 &) ; exit 0")

    def states() -> str:
        return node.run("sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null || true")

    wait_for("the orphan to end", lambda: "(sleep)" not in states(), 10)
    need("1 (tini)" in states(), "the first process is not tini")
    say("the first process is tini, and it collects orphans")


def ends_in_order(made: Mapping[str, Container], found: Mapping[str, Service]) -> None:
    """Stop one node while the others go on, then these."""
    for name in NODES:
        code, seconds = made[name].stop(found[name].grace_s)
        need(code == 0, f"{name}: exit code {code} after SIGTERM\n{made[name].tail()}")
        need(
            (made[name].volume / "data" / ".kafka_cleanshutdown").exists(),
            f"{name} did not shut down cleanly",
        )
        say(f"{name} ended cleanly {seconds:.1f} s after SIGTERM, of {found[name].grace_s} s")
        if name == NODES[0]:
            need(count(made["firn-2"]) == RECORDS, "two nodes do not serve what three had")
    made["console"].stop(found["console"].grace_s)


def comes_back(made: Mapping[str, Container], found: Mapping[str, Service]) -> None:
    for name in NODES:
        begin(made[name], found[name])
    took = ready(made, found)
    need(count(made["firn-1"]) == RECORDS, "records are missing after the second start")
    say(f"all nodes are ready again after {took:.1f} s, with all records")


def loses_a_volume(made: Mapping[str, Container], found: Mapping[str, Service]) -> None:
    """Empty a node's volume: refused, and taken as a new voter's once that is said."""
    node = made["firn-2"]
    node.stop(found["firn-2"].grace_s)
    shutil.rmtree(node.volume / "data")
    begin(node, found["firn-2"])
    need(node.ended(60) == 1, "a lost volume was formatted")
    need("the node was formed before" in node.tail(), node.tail())
    begin(node, found["firn-2"], FIRN_IMAGE_REPLACE="2")
    ready(made, found)
    need(count(made["firn-1"]) == RECORDS, "records are missing after the loss of a volume")
    whole(made["firn-1"])
    votes = wait_for("three voters", lambda: voters(made["firn-1"]) == 3, 120)
    say(f"a lost volume is refused; with FIRN_IMAGE_REPLACE it is in sync, and votes {votes:.0f} s later")


def voters(node: Container) -> int:
    """Return how many controllers vote. Who joins is an observer first, and so is the old one for a while."""
    ask = ("firn", "cluster", "quorum", "describe", "--json", "--bootstrap-server", BOOTSTRAP)
    found = json.loads(node.run(*ask))["replicas"]
    return sum(one["role"] in ("leader", "voter") for one in found)


if __name__ == "__main__":
    sys.exit(main())
