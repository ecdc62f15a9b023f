"""One partition as its clients see it: a log over both tiers, its epochs and its waiting fetches.

Owns the choice of the tier for an offset, and the partition's leadership state; knows neither requests, nor
sockets, nor the metadata quorum. Owned by the event loop; nothing here blocks.
"""
