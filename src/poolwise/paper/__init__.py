"""Paper: the reproduction; nothing imports it."""
