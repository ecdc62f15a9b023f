"""How sealed segments become objects, and how objects go again.

Intent, upload, manifest, commit, HEAD; expiry, grace, delete; sweep and proof (fsck). Owns every write to
the bucket. Knows the local log by what it seals and the catalog by a small protocol; it knows nothing of
requests, of Raft or of how remote bytes are served.
"""
