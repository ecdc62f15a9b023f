"""TLS of connections: cipher, transport above it, handshakes, key and trust stores, reload."""
