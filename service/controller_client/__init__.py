"""What a broker asks of its cluster's controller: registration, heartbeats, forwarded requests, the catalog.

`broker_lifecycle` is the pure machine of a registration, `broker_lifecycle_manager` its shell.
"""
