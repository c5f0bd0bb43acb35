"""Tasks whose answer stands at a place that only the sequence's own content names: drawn on the fly, with an exact
split."""
