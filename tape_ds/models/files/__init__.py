"""The files of models that others made: where they are, what they say, and that nothing of them is missing."""
