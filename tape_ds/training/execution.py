"""A run carried out: announced, trained, scored, stored, and the process group left in order."""

from tape_ds.training import report, run
from tape_ds.training.environment import leave_process_group


def carry_out(prepared: run.Run) -> int:
    """Train what was prepared (a method that only scales angles has nothing to train) and report it; returns the exit
    code."""
    trainer = run.build_trainer(prepared)
    started = report.begin(prepared) if trainer.is_world_process_zero() else None
    if prepared.names:
        trainer.train(resume_from_checkpoint=prepared.resume)
    else:
        trainer.go_without_training()
    if started is not None:
        report.conclude(prepared, trainer, started)
    leave_process_group()
    return 0
