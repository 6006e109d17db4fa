"""Decisions: which policy is better, and what to log next."""
