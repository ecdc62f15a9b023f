"""Kafka's messages as bytes: framing, headers, the table of served APIs, codecs for every served version.

Handlers see one *canonical* message per API: kio's dataclass of the newest version served (`api.py`).
Produce and Fetch have hand-written codecs, so that records are never copied (`produce.py`, `fetch.py`).
Everything here is pure: bytes in, values out. Every length is checked against the bytes that are left before
anything is allocated. Must not know sockets, logs or topics.
"""
