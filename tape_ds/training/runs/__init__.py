"""The kinds of runs, a file each: from a checked recipe to a :class:`tape_ds.training.run.Run`."""
