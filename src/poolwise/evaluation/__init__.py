"""Evaluation: the verbs, one module each, and their results."""
