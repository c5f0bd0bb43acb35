"""Processes that work on one model: their layout, meeting, exchanges, and sequence and tensor parallelism."""
