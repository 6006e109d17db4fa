"""Moments: the nouns between rows and estimates; pure NumPy."""
