"""Models for people without this package: plain folders of transformers, or folders that carry their own code."""
