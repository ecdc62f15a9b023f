"""A cluster's controllers, formed once: an empty directory is a voter's first, or what is left of a lost one.

A voter that forgot what it promised could elect a second leader. So a controller's directory is made ready
only where `cluster.formed` has no word of it yet, and that word is put there first. On the volume stays a
note until the directory is ready: by it the machine knows its own word, should the power go in between.
"""

from __future__ import annotations

import http.client
import json
import secrets
from collections.abc import Callable
from pathlib import Path

from .document import Cluster, Document, Node
from .errors import BootError
from .fetching import claimed
from .machine import Machine
from .secret_files import FILES, HOME

Claim = Callable[[str, str, str, dict[str, str]], str]
"""(URL, region, text, headers): makes the object unless it is there; what is there."""
UNSAID = (OSError, http.client.HTTPException)
NOTE = ".forming"
LOST = "docs/operations.md, Replace a controller"


def step_form(machine: Machine, document: Document, claim: Claim = claimed) -> None:
    if document.cluster is None:
        if document.security is not None:
            form_alone(machine, document)
        return
    for node in document.nodes:
        home = machine.path(f"var/lib/firn/node-{node.id}")
        if (home / "meta.properties").exists():
            check_whose(home / "meta.properties", document.cluster, node)
            forget(machine, home)
            if node.role == "controller" and document.cluster.formed is not None:
                say_formed(machine, document, document.cluster, node, claim)
        elif node.role == "controller":
            form(machine, document, document.cluster, node, claim)


def check_whose(path: Path, cluster: Cluster, node: Node) -> None:
    """Check that a formatted directory belongs to this node of this cluster. Raises BootError."""
    lines = [line.partition("=") for line in path.read_text("utf-8", "replace").splitlines()]
    found = {key.strip(): value.strip() for key, _, value in lines}
    for key, wanted in (("cluster.id", cluster.id), ("node.id", str(node.id))):
        if found.get(key) != wanted:
            raise BootError(f"{path}: {key} is {found.get(key)}, not {wanted}: another node's data")


def say_formed(machine: Machine, document: Document, cluster: Cluster, node: Node, claim: Claim) -> None:
    """Mark the node as formed. The mark refuses an empty directory later; a node with its data starts without
    it."""
    url = f"{cluster.formed}/{cluster.id}/{node.id}"
    try:
        said = json.dumps({"node": node.id, "note": "found formatted"})
        claim(url, document.package.region, said, encryption(document))
    except UNSAID as error:
        machine.say(
            f"{url}: {error}; whether it says that node {node.id} was formed is asked by the next run"
        )


def form(machine: Machine, document: Document, cluster: Cluster, node: Node, claim: Claim) -> None:
    home = machine.path(f"var/lib/firn/node-{node.id}")
    if cluster.formed is None:
        raise BootError(f"node {node.id} is a controller and not formatted: `firn format` ({LOST})")
    if (home / "__cluster_metadata-0").exists() and not (home / NOTE).exists():
        raise BootError(f"{home} has a metadata log and no meta.properties: put that file back")
    said = json.dumps({"node": node.id, "note": noted(machine, home, node)})
    voters = ",".join(cluster.controllers.values())
    for name, ours in (("controllers", voters), (str(node.id), said)):
        url = f"{cluster.formed}/{cluster.id}/{name}"
        try:
            there = claim(url, document.package.region, ours, encryption(document))
        except UNSAID as error:
            raise BootError(f"{url}: {error}; an empty controller does not start without it") from None
        if there != ours:
            raise BootError(
                f"node {node.id} is not formatted, and {url} says {there[:500]!r}: the cluster was formed "
                f"before. Bring the volume back that has the node's data; if it is lost, {LOST}"
            )
    machine.say(f"forming controller {node.id} of cluster {cluster.id}")
    formatted(machine, document, node, cluster.id, "--initial-controllers", voters)
    machine.sync()
    forget(machine, home)


def form_alone(machine: Machine, document: Document) -> None:
    """A node that is alone formats itself, but without a user nobody could log in to make the first one."""
    (node,) = document.nodes
    if not machine.names(str(machine.path(f"var/lib/firn/node-{node.id}"))):
        given = document.properties.get("firn.cluster.id")
        formatted(machine, document, node, given or firn(machine, "random-uuid").strip())
        machine.sync()


def formatted(machine: Machine, document: Document, node: Node, cluster_id: str, *voters: str) -> None:
    config = str(machine.path(f"etc/firn/server-{node.id}.properties"))
    users = []
    if document.security is not None:
        password = machine.path(f"{HOME}/{FILES['admin']}")
        users = ["--add-scram", f"SCRAM-SHA-512=[name=admin,password=@{password}]"]
    firn(machine, "format", "-c", config, "-t", cluster_id, *voters, *users)


def firn(machine: Machine, *arguments: str) -> str:
    command = str(machine.path("opt/firn/current/bin/firn"))
    return machine.run("runuser", "-u", "firn", "--", command, *arguments)[1]


def encryption(document: Document) -> dict[str, str]:
    """Return the headers that the bucket demands of writes, as the node is told."""
    names = {"sse": "", "sse.kms.key.id": "-aws-kms-key-id"}
    said = {end: document.properties.get(f"firn.remote.s3.{key}") for key, end in names.items()}
    return {f"x-amz-server-side-encryption{end}": value for end, value in said.items() if value}


def noted(machine: Machine, home: Path, node: Node) -> str:
    """The word of this volume, the same until the directory is ready."""
    if not (home / NOTE).exists():
        machine.write(f"var/lib/firn/node-{node.id}/{NOTE}", secrets.token_hex(16))
        machine.sync()
    return (home / NOTE).read_text("utf-8", "replace")


def forget(machine: Machine, home: Path) -> None:
    if (home / NOTE).exists():
        (home / NOTE).unlink()
        machine.sync()
