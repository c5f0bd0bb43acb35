"""Runs of one launcher that differ in one thing, carried out one after another and drawn together in one table."""
