r"""Names of certificates' subjects, as Java's ``X500Principal.getName()`` writes them. [P]

RFC 2253 with Java's choices: the last part first, keywords for nine types alone and every other as
``oid=#hex``; ``=`` and ``#`` are escaped wherever they stand, NUL as ``\00``, spaces at either end. Kafka's
principals, access rules and mapping rules are written in these names.

>>> subject = bytes.fromhex("301e310d300b06035504030c04613d2362310d300b060355040a0c044163206d")
>>> distinguished_name(subject)
'O=Ac m,CN=a\\=\\#b'
"""

from __future__ import annotations

from typing import Final

from service.security.der import (
    OBJECT_ID,
    SEQUENCE,
    SET,
    DerError,
    DerValue,
    object_id,
    read_one,
    read_values,
)
from service.security.java_text import decode_as_java

KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_TEXTS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""Tags that Java takes for text: UTF8String, PrintableString, T61String, IA5String, GeneralString and
BMPString. It reads the bytes of all of them as UTF-8."""
_ESCAPED: Final = str.maketrans({**{one: f"\\{one}" for one in ',=+<>#;"\\'}, "\0": "\\00"})
_ENDS: Final = " \r"
"""Characters that are escaped at both ends of a value."""


def distinguished_name(subject: bytes) -> str:
    """Return the name that the DER of a ``Name`` stands for. Raises `DerError`."""
    parts = [
        "+".join(_attribute(one) for one in read_values(part.expect(SET, "part of a name").content))
        for part in read_values(read_one(subject, SEQUENCE, "name").content)
    ]
    return ",".join(reversed(parts))


def _attribute(attribute: DerValue) -> str:
    fields = [*read_values(attribute.expect(SEQUENCE, "attribute of a name").content)]
    if len(fields) != 2:
        raise DerError(f"an attribute of {len(fields)} fields")
    kind, value = object_id(fields[0].expect(OBJECT_ID, "type of an attribute").content), fields[1]
    keyword = KEYWORDS.get(kind)
    if keyword is None or value.tag not in _TEXTS:
        return f"{keyword or kind}=#{value.whole.hex()}"
    return f"{keyword}={_escaped(decode_as_java(value.content))}"


def _escaped(text: str) -> str:
    text = text.translate(_ESCAPED)
    inner = text.lstrip(_ENDS)
    before = "".join(f"\\{one}" for one in text[: len(text) - len(inner)])
    kept = inner.rstrip(_ENDS)
    return before + kept + "".join(f"\\{one}" for one in inner[len(kept) :])
