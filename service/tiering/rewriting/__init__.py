"""Write ranges of a partition's chain in the bucket anew: merge small objects, erase keys."""
