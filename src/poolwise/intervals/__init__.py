"""Intervals: confidence intervals of estimates and of the target's value."""
