"""Diagnosis: tests of overlap and agreement, and the findings that report them."""
