"""Builds Firn's image without Docker, and tries it: `deploy/try-image`."""
