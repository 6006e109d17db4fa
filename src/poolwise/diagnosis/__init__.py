"""Diagnosis: whether an estimate can be believed."""
