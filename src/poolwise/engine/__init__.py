"""Engines: what reads rows, and the one query they all run."""
