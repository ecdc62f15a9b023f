"""The controller: a shard over the metadata log.

`decide` says which records a request writes, `replay` applies them.
One ``*control`` module per concern, all pure; `runtime` alone knows asyncio, threads and files.
"""
