"""The `firn` command: a module per command, each with `add_parser` (light) and `run` (imports what it needs).

Owns arguments, output and exit codes: 0 done, 1 an error, with one line on stderr, 2 wrong usage. Must not
know how anything is stored or served; it calls the rooms below.
"""
