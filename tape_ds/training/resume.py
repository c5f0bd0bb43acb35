"""Which checkpoint a run goes on from: found, and refused if it cannot be resumed, before anything heavy loads.

A save that was cut short leaves a folder that looks like a checkpoint. ``trainer_state.json`` is written last, so a
folder with a whole one is complete; the newest of those is what ``resume_from_checkpoint: true`` means.
"""

import json
from pathlib import Path

from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from tape_ds.errors import Problem, UserError
from tape_ds.training.trained import RECORD

FIELD = "resume_from_checkpoint"


def find(given: str | bool | None, output: str | Path, *, deepspeed: bool, processes: int) -> str | None:
    """The checkpoint to resume, or None to start anew.

    Args:
        given: a checkpoint's folder, True for the newest complete one of ``output``, False or None for none.
        output: the run's folder.
        deepspeed: whether the job trains with DeepSpeed.
        processes: of the job.

    Raises:
        UserError: there is none, it is incomplete, or a job like this one cannot read it.
    """
    if not given:
        return None
    if given is True:
        folder = newest(Path(output).expanduser())
        if folder is None:
            remedy = "give the folder of a checkpoint, or leave it out to start anew"
            raise UserError(Problem(FIELD, True, f"{output} holds no complete checkpoint", remedy))
    else:
        folder = Path(given).expanduser()
    lacking = obstacle(folder, deepspeed, processes)
    if lacking is not None:
        raise UserError(Problem(FIELD, str(folder), *lacking))
    return str(folder)


def newest(output: Path) -> Path | None:
    """The complete checkpoint of ``output`` with the most steps."""
    numbered = {
        int(folder.name.rpartition("-")[2]): folder
        for folder in output.glob("checkpoint-*")
        if folder.name.rpartition("-")[2].isdigit() and is_complete(folder)
    }
    return numbered[max(numbered)] if numbered else None


def is_complete(folder: Path) -> bool:
    """Whether the save of this checkpoint came to its end."""
    try:
        return (folder / RECORD).is_file() and "global_step" in json.loads((folder / TRAINER_STATE_NAME).read_text())
    except (OSError, ValueError):
        return False


def obstacle(folder: Path, deepspeed: bool, processes: int) -> tuple[str, str] | None:
    """What keeps this job from resuming ``folder``, and the remedy."""
    if not is_complete(folder):
        remedy = "give a folder checkpoint-N whose save was not interrupted, or true for the newest complete one"
        return f"no complete checkpoint: it needs {RECORD} and a whole {TRAINER_STATE_NAME}", remedy
    if not deepspeed:
        missing = [name for name in (OPTIMIZER_NAME, SCHEDULER_NAME) if not (folder / name).is_file()]
        if missing:
            remedy = "resume as it was saved: with DeepSpeed, or not from a checkpoint of save_only_model"
            return f"no {' and no '.join(missing)}: it was not saved by a run without DeepSpeed", remedy
        return None
    if not any(folder.glob("global_step*")):
        remedy = "resume as it was saved: without DeepSpeed, or not from a checkpoint of save_only_model"
        return "no global_step folder: it was not saved by DeepSpeed", remedy
    shards = len({file.name for file in folder.glob("global_step*/*_optim_states.pt")})
    if shards not in (0, processes):  # none: an engine that shards nothing
        return f"saved by {shards} processes, this job has {processes}", f"start {shards} processes"
    return None
