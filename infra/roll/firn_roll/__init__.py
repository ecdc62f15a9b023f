"""Takes the machines of a cluster one after another: see __main__.py."""
