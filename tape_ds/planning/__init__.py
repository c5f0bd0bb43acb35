"""Predicted memory and speed of a training run, by arithmetic alone: nothing is loaded, allocated or run.

A :class:`~tape_ds.planning.job.Job` holds the model (:mod:`.shape`), its layout (:mod:`tape_ds.distributed.layout`) and
the GPU (:mod:`.hardware`); :mod:`.recipe_job` makes one of a recipe. :class:`~tape_ds.planning.prediction.Plan`
predicts memory by part (:mod:`.memory`, :mod:`.activations`), and work, traffic and time (:mod:`.roofline`).
:mod:`.search` ranks layouts. Bytes are checked against those of real runs on a CPU, speeds against published ones (``tests/planning``). No
GPU was measured by this project.
"""
