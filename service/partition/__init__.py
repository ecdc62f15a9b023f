"""One partition as its clients see it: a single log over both tiers, its epochs and its waiting fetches.

Owns the view (which tier answers an offset) and the partition's leadership state; knows nothing of requests,
of sockets or of the metadata quorum. Owned by the event loop; nothing here blocks.
"""
