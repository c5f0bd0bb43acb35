"""A job on several machines: which they are, whether they can be reached, and whether they agree before work begins."""
