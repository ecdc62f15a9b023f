"""Server side of the sockets: accepts connections, frames requests and sends responses in order.

Owns the limits of memory and file descriptors, back-pressure, timeouts and error counters. `connection` is
the pure part (framing states and input buffer), `buffers` the memory budget, `server` and `sender` the
asyncio shell. Must not know topics, logs or the meaning of a request.
"""
