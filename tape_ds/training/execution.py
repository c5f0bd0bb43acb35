"""A run carried out: announced, trained, scored, stored, and the process group left in order.

It ends in one of these ways, each with its exit code (docs/staying_alive.md): done, or stopped on request with a
committed checkpoint (0); stopped on request while a disk kept it from saving (1); stopped by a guard (3). Whatever
else is an error (1), or the user's to mend (2).
"""

import contextlib
from collections.abc import Callable
from pathlib import Path

from tape_ds import checkpoint, exit_codes, run_folder, storage
from tape_ds.config.recipe import Recipe
from tape_ds.distributed import distributed_map, rendezvous
from tape_ds.distributed.processes import leave_process_group
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import UserError, raise_if_any
from tape_ds.exit_codes import ExitCode
from tape_ds.resilience import run_lock, stopping
from tape_ds.resilience.guards import StoppedByGuard
from tape_ds.resilience.stopping import StopRequest
from tape_ds.resilience.watchdog import Watchdog
from tape_ds.training import device, forecast, model_config, report, run
from tape_ds.training.checks import libraries
from tape_ds.training.environment import expand_segments, say
from tape_ds.training.trainer import Stopped


def launch(recipe: Recipe, assemble: Callable[..., run.Run]) -> int:
    """Assemble the run of a recipe and carry it out; returns the exit code. Signals are answered from here on, and so
    is the launcher's death.

    Raises:
        UserError: whatever is to be mended before training begins, an unintended CPU included.
    """
    raise_if_any([*device.check(recipe), *libraries.check(recipe)])
    expand_segments(recipe.memory.expandable_segments)
    recipe = forecast.settle_here(recipe, model_config.beforehand)
    stop = StopRequest()
    stop.listen()
    stopping.watch_launcher(stop)
    rendezvous.leave_when(lambda: stop.reason)  # nothing is lost there, and others may never come
    stopping.tolerate_lost_terminal()
    output = Path(recipe.trainer_value("output_dir")).expanduser()
    try:
        prepared = assemble(recipe)
    except UserError:
        # nothing was started: the lock goes, and folders that were made for it
        run_lock.RunLock(output, RankSync().rank).release()
        for folder in (output / run_folder.RANKS, output):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    except run.NothingToDo as nothing:
        if RankSync().rank == 0:
            say(str(nothing))
        _leave(output, RankSync())
        return 0
    return execute(prepared, stop)


def execute(prepared: run.Run, stop: StopRequest | None = None) -> int:
    """Train what was prepared (a method that is RoPE scaling alone has nothing to train) and report it; returns the
    exit code."""
    rank_sync = RankSync()
    _begin(prepared, rank_sync)
    trainer = run.build_trainer(prepared, stop)
    started = report.begin(prepared) if trainer.is_world_process_zero() else None

    def look() -> None:
        """Between pieces of scoring, where nothing can be lost."""
        trainer.beat("scoring")
        if (reason := rank_sync.any(None if stop is None else stop.reason)) is not None:
            raise Stopped(trainer.state.global_step, reason)

    distributed_map.on_round(look)
    stacks, seconds = prepared.output / run_folder.STACKS, prepared.recipe.safety.watchdog_seconds
    try:
        look()
        work = getattr(prepared.sequences, "documents_read", lambda: 0)
        with Watchdog(stacks, rank_sync.rank, rank_sync.world, seconds, work=work) as trainer.watchdog:
            if prepared.names:
                folder = None if prepared.resumed is None else str(prepared.resumed.folder)
                trainer.train(resume_from_checkpoint=folder)
            else:
                trainer.go_without_training()
    except Stopped as stopped:
        return _end_early(prepared, rank_sync, stopped)
    except StoppedByGuard as stopped:
        if rank_sync.rank == 0:
            say(str(stopped))
        exit_codes.leave(ExitCode.GUARD)
        _leave(prepared.output, rank_sync)
        return ExitCode.GUARD
    except RuntimeError as error:
        if (reason := _lost_peer(error)) is None:
            raise
        step, left = trainer.state.global_step, _what_is_left(prepared)
        say(f"rank {rank_sync.rank}: another rank is gone ({reason}), and this one ends with it at step {step}; {left}")
        return 1
    finally:
        distributed_map.on_round(None)
    if started is not None:
        report.conclude(prepared, trainer, started)
        run_folder.mark_finished(prepared.output, trainer.state.global_step, dict(prepared.identity))
    _leave(prepared.output, rank_sync)
    return 0


def _begin(prepared: run.Run, rank_sync: RankSync) -> None:
    """Take back what the folder says of an earlier end, with ``start_anew`` its checkpoints, and on going on those of
    steps that this run has yet to take."""
    if rank_sync.rank == 0:
        run_folder.clear_markers(prepared.output)
        if prepared.resumed is not None:
            resumed = prepared.resumed
            for folder in checkpoint.abandon(prepared.output, resumed.folder, resumed.manifest.step):
                say(f"moved out of the way: {folder.name}; remove it when nobody needs it")
        elif prepared.recipe.safety.start_anew:
            for folder in checkpoint.numbered(prepared.output):
                checkpoint.remove(folder)
    rank_sync.first(None)


def _end_early(prepared: run.Run, rank_sync: RankSync, stopped: Stopped) -> int:
    if rank_sync.rank == 0:
        if stopping.was_asked(stopped.reason):
            try:
                run_folder.mark_stopped(prepared.output, stopped.step, stopped.reason)
            except OSError as error:  # the exit code says it all the same
                say(f"{run_folder.STOPPED} cannot be written: {storage.explain(error, prepared.output)}")
        say(f"{stopped}; {_what_is_left(prepared, stopped.lost)}")
    _leave(prepared.output, rank_sync)
    return 1 if stopped.lost else 0


def _lost_peer(error: RuntimeError) -> str | None:
    """Return the message of gloo, NCCL or the job's store that a rank which a collective waits for has died or hangs;
    that rank's own output tells why."""
    messages = (
        *("Connection closed by peer", "Connection reset by peer"),  # gloo, and the store
        *("recv, got 0 bytes", "Broken pipe"),  # the store, which ends with rank 0
        *("remote process exited or there was a network error", "Connection closed by remote peer"),  # NCCL
        *("ncclRemoteError", "Watchdog caught collective operation timeout"),  # torch, of NCCL
        "NCCL communicator was aborted",  # each call after one of these
    )
    return next((words for words in messages if words in str(error)), None)


def _what_is_left(prepared: run.Run, lost: bool = False) -> str:
    newest = checkpoint.committed(prepared.output)[-1:]
    if lost:
        return f"NO checkpoint could be saved; {newest[0].name if newest else 'there is none'} is the newest"
    return f"--resume auto goes on from {newest[0].name}" if newest else "nothing was trained yet"


def _leave(output: Path, rank_sync: RankSync) -> None:
    """Let go of the folder when all ranks are done with it."""
    rank_sync.first(None)
    run_lock.RunLock(output, rank_sync.rank).release()
    leave_process_group()
