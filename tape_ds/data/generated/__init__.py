"""Tasks generated from a seed with an exact split of training and test: arithmetic, and addressing by content."""
