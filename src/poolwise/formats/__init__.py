"""Formats: other people's logs as a `Log`."""
