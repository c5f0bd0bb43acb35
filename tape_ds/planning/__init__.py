"""What a training run would need and how fast it would be, by arithmetic alone: nothing is loaded, allocated or run.

A :class:`~tape_ds.planning.job.Job` says what is trained (:mod:`.shape`), how it is spread (:mod:`.layout`) and on what
(:mod:`.hardware`). :class:`~tape_ds.planning.prediction.Plan` is what it needs: memory by part (:mod:`.memory`,
:mod:`.activations`), and by :mod:`.roofline` work, traffic and time.
:mod:`.search` ranks the ways to spread it. Bytes are checked against those of real runs on a CPU, speeds against
published ones (``tests/planning``). No GPU was measured by this project.
"""
