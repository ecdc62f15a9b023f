"""The controller: decides changes of the metadata log.

`decide` functions return the records that a request writes; `replay` applies them to an image. There is one
pure ``*control`` module per concern; `controller`, `overseer` and `turns` are the asyncio shell.
"""
