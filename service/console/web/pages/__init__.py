"""The pages of the console: pure functions from data to HTML."""
