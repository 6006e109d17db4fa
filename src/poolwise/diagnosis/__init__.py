"""Diagnosis: whether an answer can be trusted, and which logs carry it."""
