"""Records what Kafka's own classes make of random configurations and messages of SASL.

``python -m tests.golden.security.capture_java`` writes ``java.txt``: lines of kind, input in base64 and
result, as `tests/java/clients/Sasl.java` prints it.
"""

from __future__ import annotations

import base64
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.java_programs import compiled
from tests.support.requirements import KAFKA_LIBS

GOLDEN = Path(__file__).with_name("java.txt")
SEED = 35
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
_PIECES = (
    *("required", "Optional", "needed", ";", "=", '"', "'", " ", "\n", "\t", "\\", "\\n", "\\101", "\\477"),
    *("a", "user_b", "x-y", "$1", "12", "-", "-1", ".5", "1.2.3", "é", "\u0085", "/", "//", "/*", "*/", "#"),
    *('a="b"', "c='d'", 'e = "f"', 'g="h\\"i"', ";", ";", "required", MODULE, "\r\n", "(", "漢"),
)
_FIRST = (
    *(
        b"n,",
        b",",
        b"n=",
        b"bob",
        b"r=",
        b"nonce",
        b"a=",
        b"=2C",
        b"=3D",
        b"=2c",
        b"y,",
        b"p=x,",
        b",n=b,r=c",
    ),
    *(
        b"n,,n=bob,r=x",
        b",tokenauth=true",
        b",a=b",
        b" ",
        b"\x00",
        b"\x7f",
        "é".encode(),
        b"m=x,",
        b"=",
        b"\n",
    ),
)
_LAST = (
    *(b"c=", b"biws", b",r=", b"nonce", b",p=", b"YWJj", b"YWI=", b"YQ==", b"=", b",a=b", b",", b"?", b"\n"),
    *(b"c=biws,r=x,p=YWJj", b"c=biws,r=x", b",p=", b" "),
)
_PLAIN = (
    b"\0",
    b"\0",
    b"\0",
    b"alice",
    b"secret",
    b"bob",
    "ö".encode(),
    b"x",
    b" ",
    b"alice\0secret",
    b"\0alice",
)


_FLAGS = ("required", "Requisite", "OPTIONAL", "sufficient", '"required"')
_KEYS = ("a", "user_b", "x-y", '"quoted key"', "é", "$", "k.1", "'k'")
_INSIDE = (
    "a",
    "b",
    " ",
    ";",
    "=",
    "'",
    '\\"',
    "\\\\",
    "\\n",
    "\\t",
    "\\101",
    "\\7",
    "\\47x",
    "\\477",
    "\\q",
    "é",
    "漢",
    "/",
    "//",
    "#",
)
_BETWEEN = (" ", " ", "\n", " /* c */ ", " // c\n", " / c\n", "\t", " /* * / */ ")
_B64 = (b"YWJj", b"YWI=", b"YQ==", b"biws", b"", b"+/+/", b"Y")


def _options(rng: random.Random) -> str:
    found = ""
    for _ in range(rng.randrange(4)):
        value = "".join(rng.choices(_INSIDE, k=rng.randrange(6)))
        quoted = f'"{value}"' if rng.random() < 0.8 else rng.choice(("word", "w-1_$", "x.1", "'s'"))
        equals = rng.choice(("=", "=", " = ", "=\n"))
        found += rng.choice(_KEYS) + equals + quoted + rng.choice(_BETWEEN)
    return found


def inputs() -> Iterator[tuple[str, bytes]]:
    rng = random.Random(SEED)

    def some(pieces: tuple[bytes, ...], most: int) -> bytes:
        return b"".join(rng.choices(pieces, k=rng.randrange(most)))

    for _ in range(700):
        text = "".join(rng.choices(_PIECES, k=rng.randrange(12)))
        yield "jaas", (f"{MODULE} required {text}" if rng.random() < 0.8 else text).encode()
    for _ in range(500):
        text = f'{MODULE} required a="1" {"".join(rng.choices(_PIECES, k=rng.randrange(6)))};'
        yield "jaas", text.encode()
    for _ in range(500):
        yield "jaas", f"{MODULE} {rng.choice(_FLAGS)} {_options(rng)};".encode()
    for _ in range(600):
        head = b"n,,n=bob,r=nonce" if rng.random() < 0.4 else b""
        yield "first", head + some(_FIRST, 7)
    for _ in range(300):
        yield "last", some(_LAST, 8)
    for _ in range(200):
        middle = some((b"", b"", b",a=b", b",ab=c d", b"=", b",", b"?"), 3)
        yield "last", b"c=" + some(_B64, 4) + b",r=nonce" + middle + b",p=" + some(_B64, 4)
    for _ in range(300):
        yield "plain", some(_PLAIN, 8)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        for password in (b"pencil", "pässwörd 漢".encode(), b"x" * 300):
            yield mechanism, password


def main() -> None:
    asked = [(kind, base64.b64encode(data).decode()) for kind, data in inputs()]
    done = subprocess.run(
        ["java", "-cp", f"{compiled('Sasl')}:{KAFKA_LIBS}/*", "Sasl"],
        input="".join(f"{kind} {data}\n" for kind, data in asked),
        capture_output=True,
        text=True,
        check=True,
    )
    answers = done.stdout.splitlines()
    lines = [f"{kind} {data} {answer}" for (kind, data), answer in zip(asked, answers, strict=True)]
    GOLDEN.write_text("\n".join(dict.fromkeys(lines)) + "\n")


if __name__ == "__main__":
    main()
