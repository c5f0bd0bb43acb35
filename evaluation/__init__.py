"""The commands of ``tape_ds.cli.evaluate`` under the name ``python -m evaluation``."""
