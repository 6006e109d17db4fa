"""Rows: sources and policies become batches of scored rows."""
