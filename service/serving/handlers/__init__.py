"""Handlers of the broker's APIs, one file per API.

A handler takes the broker, the request's context and the canonical (newest) message, and returns the
canonical response or an awaitable of it; Produce and Fetch work on views instead (see `service.wire`).
"""
