"""Offline dumpers: every format that Firn writes, as text or JSON, from a local file or an object store.

Owns what a dump looks like and which decoder a file is for. The decoders are those of the rooms that own the
formats; nothing is parsed a second time here. Must not know: brokers, sockets.
"""
