"""Security of `firn dev --secure`: an authority, the nodes' certificate, users, and files for their clients.

Clients log in with SCRAM over TLS; nodes know each other by their certificate, on listeners of their own.
What is secret is in files of mode 0600, in no argument of a process. A folder that has it all is used as it
is.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from service.base.errors import ConfigError
from service.base.extras import install_extra

if TYPE_CHECKING:
    from service.cli.dev_nodes import Plan
    from service.config.cluster import ClusterConfig
    from service.metadata.records import UserScramCredentialRecord

FOLDER: Final = "secure"
USERS: Final = ("admin", "alice")
"""The first may do everything, the others nothing until an ACL says so."""
NODE_NAME: Final = "firn-dev-node"
CLIENTS: Final = "CLIENTS"
INTERNAL: Final = "INTERNAL"
CONTROLLER: Final = "CONTROLLER"
_MECHANISM: Final = "SCRAM-SHA-512"
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_DAYS: Final = 3650
_HOSTS: Final = ("localhost",)
_ADDRESSES: Final = ("127.0.0.1", "::1")


class DevSecurity(NamedTuple):
    """Folder of certificates, passwords and clients' properties."""

    folder: Path

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def node(self) -> Path:
        return self.folder / "node.pem"

    def password(self, user: str) -> Path:
        return self.folder / f"{user}.password"

    def java(self, user: str) -> Path:
        """Properties of Java's clients and tools, and of `firn`."""
        return self.folder / f"{user}.properties"

    def librdkafka(self, user: str) -> Path:
        """Properties of librdkafka's clients, and of `firn`."""
        return self.folder / f"{user}.librdkafka.properties"

    @property
    def admin(self) -> Path:
        """Properties of the user that may do everything."""
        return self.java(USERS[0])

    @property
    def kept(self) -> list[Path]:
        """Files that are made once."""
        return [self.folder / "ca.key", self.ca, self.node, *map(self.password, USERS)]

    def settings(self, *, is_cluster: bool) -> dict[str, str]:
        """Return the nodes' settings, without their listeners."""
        listeners = [(CLIENTS, "SASL_SSL")]
        found = {
            "sasl.enabled.mechanisms": _MECHANISM,
            f"listener.name.{CLIENTS.lower()}.{_MECHANISM.lower()}.sasl.jaas.config": f"{_MODULE} required;",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.node),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "authorizer.class.name": _AUTHORIZER,
            "super.users": f"User:{USERS[0]}",
        }
        if is_cluster:
            listeners += [(INTERNAL, "SSL"), (CONTROLLER, "SSL")]
            found["inter.broker.listener.name"] = INTERNAL
            found["super.users"] += f";User:CN={NODE_NAME}"
            found |= {
                f"listener.name.{name.lower()}.ssl.client.auth": "required" for name in (INTERNAL, CONTROLLER)
            }
        found["listener.security.protocol.map"] = ",".join(map(":".join, listeners))
        return found

    def credentials(self) -> tuple[UserScramCredentialRecord, ...]:
        """Return the records of the users, with which a cluster is formatted."""
        from service.cli.format import credential_record

        return tuple(
            credential_record(f"{_MECHANISM}=[name={user},password=@{self.password(user)}]") for user in USERS
        )

    def lines(self, bootstrap: str) -> list[str]:
        """Return what a user has to know."""
        place = f"--bootstrap-server {bootstrap} --command-config {self.admin}"
        return [
            *(f"{user}, for Java and firn: {self.java(user)}" for user in USERS),
            *(f"{user}, for librdkafka: {self.librdkafka(user)}" for user in USERS),
            f"to make a topic: firn topic create flights {place}",
            "to let alice use it: firn acl add --allow-principal User:alice --producer --consumer"
            f" --topic flights --group '*' {place}",
        ]


def prepare(folder: Path) -> DevSecurity:
    """Make what is not there. Raises `ConfigError` where the package that makes certificates is missing."""
    found = DevSecurity(folder)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not all(path.exists() for path in found.kept):
        _make_certificates(found)
        for user in USERS:
            _write(found.password(user), secrets.token_urlsafe(24) + "\n")
    for user in USERS:
        password = found.password(user).read_text().rstrip("\n")
        common = {"security.protocol": "SASL_SSL"}
        _write(
            found.java(user),
            _properties(
                common
                | {
                    "sasl.mechanism": _MECHANISM,
                    "sasl.jaas.config": f'{_MODULE} required username="{user}" password="{password}";',
                    "ssl.truststore.type": "PEM",
                    "ssl.truststore.location": str(found.ca),
                }
            ),
        )
        _write(
            found.librdkafka(user),
            _properties(
                common
                | {
                    "sasl.mechanisms": _MECHANISM,
                    "sasl.username": user,
                    "sasl.password": password,
                    "ssl.ca.location": str(found.ca),
                }
            ),
        )
    return found


def secured(plan: Plan, ports: Sequence[int], host: str) -> Plan:
    """Return the plan with the listeners of secured nodes; `ports`: one for each node's own listener."""
    nodes = []
    for node, port in zip(plan.nodes, ports, strict=True):
        first, *rest = node.settings["listeners"].split(",")
        clients = f"{CLIENTS}://{first.partition('://')[2]}"
        listeners = ",".join((clients, f"{INTERNAL}://{host}:{port}", *rest))
        nodes.append(node._replace(settings={**node.settings, "listeners": listeners}))
    return plan._replace(nodes=tuple(nodes))


def secured_alone(
    security: DevSecurity, settings: Mapping[str, str], directory: Path, port: int
) -> dict[str, str]:
    """Return the settings of a node that is alone, secured; its port is free where `port` is 0."""
    from service.cli.dev_nodes import HOST, agree_on_ports

    (chosen,), _ = agree_on_ports(port, 1, 0)
    return {
        **security.settings(is_cluster=False),
        **settings,
        "listeners": f"{CLIENTS}://{HOST}:{chosen}",
        "log.dirs": str(directory / "node-1"),
    }


def format_alone(security: DevSecurity, cluster: ClusterConfig) -> None:
    """Format the directory of a node that is alone, with the users."""
    from service.base.world import system_world
    from service.hot.log_dir import encode_uuid, random_id
    from service.metadata.features import supported_features
    from service.metadata.formatting import Order, effective_levels, format_directories

    world = system_world()
    order = Order(
        encode_uuid(random_id(world)),
        cluster.node_id,
        cluster.directories,
        cluster.metadata_log_dir,
        "",
        effective_levels({}, supported_features(), is_dynamic=False),
        credentials=security.credentials(),
    )
    format_directories(world, order, lambda _: None)


def _properties(values: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in values.items())


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner reads, from its first byte on."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)


def _make_certificates(found: DevSecurity) -> None:
    """Make an authority, and a certificate for nodes, as servers and as clients of each other."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as e:
        raise ConfigError(f"--secure makes certificates with a package: {install_extra('security')}") from e
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    ca = _signed("firn dev CA", ca_key, "firn dev CA", ca_key, is_ca=True)
    node = _signed(NODE_NAME, key, "firn dev CA", ca_key, is_ca=False)
    _write(found.folder / "ca.key", _pem_of_key(ca_key))
    _write(found.ca, _pem_of(ca))
    _write(found.node, _pem_of_key(key) + _pem_of(node))


def _signed(name: str, key: Any, issuer: str, issuer_key: Any, *, is_ca: bool) -> Any:
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_DAYS))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    )
    if not is_ca:
        names: Iterable[x509.GeneralName] = (
            *map(x509.DNSName, _HOSTS),
            *(x509.IPAddress(ip_address(one)) for one in _ADDRESSES),
        )
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _pem_of(certificate: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return str(certificate.public_bytes(Encoding.PEM), "ascii")


def _pem_of_key(key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return str(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), "ascii")
