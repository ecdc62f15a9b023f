"""The pages of the console: what was found, as HTML. Each is a pure function."""
