"""Copy sealed segments to objects, and delete objects that no log needs any more.

Copying: intent, upload, manifest, commit, HEAD. Deleting: expiry, grace, delete. Checking: sweep and fsck.
This room owns every write to the bucket. It sees the local log as a list of sealed segments and the catalog
as a small protocol. It does not know requests, Raft, or how remote bytes are served.
"""
