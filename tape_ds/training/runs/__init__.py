"""Runs of every kind, assembled from their recipes by :mod:`.assembly`."""
