"""The broker's listener: dispatch of requests, one handler per API, delayed responses, caches.

`dispatch` finds the handler of a request in a table of `served_api` rows; `handlers/` has one file per API.
"""
