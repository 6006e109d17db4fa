"""Moments: the types between rows and estimates, in pure NumPy."""
