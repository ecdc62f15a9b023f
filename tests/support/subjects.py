"""Names of subjects as DER, well-formed and odd, and mapping rules with names, for two readers."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.support.java_programs import compiled
from tests.support.requirements import KAFKA_LIBS

GOLDEN = Path(__file__).parents[1] / "golden" / "security"
KNOWN = (
    "2.5.4.3",
    "2.5.4.6",
    "2.5.4.7",
    "2.5.4.8",
    "2.5.4.9",
    "2.5.4.10",
    "2.5.4.11",
    "0.9.2342.19200300.100.1.25",
    "0.9.2342.19200300.100.1.1",
)
OTHERS = (
    "1.2.840.113549.1.9.1",
    "2.5.4.5",
    "2.5.4.12",
    "2.5.4.4",
    "2.5.4.42",
    "2.5.4.46",
    "1.3.6.1.4.1.311.60.2.1.3",
    "2.999.1",
    "0.0",
    "1.39.4",
    "2.16840.1.113730.3.1.1",
)
TAGS = (0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E, 0x12, 0x1A, 0x04, 0x03, 0x02)
PIECES = (
    "alice",
    "Acme, Inc.",
    " ",
    "  ",
    "\r",
    "\n",
    "\0",
    "#",
    "=",
    "+",
    "<",
    ">",
    ";",
    '"',
    "\\",
    "ä",
    "漢",
    "😀",
    "a b",
    "/",
    "é́",
    "\t",
    "\x7f",
    "",
    "'",
    "(x)",
    "User:",
    "*",
)


def tlv(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    out = bytearray()
    for number in (40 * first + second, *rest):
        groups = [number & 0x7F]
        while number := number >> 7:
            groups.append(number & 0x7F | 0x80)
        out += bytes(reversed(groups))
    return tlv(0x06, bytes(out))


def attribute(kind: str, value: bytes, tag: int = 0x0C) -> bytes:
    return tlv(0x30, oid(kind) + tlv(tag, value))


def subject(*parts: Sequence[bytes]) -> bytes:
    return tlv(0x30, b"".join(tlv(0x31, b"".join(part)) for part in parts))


def drawn_subject(chance: random.Random) -> bytes:
    """A subject of up to four parts; most are those of real certificates, some are odd."""
    parts = [chance.choice((1, 1, 1, 2, 3)) for _ in range(chance.randint(0, 4))]
    return subject(*([_drawn_attribute(chance) for _ in range(count)] for count in parts))


def _drawn_attribute(chance: random.Random) -> bytes:
    kind = chance.choice(KNOWN if chance.random() < 0.8 else OTHERS)
    text = "".join(chance.choice(PIECES) for _ in range(chance.randint(0, 4)))
    tag = chance.choice(TAGS) if chance.random() < 0.3 else chance.choice((0x0C, 0x13))
    value = text.encode("utf-16-be") if tag == 0x1E else text.encode()
    if chance.random() < 0.1:
        value += bytes(chance.choices((0x00, 0x41, 0x80, 0xC3, 0xE2, 0xED, 0xA0, 0xF0, 0xF4, 0xFF), k=3))
    if tag == 0x02 and not value:
        value = b"\0"
    if tag == 0x03:
        value = b"\0" + value
    return attribute(kind, value, tag)


RULES = (
    "DEFAULT",
    "",
    "  ",
    "DEFAULT,",
    ",DEFAULT",
    " DEFAULT , DEFAULT ",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, RULE:^CN=([^,ADEFLTU,]+)(,.*|$)/$1/",
    "RULE:.*/admin/",
    "RULE:.+/admin/U",
    "RULE:CN=(.*?)/x$1y/",
    "RULE:CN=(.*)/$1$2/L",
    "RULE:(.)(.)(.*)/$3$12$99/",
    "RULE:^CN=(.*)$/$1\\/$1/",
    "RULE:^CN=(\\w+)$/\\$1-$1/",
    "RULE:^(?i)cn=(.*)$/$1/",
    "RULE:CN=alice|CN=al.*/$0!/",
    "RULE:^CN=(.*?)$/$1/LDEFAULT",
    "RULE:^CN=(.*?)$/$1/X",
    "garbage",
    "RULE:^CN=(.*?)$/$1",
    "RULE:a/b/c/d",
    "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
    "RULE:^CN=(.*),O=(.*)$/$2,$1/,RULE:^CN=(.*)$/$1/U",
    "RULE:(a)*CN=(.*)/[$1][$2]/",
    "RULE:x*/-/",
    "RULE:(?:CN=)?([a-z]*)/<$1>/",
    "DEFAULT,RULE:^CN=(.*)$/$1/",
    "RULE:^CN=(.*)$/$/",
    "RULE:^CN=(.*)$/a$b/",
    "RULE:^CN=.*$/$1/",
    "RULE:^CN=(.*)$/tail\\\\/",
    "RULE:/x/",
    "RULE:^CN=(.*)$//",
    "RULE:(?<n>CN)=(.*)/${n}-$2/",
    "RULE:^CN=(.*)$/$01/",
    "RULE:^CN=(.*)$/$1$2$3/",
)
NAMES = (
    "",
    "CN=alice",
    "CN=Alice,OU=ServiceUsers,O=Unknown,C=UK",
    "cn=ann,ou=dev,dc=acme,dc=com",
    "CN=al",
    "O=Acme",
    "CN=Duke,OU=JavaSoft,O=Sun Microsystems,L=X,ST=Y,C=US",
    "CN=ÄÖÜ straße,O=ΑΣ",
    "CN=a\\,b,O=c",
    "aaCN=x",
    "CN=İ",
)


def ask_java(lines: Iterable[str]) -> list[str | None]:
    """Java's answers; None where it throws."""
    command = ["java", "-cp", f"{compiled('Names')}:{KAFKA_LIBS}/*", "Names"]
    done = subprocess.run(
        command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True, timeout=120
    )
    return [bytes.fromhex(one[1:]).decode() if one != "!" else None for one in done.stdout.split()]


def name_line(der: bytes) -> str:
    return f"name {der.hex()}"


def rule_line(rules: str, name: str) -> str:
    return f"rule {rules.encode().hex()} {name.encode().hex()}"


def golden(name: str) -> list[list[str | None]]:
    rows: list[list[str | None]] = json.loads((GOLDEN / name).read_text("utf-8"))
    return rows
