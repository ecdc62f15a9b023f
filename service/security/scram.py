"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): both sides of a login, and its keys. [P]

Without channel binding and without SASLprep, as Kafka's (``ScramSaslServer``, ``ScramMessages``,
``ScramFormatter``). The server does HMACs only; PBKDF2 is the client's work. Three things are Firn's own: the
server compares ``c=`` with the header that came first; a mandatory extension (``m=``) is refused at once; and
an unknown user gets a challenge that looks like that of a known one and fails at the end, where Kafka fails
at once and so tells who exists.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from service.base.errors import ConfigError, FirnError
from service.security.plain import OTHER_AUTHZID
from service.security.sasl_server import Evaluation, SaslRefused, SlowEvaluation
from service.security.scram_credential import SCRAM_SHA_256, SCRAM_SHA_512, ScramCredential

SCRAM_MECHANISMS: Final = (SCRAM_SHA_256, SCRAM_SHA_512)
MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16384
"""Iterations that a credential may have (Kafka's ``ScramMechanism``)."""
_MAX_CLIENT_ITERATIONS: Final = 1_000_000
"""The server chooses the number; more would let it spend the client's CPU time."""
_MOST_BYTES: Final = 16 << 10
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"

_SAFE: Final = rb"[\x01-\x2b\x2d-\x3c\x3e-\x7f]"
_VALUE: Final = rb"[\x01-\x2b\x2d-\x7f]+"
_NAME: Final = rb"(?:" + _SAFE + rb"|=2C|=3D)+"
_NONCE: Final = rb"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = rb"(?:,[A-Za-z]+=" + _VALUE + rb")*"
_BASE64: Final = rb"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
FIRST: Final = re.compile(
    rb"(?P<header>n,(?:a=(?P<authzid>" + _NAME + rb"))?,)"
    rb"(?P<bare>n=(?P<name>"
    + _NAME
    + rb"),r=(?P<nonce>"
    + _NONCE
    + rb")(?P<extensions>"
    + _EXTENSIONS
    + rb"))"
)
FINAL: Final = re.compile(
    rb"(?P<unproved>c=(?P<binding>" + _BASE64 + rb"),r=(?P<nonce>" + _NONCE + rb")" + _EXTENSIONS + rb")"
    rb",p=(?P<proof>" + _BASE64 + rb")"
)


class TokenLogin(NamedTuple):
    """Login by a delegation token: as its owner, until `expires_ms` since the epoch.

    `credential`: None until `derive` has made it, which takes milliseconds.
    """

    owner: str
    expires_ms: int
    credential: ScramCredential | None
    derive: Callable[[], ScramCredential]


Lookup = Callable[[str], ScramCredential | None]
"""Returns the credential of a user for the listener's mechanism."""
FindToken = Callable[[str], TokenLogin | None]
"""Returns the login of a delegation token's id for the listener's mechanism."""


def no_tokens(token_id: str) -> None:
    """Find no delegation token: there are none."""


def hash_of(mechanism: str) -> str:
    """Return hashlib's name of the mechanism's hash.

    >>> hash_of("SCRAM-SHA-512")
    'sha512'
    """
    return "sha" + mechanism.removeprefix("SCRAM-SHA-")


def salted_password(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """Return RFC 5802's SaltedPassword: PBKDF2, some milliseconds."""
    return hashlib.pbkdf2_hmac(hash_of(mechanism), password, salt, iterations)


def credential_from(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return what a server keeps of a salted password."""
    algorithm = hash_of(mechanism)
    client_key = hmac.digest(salted, b"Client Key", algorithm)
    stored_key = hashlib.new(algorithm, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", algorithm), iterations)


def base36(number: int) -> str:
    """Return the digits of `number`, as Kafka writes its nonces and salts.

    >>> base36(36 * 36 - 1)
    'zz'
    """
    digits = []
    while number:
        number, digit = divmod(number, 36)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits)) or "0"


class UnknownUsers:
    """Credentials of users that do not exist: the same for a name each time, and nobody knows a password.

    Nodes with the same `secret` agree, so that asking two of them tells nothing.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = hashlib.sha256(b"salts of unknown users" + secret).digest()

    def credential(self, mechanism: str, name: str) -> ScramCredential:
        """Return the credential that `name` seems to have."""
        seed = hmac.digest(self._secret, f"{mechanism} {name}".encode("utf-8", "surrogatepass"), "sha512")
        size = hashlib.new(hash_of(mechanism)).digest_size
        salt = base36(int.from_bytes(seed[:17], "big") >> 6)  # of 130 bits, as Kafka's tools make them
        return ScramCredential(salt.encode(), seed[:size], seed[:size], MIN_ITERATIONS)


class ScramServer:
    """The server's side of one login, of a user or by a delegation token: two messages."""

    __slots__ = (
        "_credential", "_find_token", "_first", "_is_known", "_lookup", "_mechanism", "_name", "_nonce",
        "_token", "_unknown",
    )  # fmt: skip

    def __init__(
        self,
        mechanism: str,
        lookup: Lookup,
        unknown: UnknownUsers,
        nonce: str,
        find_token: FindToken = no_tokens,
    ) -> None:
        """`nonce`: fresh randomness in printable ASCII without commas."""
        self._mechanism = mechanism
        self._lookup = lookup
        self._find_token = find_token
        self._unknown = unknown
        self._nonce = nonce
        self._first: tuple[bytes, bytes, bytes] | None = None
        """gs2 header, first message without it, and the answer to it"""
        self._credential: ScramCredential
        self._token: TokenLogin | None = None
        self._is_known = False
        self._name = ""

    def evaluate(self, token: bytes) -> Evaluation | SlowEvaluation:
        """Answer the client's first or final message. Raises `SaslRefused`."""
        if len(token) > _MOST_BYTES:
            raise SaslRefused(f"SCRAM: a message of {len(token)} bytes")
        return self._challenge(token) if self._first is None else self._check(token, *self._first)

    def _challenge(self, token: bytes) -> Evaluation | SlowEvaluation:
        match = FIRST.fullmatch(token)
        if match is None:
            raise SaslRefused("SCRAM: the client's first message is malformed")
        name = _username(match["name"])
        if match["authzid"] is not None and _username(match["authzid"]) != name:
            raise SaslRefused("SCRAM: another authorization id", OTHER_AUTHZID)
        self._name = name
        if not _asks_for_a_token(match["extensions"]):
            return self._ask(match, self._lookup(name))
        # A delegation token's id is no user's name.
        self._token = found = self._find_token(name)
        if found is not None and found.credential is None:
            return SlowEvaluation(found.derive, partial(self._ask, match))
        return self._ask(match, None if found is None else found.credential)

    def _ask(self, match: re.Match[bytes], found: ScramCredential | None) -> Evaluation:
        """Ask for the proof of a credential, of a made-up one where there is none."""
        if found is not None and found.iterations < MIN_ITERATIONS:
            raise SaslRefused(f"SCRAM: the credential has {found.iterations} iterations only")
        self._is_known = found is not None
        made_up = self._unknown.credential(self._mechanism, self._name)
        self._credential = made_up if found is None else found
        salt = base64.b64encode(self._credential.salt)
        answer = b"r=%b%b,s=%b,i=%d" % (
            match["nonce"],
            self._nonce.encode(),
            salt,
            self._credential.iterations,
        )
        self._first = match["header"], match["bare"], answer
        return Evaluation(answer)

    def _check(self, token: bytes, header: bytes, bare: bytes, answer: bytes) -> Evaluation:
        match = FINAL.fullmatch(token)
        if match is None:
            raise SaslRefused("SCRAM: the client's final message is malformed")
        nonce = answer[2 : answer.index(b",")]
        if not hmac.compare_digest(match["nonce"], nonce):
            raise SaslRefused("SCRAM: another nonce")
        if base64.b64decode(match["binding"]) != header:
            raise SaslRefused("SCRAM: another gs2 header")
        algorithm, credential = hash_of(self._mechanism), self._credential
        signed = b"%b,%b,%b" % (bare, answer, match["unproved"])
        signature = hmac.digest(credential.stored_key, signed, algorithm)
        proof = base64.b64decode(match["proof"])
        if len(proof) != len(signature):
            raise SaslRefused(f"SCRAM: a proof of {len(proof)} bytes")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(algorithm, client_key).digest(), credential.stored_key)
        if not (is_right and self._is_known):
            raise SaslRefused("SCRAM: wrong name or password")
        last = b"v=" + base64.b64encode(hmac.digest(credential.server_key, signed, algorithm))
        if self._token is None:
            return Evaluation(last, self._name)
        return Evaluation(last, self._token.owner, self._token.expires_ms, is_delegation_token=True)


def _username(text: bytes) -> str:
    return text.decode("ascii").replace("=2C", ",").replace("=3D", "=")


def _asks_for_a_token(extensions: bytes) -> bool:
    """Return whether the extension of KIP-48 says that the name is a delegation token's id."""
    given = dict(one.split(b"=", 1) for one in extensions.split(b",") if one)
    return given.get(b"tokenauth", b"").lower() == b"true"


class ScramMalformed(FirnError):
    """A server's message that is not SCRAM's."""


class ScramClient:
    """The client's side of one login. The server proves that it knows the password, too."""

    __slots__ = ("_bare", "_mechanism", "_nonce", "_password", "_signature")

    def __init__(
        self, mechanism: str, username: str, password: str, nonce: str, *, is_token: bool = False
    ) -> None:
        """`nonce`: fresh randomness in printable ASCII without commas. `is_token`: the name is the id of a
        delegation token, and the password its HMAC in base64."""
        self._mechanism = mechanism
        self._password = password.encode()
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}" + (",tokenauth=true" if is_token else "")
        self._signature: bytes | None = None

    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._bare}".encode()

    def answer(self, data: bytes) -> bytes | None:
        """Return the reply to the server's `data`, None when done.

        Raises `ConfigError` if the server is not to be trusted, `ScramMalformed` for what is not SCRAM.
        """
        given = _attributes(data)
        if self._signature is None:
            return self._proof(given, data.decode())
        if "e" in given:
            raise ConfigError(f"the server refuses the login: {given['e'][:200]}")
        if not hmac.compare_digest(_unbase64(given, "v"), self._signature):
            raise ConfigError("the server does not know the password itself (its SCRAM signature is wrong)")
        return None

    def _proof(self, given: dict[str, str], server_first: str) -> bytes:
        nonce, count = given.get("r", ""), given.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ConfigError("the server's SCRAM nonce does not go on from ours")
        if not (count.isascii() and count.isdecimal() and len(count) < 10):
            raise ScramMalformed("SCRAM: no number of iterations")
        if not MIN_ITERATIONS <= int(count) <= _MAX_CLIENT_ITERATIONS:
            raise ConfigError(
                f"the server asks for {count} SCRAM iterations, not {MIN_ITERATIONS} to "
                f"{_MAX_CLIENT_ITERATIONS}"
            )
        algorithm = hash_of(self._mechanism)
        salted = salted_password(self._mechanism, self._password, _unbase64(given, "s"), int(count))
        client_key = hmac.digest(salted, b"Client Key", algorithm)
        final = f"c=biws,r={nonce}"
        signed = f"{self._bare},{server_first},{final}".encode()
        stored_key = hashlib.new(algorithm, client_key).digest()
        signature = hmac.digest(stored_key, signed, algorithm)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", algorithm)
        self._signature = hmac.digest(server_key, signed, algorithm)
        return f"{final},p={base64.b64encode(proof).decode()}".encode()


def _attributes(data: bytes) -> dict[str, str]:
    """``r=…,s=…`` by letter."""
    try:
        pairs = (part.split("=", 1) for part in data.decode().split(","))
        return dict(pairs)
    except ValueError as e:
        raise ScramMalformed(f"SCRAM: {e}") from None


def _unbase64(given: dict[str, str], letter: str) -> bytes:
    try:
        return base64.b64decode(given[letter], validate=True)
    except (KeyError, binascii.Error):
        raise ScramMalformed(f"SCRAM: no {letter}= in base64") from None
