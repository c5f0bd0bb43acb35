"""A page that compares runs: stored results in, one HTML file and one Markdown file out.

``columns`` finds the results, a module a topic makes sections of them (``facts``, ``losses``, ``perplexities``,
``passkeys``, ``tasks``) by the tables of ``tables``, ``verdict`` says what comes of it, ``parts`` is what
a page is made of; ``charts`` draws and ``render`` writes it by ``templates``. Nothing is computed anew and nothing
depends on the time of writing: the same results give the same bytes.
"""
