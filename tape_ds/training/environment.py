"""Settings of a training process that libraries read: threads, trackers, and a build that is not needed.

Called once, first thing in a launcher. A value that the user has set is left alone.
"""

import atexit
import functools
import logging
import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from accelerate.utils.other import get_free_port
from tqdm.auto import tqdm

from tape_ds import run_folder, storage
from tape_ds.distributed import rank_sync
from tape_ds.distributed.processes import share_cores
from tape_ds.errors import is_main_process, redacted
from tape_ds.models.library_messages import quieten_libraries
from tape_ds.resilience import stopping

if TYPE_CHECKING:
    from transformers import TrainingArguments


DEFAULTS = {
    "TOKENIZERS_PARALLELISM": "false",  # its threads and a data loader's forks do not mix; the library warns each time
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",  # each process would draw its own over the others'
}


def prepare_process() -> None:
    """Prepare this process for training; safe to call more than once, before or after DeepSpeed is imported."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    # without a launcher's variables DeepSpeed would look for MPI, and fail
    launched = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    if not any(name in os.environ for name in launched):
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_port())}
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    share_cores()

    # On a CPU init_distributed would compile deepspeed_shm_comm with g++ the first time (half a minute and more), and
    # fail without a compiler or Python headers. Only inference_all_reduce calls it; training uses gloo. DeepSpeed asks
    # its table of compatible ops before it builds.
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    if get_accelerator().device_name() == "cpu":
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    log = logging.getLogger("tape_ds")
    if is_main_process() and not log.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    quieten_libraries()
    # DeepSpeed calls collectives by the names that torch 2.13 deprecates; a recipe cannot change that
    warnings.filterwarnings(
        "ignore", message=".*torch.distributed.*is deprecated", category=FutureWarning
    )


def say(text: str) -> None:
    """Print a line above a progress bar, where there is one."""
    tqdm.write(text, file=sys.stdout)
    sys.stdout.flush()


def keep_trackers_in(output: str | Path, resumed: bool = False) -> None:
    """Make trackers write into the run's folder, and continue their record when the run is resumed: W&B by its id,
    TensorBoard by its folder. On rank 0, which alone has trackers."""
    output = Path(output)
    # W&B turns to a temporary folder where it finds none
    output.mkdir(parents=True, exist_ok=True)
    # a run never sends anything anywhere unless the user asks for it
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")
    os.environ.setdefault("WANDB_DIR", str(output))
    os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(output / "tensorboard"))
    if "WANDB_RUN_ID" in os.environ or not is_main_process():
        return
    file = output / run_folder.TRACKERS
    known = (run_folder.read_marker(file) or {}).get("wandb") if resumed else None
    if not isinstance(known, str):
        known = secrets.token_hex(4)
        storage.write_json(file, {"wandb": known})
    os.environ |= {"WANDB_RUN_ID": known, "WANDB_RESUME": "allow"}


def isolate_trackers(callbacks: Iterable[Any]) -> None:
    """Disable a tracker (TensorBoard, W&B) among ``callbacks`` at its first error, such as a full disk:
    ``metrics.jsonl`` has the same numbers."""
    for tracker in callbacks:
        if type(tracker).__module__.startswith("transformers.integrations"):
            for event in [name for name in dir(tracker) if name.startswith("on_")]:
                setattr(
                    tracker,
                    event,
                    functools.partial(call_tracker, tracker, getattr(tracker, event)),
                )


def call_tracker(tracker: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    if getattr(tracker, "has_failed", False):
        return
    try:
        call(*args, **kwargs)
    except Exception as error:
        tracker.has_failed = True
        name = type(tracker).__name__.removesuffix("Callback")
        say(
            f"warning: {name} is disabled, training continues: {type(error).__name__}: {redacted(str(error))}"
        )


def join_process_group(arguments: "TrainingArguments") -> None:
    """Join the job's process group; must come before a model is built. transformers joins it by torch alone on a CPU,
    and DeepSpeed's zero.Init would then count one rank."""
    _ = arguments.device  # a property that joins
    if arguments.deepspeed and torch.distributed.is_initialized():
        import deepspeed

        deepspeed.init_distributed(dist_backend=torch.distributed.get_backend(), verbose=False)
    if torch.distributed.is_initialized():
        # gloo's own timeout would end a run that tokenises for long
        rank_sync.join(arguments.ddp_timeout_delta)


def end_process(code: int) -> NoReturn:
    """Exit without the interpreter's tear-down, after all exit handlers: there a thread of torch or gloo now and then
    aborts the process, and its launcher takes a finished job for a failed one."""
    # workers of a loader that was not read to its end; interpreter exit would wait for them
    stopping.kill_children()
    logging.shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables that torch reads; where a user has set one of them, it stays."""
EXPANDABLE_SEGMENTS = "expandable_segments:True"


def expand_segments(wanted: bool = True) -> bool:
    """Let segments grow, if ``wanted`` and unless the environment configures the allocator; return whether it was set.

    Sequences of changing length leave holes between segments of fixed size; a segment that grows has none. Must come
    before anything is on a GPU.
    """
    if not wanted or any(name in os.environ for name in ALLOCATOR_VARIABLES):
        return False
    os.environ[ALLOCATOR_VARIABLES[0]] = EXPANDABLE_SEGMENTS
    return True
