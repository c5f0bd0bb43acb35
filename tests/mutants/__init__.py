"""Faults planted in the source, to see that tests notice them: ``python -m tests.mutants``."""
