"""Generated documents to find things in: the source ``generated:retrieval`` (docs/retrieval.md)."""
