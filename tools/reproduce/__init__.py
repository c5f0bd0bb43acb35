"""The papers' tables and figures as commands: what each consists of, what it costs, running it, the page of results.

``experiment`` says what an experiment is; ``arithmetic``, ``scratch``, ``extension`` and ``analyses`` hold them as
data, ``registry`` all of them together. ``estimate`` says what they cost, ``running`` carries them out, ``readings``
finds numbers in stored results, ``render`` and ``page`` write them down beside the published ones.
"""
