"""The entry point of Firn's image: formats a volume where it was told to, and becomes `firn`."""
