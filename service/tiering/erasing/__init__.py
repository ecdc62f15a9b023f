"""Orders to erase keys, as far as the bucket is concerned: the leaders' part, and the keeper's."""
