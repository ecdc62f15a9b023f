"""Bytes in the bucket: keys, manifests, segment objects (docs/bucket-format.md). Does no IO."""
