"""Makes a Debian or Ubuntu machine run Firn: see __main__.py."""
