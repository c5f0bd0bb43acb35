"""Predicted memory and speed of a training run, by arithmetic alone: nothing is loaded, allocated or run.

:mod:`.recipe_job` makes a :class:`~tape_ds.planning.job.Job` of a recipe, and
:class:`~tape_ds.planning.prediction.Plan` predicts it. Bytes are checked against those of real runs on a CPU, speeds
against published ones (``tests/planning``) and those of one H200 (docs/results/planner.md).
"""
