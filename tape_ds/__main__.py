"""The program ``tape-ds``: every command of this project under one name, wherever it is installed.

A command becomes its script, with DeepSpeed's launcher in front where several processes are wanted. Nothing heavy is
imported here: what a command needs, its own process imports.
"""

import ctypes
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tape_ds import installation
from tape_ds.errors import Problem, UserError, command, did_you_mean


@dataclass(frozen=True)
class Command:
    """A script under a short name."""

    target: str
    """A file below :data:`installation.ROOT`, or a module there."""
    summary: str
    trains: bool = False
    """Whether all GPUs are used where nobody says how many."""
    spreads: bool = False
    """Whether it can be started as several processes."""

    @property
    def is_module(self) -> bool:
        """Whether it is run by ``python -m``."""
        return not self.target.endswith(".py")

    @property
    def path(self) -> str:
        """As Python is told it."""
        return self.target if self.is_module else str(installation.ROOT / self.target)


def _launcher(name: str, summary: str) -> Command:
    return Command(f"launchers/{name}.py", summary, trains=True, spreads=True)


COMMANDS = {
    "extend": _launcher("extend_llama", "extend the context of a pretrained model"),
    "pretrain": _launcher("pretrain_c4", "train a model from scratch, with any positional encoding"),
    "finetune": _launcher("finetune", "fine-tune a model on conversations, or on long questions (SCROLLS)"),
    "arithmetic": _launcher("train_arithmetic", "train a model from nothing to calculate"),
    "evaluate": Command("evaluation", "perplexity, passkeys, SCROLLS, lm-eval's tasks, reports", spreads=True),
    "plan": Command("tools/plan.py", "memory, time and cost of a run before it starts"),
    "export": Command("tools/export_hf.py", "make a model folder that loads without tape_ds"),
    "serve": Command("tools/serve.py", "answer OpenAI's protocol with a run, an adapter or an export"),
    "merge": Command("tools/merge_adapter.py", "turn what a run trained into a whole model folder"),
    "convert": Command("tools/convert_checkpoint.py", "convert a checkpoint between model families"),
    "experiment": Command("tools.experiment", "runs that differ in one thing, the published tables among them"),
}

LAUNCHER_OPTIONS = {
    **dict.fromkeys(("--num_gpus", "--num_accelerators", "--num_nodes", "--hostfile", "--include", "--exclude"), True),
    **dict.fromkeys(("--master_addr", "--master_port", "--node_rank", "--ssh_port", "--venv_script"), True),
    **dict.fromkeys(("--launcher_args", "--enable_each_rank_log", "--bind_core_list"), True),
    **dict.fromkeys(("--no_ssh", "--no_ssh_check", "--force_multi", "--bind_cores_to_rank"), False),
}
"""What goes to DeepSpeed's launcher and not to the script, and whether a value follows."""
HOW_MANY = """
extend, pretrain, finetune and arithmetic are started by DeepSpeed's launcher where there is a GPU: a process for each
that is visible. Without a GPU they are one process, and so is evaluate. Options of the launcher change that, wherever
they stand behind the command, as in tape-ds extend --num_gpus 2 --recipe llama2_7b_8k:
"""
LOOKS = {"-h", "--help", "--list", "--print_config"}
"""Words of a command that only shows something, on one process."""


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Read the command's name, then become its script."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(usage(), end="")
        return 0
    if words[0] == "--folder":
        print(installation.ROOT)
        return 0
    if words[0] == "--version":
        from tape_ds import __version__

        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        remedy = f"{did_you_mean(words[0], COMMANDS)} (tape-ds --help)"
        raise UserError(Problem("command", words[0], "unknown", remedy))
    has_gpu = gpus() > 0
    line = started(COMMANDS[words[0]], words[1:], has_gpu)
    environment = installation.environment()
    if not has_gpu and "DS_ACCELERATOR" not in environment:
        environment |= {"DS_ACCELERATOR": "cpu", installation.FOUND_NO_GPU: "1"}
    sys.stdout.flush()
    os.execve(line[0], line, environment)


def usage() -> str:
    """Return a line for each command."""
    rows = [f"    {name:<10}  {each.summary}" for name, each in COMMANDS.items()]
    folder = "--folder prints where launchers/, evaluation/, tools/ and ds_configs/ lie; --version."
    options = textwrap.wrap(" ".join(LAUNCHER_OPTIONS), 114, break_on_hyphens=False)
    lines = ["tape-ds COMMAND ...", "", *rows, "", f"Each takes what its script takes. {folder}", HOW_MANY[:-1]]
    return "\n".join([*lines, *(f"    {line}" for line in options), ""])


def started(asked: Command, words: Sequence[str], has_gpu: bool) -> list[str]:
    """Return the command line that ``asked`` stands for; said on stderr where DeepSpeed's launcher comes first."""
    options, arguments = split(words) if asked.spreads else ([], list(words))
    is_rank = "RANK" in os.environ  # torchrun, or a launcher, has started this process as one of several
    by_itself = asked.trains and not is_rank and not LOOKS & set(words)
    if by_itself and not has_gpu:
        print("tape-ds: CUDA's driver shows no GPU: this is for the CPU", file=sys.stderr, flush=True)
    if not options and not (by_itself and has_gpu):
        # -P: the current folder's own `evaluation` or `tools` is another one
        how = ["-P", "-m", asked.path] if asked.is_module else [asked.path]
        return [sys.executable, *how, *arguments]
    script = ["--module", asked.path] if asked.is_module else [asked.path]
    require_hostfile(options)
    print(f"tape-ds: {shlex.join(['deepspeed', *options, *script, *arguments])}", file=sys.stderr, flush=True)
    return [sys.executable, "-m", "deepspeed.launcher.runner", *options, *script, *arguments]


def require_hostfile(options: Sequence[str]) -> None:
    """Refuse a hostfile that is not there: DeepSpeed's launcher would warn, and train on this machine alone.

    Raises:
        UserError: so it is.
    """
    words = [part for option in options for part in option.split("=", 1)]
    asked = words[words.index("--hostfile") + 1] if "--hostfile" in words[:-1] else None
    if asked is not None and not Path(asked).is_file():
        example = installation.ROOT / "launchers" / "hostfile.example"
        remedy = f"write a line for each machine, such as 'node1 slots=8': {example}"
        raise UserError(Problem("--hostfile", asked, "no such file", remedy))


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """DeepSpeed's launcher's options, and the script's words."""
    options, rest, waiting = [], [], list(words)
    while waiting:
        word = waiting.pop(0)
        name, equals, _ = word.partition("=")
        if name not in LAUNCHER_OPTIONS:
            rest.append(word)
            continue
        options.append(word)
        if LAUNCHER_OPTIONS[name] and not equals and waiting:
            options.append(waiting.pop(0))
    return options, rest


def gpus() -> int:
    """Return how many CUDA's driver shows this process. torch would say the same, after seconds of importing it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
