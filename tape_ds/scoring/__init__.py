"""What a model is worth on long text: measures that launchers, tools and the evaluation commands share."""

CHUNK = 4096
"""Tokens of a prompt that are read at once, where the model's cache allows pieces."""
