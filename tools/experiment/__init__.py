"""Experiments: runs that differ in one thing, and the pages of their results.

``table`` reads the YAML files of ``tools/experiments``, ``runs`` trains and scores, ``readings`` reads numbers from
results, ``study`` compares arms over seeds, ``published`` has the paper's numbers, ``pages`` writes the pages.
"""
