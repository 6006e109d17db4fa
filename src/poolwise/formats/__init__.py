"""Formats: logs as other programs write them, read into a `Log`."""
