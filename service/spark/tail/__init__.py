"""What is not sealed yet: asked of the brokers and read from them, behind the archive."""
