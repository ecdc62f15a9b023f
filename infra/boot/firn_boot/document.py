"""Description of a machine: reads and checks /etc/firn/machine.json. Nothing here touches the machine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from .errors import BootError


@dataclass(frozen=True)
class Node:
    id: int
    port: int
    http_port: int
    role: str | None = None
    """"broker" or "controller"; None where it is both, and alone"""
    internal_port: int | None = None
    """of a broker with `security`: for other nodes alone"""
    processes: int = 1
    """of a broker: nodes of one service, the ports and ids of each follow those of the one before it"""


@dataclass(frozen=True)
class Package:
    url: str
    sha256: str
    region: str


@dataclass(frozen=True)
class Cluster:
    """Cluster of nodes on several machines: its initial voters by id, as `firn format` takes them; host:port
    of each; and the URL below which formed nodes are marked."""

    id: str
    controllers: dict[int, str]
    places: dict[int, str]
    formed: str | None


@dataclass(frozen=True)
class Security:
    """ARNs of what every node is told in secret: its key with the chain of its certificate, the certificates
    that it trusts, the password of the user `admin`, and `super.users`; and the token that metrics take, if
    there is to be one."""

    node: str
    ca: str
    admin: str
    super_users: str
    metrics: str | None = None


@dataclass(frozen=True)
class Document:
    host: str
    nodes: tuple[Node, ...]
    package: Package
    device: str | None
    properties: dict[str, str]
    stop_timeout_s: int
    cluster: Cluster | None = None
    security: Security | None = None


HOST = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
ID = "[A-Za-z0-9_][A-Za-z0-9_-]{20}[AQgw]"
ROLES = ("broker", "controller")
ID_STEP, PORT_STEP = 1000, 1
ARN = r"arn:aws[a-z-]*:(secretsmanager|ssm):[a-z0-9-]+:\d{12}:(secret:|parameter/)[\w/+=.@-]+"
OURS = (
    "node.id",
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "log.dir",
    "firn.http.listener",
    "process.roles",
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "metadata.log.dir",
    "firn.processes",
    "firn.processes.id.step",
    "firn.processes.port.step",
)
SECURED = (
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    "authorizer.class.name",
    "super.users",
    "config.providers",
    "sasl.enabled.mechanisms",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "firn.http.ssl.keystore.location",
    "firn.http.token.file",
)
"""Properties that are made of `security`, where it is there."""


def parse(text: str) -> Document:
    """Raises BootError, which names the field, for whatever is not as it should be."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BootError(f"the document is no JSON: {error}") from None
    top = _fields(
        raw,
        "document",
        {"host", "nodes", "package"},
        {"data", "properties", "stop_timeout_s", "cluster", "security"},
    )
    host = _text(top["host"], "host")
    if not HOST.fullmatch(host):
        raise BootError(f"host: {host!r} is no name or IPv4 address")
    if not isinstance(top["nodes"], list) or not 1 <= len(top["nodes"]) <= 64:
        raise BootError("nodes: a list of 1 to 64")
    nodes = tuple(_node(one, f"nodes[{i}]") for i, one in enumerate(top["nodes"]))
    ids, ports = [], []
    for node in nodes:
        for p in range(node.processes):
            ids.append(node.id + ID_STEP * p)
            ports += [
                port + PORT_STEP * p for port in (node.port, node.http_port, node.internal_port) if port
            ]
    if len(set(ids)) < len(ids) or len(set(ports)) < len(ports):
        raise BootError("nodes: two have the same id or port")
    cluster = _cluster(top["cluster"]) if "cluster" in top else None
    security = _security(top["security"]) if "security" in top else None
    _check_roles(host, nodes, cluster, security)
    return Document(
        host,
        nodes,
        _package(top["package"]),
        _device(top),
        _properties(top.get("properties", {}), OURS if security is None else (*OURS, *SECURED)),
        _whole(top.get("stop_timeout_s", 180), "stop_timeout_s", 10, 3600),
        cluster,
        security,
    )


def _properties(properties: object, ours: tuple[str, ...]) -> dict[str, str]:
    if not isinstance(properties, dict):
        raise BootError("properties: an object of strings")
    for key, value in properties.items():
        if not re.fullmatch(r"[A-Za-z0-9._-]+", key):
            raise BootError(f"properties: {key!r} is no key")
        if key in ours:
            raise BootError(f"properties: {key} is made from the rest of the document")
        _text(value, f"properties[{key}]", empty=True)
    return dict(properties)


def _device(top: dict[str, object]) -> str | None:
    if "data" not in top:
        return None
    device = _text(_fields(top["data"], "data", {"device"}, set())["device"], "data.device")
    if not re.fullmatch(r"/dev/[A-Za-z0-9._/-]+", device) or ".." in device:
        raise BootError(f"data.device: {device!r} is no path below /dev")
    return device


def _fields(raw: object, where: str, needed: set[str], allowed: set[str]) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise BootError(f"{where}: an object was expected")
    if missing := sorted(needed - raw.keys()):
        raise BootError(f"{where}: {', '.join(missing)} is missing")
    if unknown := sorted(raw.keys() - needed - allowed):
        raise BootError(f"{where}: {', '.join(unknown)} is not known")
    return raw


def _text(value: object, where: str, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty) or any(ord(c) < 32 or ord(c) == 127 for c in value):
        raise BootError(f"{where}: a string without control characters was expected")
    return value


def _whole(value: object, where: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BootError(f"{where}: a whole number of {low} to {high} was expected")
    return value


def _node(raw: object, where: str) -> Node:
    fields = _fields(raw, where, {"id", "port", "http_port"}, {"role", "internal_port", "processes"})
    role, internal = fields.get("role"), fields.get("internal_port")
    if role is not None and role not in ROLES:
        raise BootError(f"{where}.role: one of {', '.join(ROLES)}")
    return Node(
        _whole(fields["id"], f"{where}.id", 0, 2**31 - 1),
        _whole(fields["port"], f"{where}.port", 1, 65535),
        _whole(fields["http_port"], f"{where}.http_port", 1, 65535),
        None if role is None else str(role),
        None if internal is None else _whole(internal, f"{where}.internal_port", 1, 65535),
        _whole(fields.get("processes", 1), f"{where}.processes", 1, 64),
    )


def _cluster(raw: object) -> Cluster:
    fields = _fields(raw, "cluster", {"id", "controllers"}, {"formed"})
    cluster_id = _text(fields["id"], "cluster.id")
    if not re.fullmatch(ID, cluster_id):
        raise BootError("cluster.id: 22 characters as `firn random-uuid` prints them")
    listed = fields["controllers"]
    if not isinstance(listed, list):
        raise BootError("cluster.controllers: a list")
    found, ids, places = {}, set(), {}
    for i, one in enumerate(listed):
        where = f"cluster.controllers[{i}]"
        match = re.fullmatch(rf"(\d{{1,9}})@([A-Za-z0-9.-]+:\d{{1,5}}):({ID})", _text(one, where))
        if not match:
            raise BootError(f"{where}: id@host:port:directory-id")
        found[int(match[1])], places[int(match[1])] = match[0], match[2]
        ids.add(match[3])
    if not len(listed) == len(found) == len(ids) > 0:
        raise BootError("cluster.controllers: none, or two with the same id")
    formed = _text(fields["formed"], "cluster.formed") if "formed" in fields else None
    if formed and not re.fullmatch(r"s3://[a-z0-9.-]+(/[A-Za-z0-9_.-]+)+", formed):
        raise BootError("cluster.formed: s3://bucket/prefix")
    return Cluster(cluster_id, found, places, formed)


def _security(raw: object) -> Security:
    names = ("node", "ca", "admin", "super_users")
    fields = _fields(raw, "security", set(names), {"metrics"})
    arns = {name: _text(arn, f"security.{name}") for name, arn in fields.items()}
    for name, arn in arns.items():
        if not re.fullmatch(ARN, arn, re.ASCII):
            raise BootError(f"security.{name}: the ARN of a secret, or of a parameter of SSM")
    return Security(**arns)


def _check_roles(
    host: str, nodes: tuple[Node, ...], cluster: Cluster | None, security: Security | None
) -> None:
    """Each node of a cluster says what it is, and is a controller where the cluster says so, there alone."""
    places = cluster.places if cluster else {}
    for i, node in enumerate(nodes):
        if (node.role is None) != (cluster is None):
            raise BootError(f"nodes[{i}].role: with `cluster`, and with it alone")
        if node.role == "controller" and places.get(node.id) != f"{host}:{node.port}":
            raise BootError(f"nodes[{i}]: cluster.controllers does not name {node.id}@{host}:{node.port}")
        if node.role != "broker" and node.processes > 1:
            raise BootError(f"nodes[{i}].processes: of brokers of a cluster alone")
        if node.role == "broker" and node.id in places:
            raise BootError(f"nodes[{i}]: {node.id} is the id of a controller")
        if (node.internal_port is None) != (node.role != "broker" or security is None):
            raise BootError(f"nodes[{i}].internal_port: of brokers with `security`, and of them alone")


def _package(raw: object) -> Package:
    fields = _fields(raw, "package", {"url", "sha256"}, {"region"})
    url, sha256 = _text(fields["url"], "package.url"), _text(fields["sha256"], "package.sha256")
    if not re.fullmatch(r"s3://[a-z0-9.-]+/.+|https://[^/@]+/.+|/.+", url):
        raise BootError("package.url: s3://bucket/key, https://host/path or an absolute path")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise BootError("package.sha256: 64 hexadecimal digits")
    region = _text(fields.get("region", "us-east-1"), "package.region")
    if not re.fullmatch("[a-z0-9-]+", region):
        raise BootError(f"package.region: {region!r} is no region")
    return Package(url, sha256, region)
