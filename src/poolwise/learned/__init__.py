"""Learned parts: reward models and mixtures that nobody logged."""
