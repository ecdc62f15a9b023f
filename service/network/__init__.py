"""Sockets: connections accepted, requests cut out of their bytes, each handed on and answered in order.

Owns memory and file-descriptor limits, back-pressure, timeouts and the counting of what went wrong.
`connection` is the pure part (framing states and the inbox), `buffers` the memory budget, `server` and
`sender` the asyncio shell. Must not know topics, logs or what a request means.
"""
