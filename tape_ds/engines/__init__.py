"""What other engines compute of an exported ``config.json``: a table of data, and the question to it.

``table.yaml`` is the one place that knows engines; :func:`.table.computed` answers for an engine and a ``config.json``.
"""
