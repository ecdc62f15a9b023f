"""Server side of the sockets: accepts connections, frames requests and sends responses in order.

Owns the limits of memory and file descriptors, back-pressure, timeouts and error counters. The pure parts
are `request_framer` (framing states and input buffer) and `response_order` (order of responses), `buffers` is
the memory budget; `server`, `server_connection`, `request_pipeline` and `sender` are the asyncio shell. Must
not know topics, logs or the meaning of a request.
"""
