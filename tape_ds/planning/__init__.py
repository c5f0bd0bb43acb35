"""What a training run would need and how fast it would be, by arithmetic alone: nothing is loaded, allocated or run.

A :class:`~tape_ds.planning.job.Job` says what is trained (:mod:`.shape`), how it is spread (:mod:`.layout`) and on what
(:mod:`.hardware`). From it follow memory by part (:mod:`.memory`, :mod:`.activations`), floating-point work
(:mod:`.work`), traffic by kind and link (:mod:`.traffic`), and the time of a step (:mod:`.clock`); :mod:`.search` ranks
the ways to spread it. Bytes are checked against those of real runs on a CPU (``tests/planning``), speeds against
published ones (:mod:`.published`). No GPU was measured by this project.
"""
