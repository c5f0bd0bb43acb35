"""A page that compares runs: stored results in, one HTML file and one Markdown file out.

``columns`` finds the results, a module a topic makes sections of them (``settings``, ``losses``, ``perplexities``,
``passkeys``, ``tasks``, ``costs``, ``provenance``), ``parts`` is what a section is made of, ``html`` and ``markdown``
write it. Nothing is computed anew and nothing depends on the time of writing: the same results give the same bytes.
"""
