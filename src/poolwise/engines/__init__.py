"""Engines: rows become moments, wherever the rows are."""
