"""A broker's requests to its cluster's controller: registration, heartbeats, forwarded ones, the catalog.

`broker_lifecycle` is the pure machine of a registration, `broker_lifecycle_manager` its shell.
"""
