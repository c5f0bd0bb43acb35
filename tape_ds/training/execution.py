"""Carry out a run: announce, train, score, store, and leave the process group in order.

It ends in one of these ways, each with its exit code (docs/staying_alive.md): done, or stopped on request with a
committed checkpoint (0); stopped on request while a full disk prevented the save (1); done while a disk prevented every
save (2); stopped by a guard (3). Anything else is an error (1), or a problem that the user can fix (2).
"""

import contextlib
from pathlib import Path

from tape_ds import checkpoint, exit_codes, run_folder, storage
from tape_ds.config.recipe import Recipe
from tape_ds.distributed import distributed_map, rendezvous
from tape_ds.distributed.processes import leave_process_group
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import UserError, raised_together
from tape_ds.exit_codes import ExitCode
from tape_ds.resilience import run_lock, stopping
from tape_ds.resilience.guards import StoppedByGuard
from tape_ds.resilience.stopping import Stopped, StopRequest
from tape_ds.resilience.watchdog import Watchdog
from tape_ds.targets.find import find_target
from tape_ds.training import compiled_ops, device, earlier_run, library_checks, report, run
from tape_ds.training.environment import expand_segments, say
from tape_ds.training.job import NothingToDo
from tape_ds.training.runs import assembly


def launch(recipe: Recipe) -> int:
    """Find the model that a recipe trains, assemble the run and carry it out; returns the exit code. Once the model is
    found, signals end the run in order, and so does the launcher's death."""
    with raised_together() as problems:
        problems += library_checks.check(recipe)
        target = find_target(recipe)
        # before a base is downloaded: a large model is not trained on a CPU by mistake
        problems += device.check(target.recipe, target.config)
    expand_segments(recipe.memory.expandable_segments)
    if recipe.trains:
        # minutes, in which a signal ends the process at once
        compiled_ops.compile_all(recipe.deepspeed)
    stop = StopRequest()
    stop.listen()
    stopping.watch_launcher(stop)
    # nothing is lost there, and others may never come
    rendezvous.leave_when(lambda: stop.reason)
    stopping.tolerate_lost_terminal()
    output = recipe.trainer.folder
    try:
        prepared = assembly.assemble(target)
    except UserError:
        # nothing was started: remove the lock, and folders that were made for it
        run_lock.RunLock(output, RankSync().rank).release()
        for folder in (output / run_folder.RANKS, output):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    except NothingToDo as nothing:
        if RankSync().rank == 0:
            say(str(nothing))
        _leave(output, RankSync())
        return 0
    return execute(prepared, stop)


def execute(prepared: run.Run, stop: StopRequest | None = None) -> int:
    """Train a run (RoPE scaling alone has nothing to train) and report it; returns the exit code."""
    rank_sync = RankSync()
    output = prepared.output
    resumed = prepared.job.resumed
    if rank_sync.rank == 0:
        _take_folder(prepared)
    rank_sync.first(None)
    trainer = run.build_trainer(prepared, stop)
    started = None
    if trainer.is_world_process_zero():
        started = report.begin(prepared)

    def check_stop() -> None:
        """Stop between pieces of scoring, where nothing can be lost."""
        trainer.beat("scoring")
        if (reason := rank_sync.any(None if stop is None else stop.reason)) is not None:
            raise Stopped(trainer.state.global_step, reason)

    distributed_map.on_round(check_stop, bar=not prepared.arguments.disable_tqdm)
    stacks = output / run_folder.STACKS
    seconds = prepared.recipe.safety.watchdog_seconds
    try:
        check_stop()
        work = getattr(prepared.sequences, "documents_read", lambda: 0)
        with Watchdog(
            stacks, rank_sync.rank, rank_sync.world, seconds, work=work
        ) as trainer.watchdog:
            if prepared.names:
                trainer.train(
                    resume_from_checkpoint=None if resumed is None else str(resumed.folder)
                )
            else:
                trainer.go_without_training()
    except Stopped as stopped:
        if rank_sync.rank == 0:
            if not stopped.reason.startswith(stopping.LAUNCHER):
                try:
                    run_folder.mark(output, run_folder.STOPPED, stopped.step, reason=stopped.reason)
                except OSError as error:  # the exit code tells the same
                    say(f"{run_folder.STOPPED} cannot be written: {storage.explain(error, output)}")
            say(f"{stopped}; {_newest(output, stopped.lost)}")
        _leave(output, rank_sync)
        if stopped.lost:
            return 1
        return 0
    except StoppedByGuard as stopped:
        if rank_sync.rank == 0:
            say(str(stopped))
        exit_codes.leave(ExitCode.GUARD)
        _leave(output, rank_sync)
        return ExitCode.GUARD
    except RuntimeError as error:
        if (reason := _lost_peer(error)) is None:
            raise
        step = trainer.state.global_step
        say(
            f"rank {rank_sync.rank}: another rank is gone ({reason}), so this one ends at step {step}; "
            f"{_newest(output)}"
        )
        return 1
    finally:
        distributed_map.on_round(None)
    is_unsaved = rank_sync.first(trainer.saver.failed > 0 and not checkpoint.committed(output))
    if started is not None:
        report.conclude(prepared, trainer, started)
        if is_unsaved:
            say(
                f"error: all {trainer.saver.failed} saves failed, so there is NO checkpoint and the run is not marked "
                f"as finished; {output / run_folder.TRAINED} is whole. Make room on that disk before the next run"
            )
            # keep_alive would train from the beginning, to the same end
            exit_codes.leave(ExitCode.USER_ERROR)
        else:
            run_folder.mark(
                output,
                run_folder.FINISHED,
                trainer.state.global_step,
                identity=dict(prepared.identity),
            )
    _leave(output, rank_sync)
    if is_unsaved:
        return ExitCode.USER_ERROR
    return ExitCode.OK


def _take_folder(prepared: run.Run) -> None:
    """Make the run's folder this run's: say what is removed or moved, do it, and leave the marker of its beginning."""
    output = prepared.output
    resumed = prepared.job.resumed
    if resumed is not None:
        for folder in checkpoint.abandon(output, resumed.folder, resumed.manifest.step):
            say(f"moved away: {folder.name}; remove it when it is no longer needed")
    elif prepared.recipe.safety.start_anew:
        found = earlier_run.look(output)
        removed = [*found.checkpoints, *earlier_run.grouped([*found.files, *found.left_over])]
        if removed:
            say(f"start_anew: removing {', '.join(removed)}")
        if kept := earlier_run.remove(found):
            say(f"kept: {', '.join(kept)}")
    elif (kept_metrics := earlier_run.keep_metrics(output)) is not None:
        say(
            f"begun again, there is no checkpoint; the metrics so far are kept in {kept_metrics.name}"
        )
    run_folder.begin(output, 0 if resumed is None else resumed.manifest.step, prepared.identity)
    for marker in (run_folder.FINISHED, run_folder.STOPPED):
        (output / marker).unlink(missing_ok=True)


def _lost_peer(error: RuntimeError) -> str | None:
    """Return the words of gloo, NCCL or the job's store for a rank that died or hangs during a collective; that rank's
    own output has the cause."""
    messages = (
        *("Connection closed by peer", "Connection reset by peer"),  # gloo, and the store
        *("recv, got 0 bytes", "Broken pipe"),  # the store, which ends with rank 0
        # NCCL
        *(
            "remote process exited or there was a network error",
            "Connection closed by remote peer",
        ),
        *("ncclRemoteError", "Watchdog caught collective operation timeout"),  # torch, of NCCL
        "NCCL communicator was aborted",  # each call after one of these
    )
    return next((words for words in messages if words in str(error)), None)


def _newest(output: Path, lost: bool = False) -> str:
    """Return a sentence about the checkpoint that a resume would take."""
    newest = checkpoint.committed(output)[-1:]
    if lost:
        return f"NO checkpoint could be saved; {newest[0].name if newest else 'there is none'} is the newest"
    if newest:
        return f"--resume auto continues from {newest[0].name}"
    return "nothing was trained yet"


def _leave(output: Path, rank_sync: RankSync) -> None:
    rank_sync.first(None)
    run_lock.RunLock(output, rank_sync.rank).release()
    leave_process_group()
