"""Secrets of the machine's nodes: fetched by their ARNs, tried, and written for the user `firn` alone.

A node looks at its files by itself, so a certificate that is renewed needs no restart. What cannot be used is
not written: the file of before stays.
"""

from __future__ import annotations

import dataclasses
import http.client
import re
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path

from .document import Document
from .errors import BootError
from .fetching import secret
from .machine import Machine

Get = Callable[[str], str]
"""(ARN): the text. Raises OSError."""
HOME = "etc/firn/secrets"
FILES = {
    "ca": "ca.pem",
    "node": "node.pem",
    "metrics": "metrics.token",
    "admin": "admin.password",
    "super_users": "super.users",
}
CLIENT = "client.properties"
"""What a command of the user `admin` connects by."""


def step_secrets(machine: Machine, document: Document, get: Get = secret) -> None:
    if document.security is None:
        return
    with machine.alone("secrets"):
        home = machine.path(HOME)
        owner = int(machine.run("id", "-u", "firn")[1])
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if home.stat().st_uid != owner:
            machine.run("chown", "firn:firn", str(home))
        arns = dataclasses.asdict(document.security)
        for name, file in FILES.items():
            there = (home / file).exists()
            if arns[name] is None:
                continue
            text = fetched(machine, home / file, arns[name], get)
            if text is None:
                continue
            try:
                changed = machine.write(f"{HOME}/{file}", text, owner, partial(check, name))
                if name == "admin":
                    machine.write(f"{HOME}/{CLIENT}", client_of(machine, document, text), owner)
            except ValueError as error:
                raise BootError(f"{arns[name]}: {error}; it was not written to {home / file}") from None
            if changed and there:
                after = "; nodes know of it when they are restarted" if name == "super_users" else ""
                machine.say(f"{home / file} has changed{after}")


def fetched(machine: Machine, path: Path, arn: str, get: Get) -> str | None:
    """Return the secret; None where it cannot be had, and the one of before is there."""
    try:
        text = get(arn)
    except (OSError, http.client.HTTPException) as error:
        if not path.exists():
            raise BootError(f"{arn}: {error}") from None
        machine.say(f"{arn}: {error}; {path} stays as it is")
        return None
    return text.strip() + "\n" if "-----BEGIN" in text else text.strip()


def client_of(machine: Machine, document: Document, password: str) -> str:
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": password.replace("\\", "\\\\"),
        "ssl.ca.location": str(machine.path(f"{HOME}/{FILES['ca']}")),
    }
    if document.security is not None and document.security.metrics is not None:
        settings["firn.http.token.file"] = str(machine.path(f"{HOME}/{FILES['metrics']}"))
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def check(name: str, path: Path) -> None:
    """A key that is encrypted, and one of another certificate, are of no use. Raises ValueError."""
    text = path.read_text("utf-8", "replace")
    try:
        if name == "node":
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, password=lambda: "")
        elif name == "ca":
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, ValueError) as error:
        what = "a key and the chain of its certificate" if name == "node" else "certificates"
        raise ValueError(f"no PEM with {what}: {error}") from None
    if name == "admin" and not re.fullmatch("[!-~]{8,256}", text):
        raise ValueError("a password has 8 to 256 visible ASCII characters, and no spaces")
    if name == "metrics" and not re.fullmatch("[!-~]{16,4096}", text):
        raise ValueError("a token has 16 to 4096 visible ASCII characters, and no spaces")
    one = r"\w+:[^;\x00-\x1f\x7f]+"
    if name == "super_users" and not re.fullmatch(f"{one}(;{one})*", text, re.ASCII):
        raise ValueError("principals are written as User:admin;User:CN=node")
