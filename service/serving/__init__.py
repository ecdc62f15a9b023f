"""Requests of clients and followers: read, dispatched and answered.

`dispatch` finds the handler of a request in a table of `served_api` rows, `handlers/` holds one file per API.
"""
