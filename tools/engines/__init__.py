"""Run engines on folders of every scaling, and compare what they compute with the table of :mod:`tape_ds.engines`.

``cases`` writes the folders and transformers' log-probabilities, ``environments`` has an engine's packages,
``readers/NAME.py`` runs in that environment and writes the engine's own, ``comparison`` holds them to the table.
"""
