"""Intervals: how sure an estimate is."""
