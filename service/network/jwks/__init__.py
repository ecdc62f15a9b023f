"""Public keys of the issuers of tokens: fetched, renewed, and asked for by id."""
