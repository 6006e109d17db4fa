"""Benchmarks: speed, memory and accuracy, each against a rival in the same run."""
