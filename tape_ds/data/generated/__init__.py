"""Tasks generated from a seed, with an exact split: arithmetic, and answers at a place that only the content names."""
