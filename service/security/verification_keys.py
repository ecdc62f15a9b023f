"""Public keys of an issuer of tokens, from its JSON Web Key Set (RFC 7517). [P]

Which key a token is verified with: one of the token's kind that may sign and has its `kid`; keys without one
fit every `kid`. Source: jose4j's ``VerificationJwkSelector``, which Kafka uses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from service.base.errors import FirnError

MOST_KID: Final = 1000
"""Longest id of a key, in characters (Kafka ``RefreshingHttpsJwks``)."""
FEWEST_RSA_BITS: Final = 2048
MOST_RSA_BITS: Final = 8192
"""Longer ones would hold the loop for more than a slice."""
_CURVES: Final = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_KINDS: Final = ("RSA", *_CURVES.values())
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
ALGORITHMS: Final = (*_RSA, *_CURVES)
"""Algorithms that a token may have: never one without a signature, nor one whose key is a shared secret."""


class MalformedKeys(FirnError):
    """Bytes that are no key set."""


@dataclass(frozen=True, slots=True)
class _Key:
    kid: str | None
    kind: str
    """RSA, or the curve"""
    algorithm: str | None
    """the only one that the key is for"""
    public: Any
    """joserfc's"""


class VerificationKeys:
    """Keys of one key set."""

    def __init__(self, keys: tuple[_Key, ...], ignored: int) -> None:
        self._keys = keys
        self.ignored = ignored
        """keys of the set that verify nothing here: of another kind, too short, for encryption, damaged"""

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the keys."""
        return frozenset(one.kid for one in self._keys if one.kid is not None)

    def find(self, algorithm: str, kid: str | None) -> Any | None:
        """Return joserfc's key for a token with this algorithm of `ALGORITHMS`; None if there is none."""
        kind = _CURVES.get(algorithm, "RSA")
        found = [one for one in self._keys if one.kind == kind and (None in (kid, one.kid) or kid == one.kid)]
        fitting = (one for one in found if one.algorithm in (None, algorithm))
        key = next(fitting, None)
        return None if key is None else key.public


def read_keys(data: bytes) -> VerificationKeys:
    """Read a key set; keys that are of no use are passed over. Raises `MalformedKeys`.

    Takes a tenth of a millisecond for each key: for a thread.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise MalformedKeys("the answer is no JSON") from e
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise MalformedKeys('the answer is no key set: it has no list of "keys"')
    read = [one for one in map(_read, keys) if one is not None]
    return VerificationKeys(tuple(read), len(keys) - len(read))


def _read(given: Any) -> _Key | None:
    """Return a key, None for one that verifies no token."""
    if not isinstance(given, dict) or given.get("use", "sig") != "sig":
        return None
    kid, algorithm = given.get("kid"), given.get("alg")
    is_named = kid is None or (isinstance(kid, str) and len(kid) <= MOST_KID)
    if not is_named or not (algorithm is None or isinstance(algorithm, str)):
        return None
    kind = str(given.get("crv") if given.get("kty") == "EC" else given.get("kty"))
    if kind not in _KINDS:
        return None
    try:
        return _Key(kid, kind, algorithm, _public(given, kind))
    except _DAMAGES:
        return None


def _public(given: Mapping[str, Any], kind: str) -> Any:
    """Return joserfc's key of the public numbers alone. Raises one of `_DAMAGES`."""
    from joserfc.errors import JoseError  # only nodes that take tokens load it
    from joserfc.jwk import ECKey, RSAKey
    from joserfc.util import urlsafe_b64decode

    names = ("kty", "n", "e") if kind == "RSA" else ("kty", "crv", "x", "y")
    numbers = {name: given[name] for name in names}
    try:
        if kind != "RSA":
            return ECKey.import_key(numbers)
        bits = int.from_bytes(urlsafe_b64decode(numbers["n"].encode())).bit_length()
        if not FEWEST_RSA_BITS <= bits <= MOST_RSA_BITS:
            raise ValueError("a key of another size")
        return RSAKey.import_key(numbers)
    except JoseError as e:
        raise ValueError("a damaged key") from e


_DAMAGES: Final = (ValueError, TypeError, KeyError, AttributeError)
"""Errors that a key of wrong types or numbers raises; those of base64 are ValueErrors."""
