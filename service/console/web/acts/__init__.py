"""Acts: what the console changes, where `--allow-changes` lets it; not loaded elsewhere."""
