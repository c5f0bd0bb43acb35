"""A page that compares stored results: ``columns`` finds them, ``facts`` and ``scores`` make its sections of tables and
``charts``, ``html`` writes it. The same results give the same bytes."""
