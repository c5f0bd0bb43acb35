"""Experiments: runs that differ in one thing, as a table in YAML, one runner for all, and the pages of their results.

``table`` reads ``tools/experiments``, ``runs`` carries out, ``readings`` finds numbers in results, ``study`` compares
arms over seeds, ``page`` writes one experiment's page and ``overview`` the page of all published tables.
"""
