"""The bytes in the bucket: names, manifests, segment objects (docs/bucket-format.md). Does no IO."""
