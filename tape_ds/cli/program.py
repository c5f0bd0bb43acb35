"""The program ``tape-ds``: every command under one name, with DeepSpeed's launcher in front of training on GPUs.

This module imports nothing heavy, so that ``--help`` and a mistyped name cost no time; a command's module is imported
when it is called.
"""

import ctypes
import importlib
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence

from tape_ds import installation
from tape_ds.arguments import without_local_rank
from tape_ds.distributed import hostfile
from tape_ds.distributed.launch_command import DEEPSPEED_OPTIONS, OPTION_NAMES, TRAINING, split
from tape_ds.errors import Problem, UserError, command, did_you_mean

# A command's module below ``tape_ds.cli``, and the line that describes it
GROUPS = {
    "Train": {
        "extend": ("train", "extend the context of a pretrained model"),
        "pretrain": ("train", "train a model from scratch, with any positional encoding"),
        "finetune": ("train", "fine-tune a model on conversations, or on long questions (SCROLLS)"),
        "generated": ("train", "train a small model on a generated task: arithmetic, addressing"),
    },
    "Score": {
        "evaluate": ("evaluate", "perplexity, passkeys, SCROLLS, lm-eval's tasks, reports"),
        "experiment": (
            "experiment",
            "runs that differ in one thing, the published tables among them",
        ),
    },
    "Prepare": {
        "plan": ("plan", "memory, time and cost of a run before it starts"),
        "prepare-data": ("prepare_data", "tokenise a corpus in parallel, for arrow:DIR"),
        "prepare-test-set": ("prepare_test_set", "tokenise a test set of long texts, for bin:FILE"),
        "train-tokenizer": ("train_tokenizer", "train a sentencepiece tokenizer on text"),
    },
    "Keep running": {
        "keep-alive": ("keep_alive", "start a training command again until its run is done"),
    },
    "Use the result": {
        "export": ("export", "make a model folder that loads without tape_ds"),
        "serve": ("serve", "answer OpenAI's protocol with a run, an adapter or an export"),
        "merge": ("merge", "make a whole model folder of what a run trained"),
        "consolidate": ("consolidate", "write a checkpoint's weights as one folder"),
        "convert": ("convert", "convert a checkpoint between model families"),
    },
}
OF_A_CHECKOUT = ("experiment",)
"""Commands that an installed package does not have."""
MODULES = {name: module for group in GROUPS.values() for name, (module, _) in group.items()}
# options of a training command that start no ranks
LOOKS = {"-h", "--help", "--list", "--print_config"}


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Call the command that the first word names, in this process or by DeepSpeed's launcher in its place."""
    words = without_local_rank(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(usage(), end="")
        return 0
    if words[0] == "--folder":
        print(installation.RECIPES, installation.DS_CONFIGS, sep="\n")
        return 0
    if words[0] == "--version":
        from tape_ds import __version__

        print(__version__)
        return 0
    name, *arguments = words
    name = name.replace("_", "-")
    if name not in MODULES:
        raise UserError(
            Problem(
                "command", words[0], "unknown", f"{did_you_mean(name, MODULES)} (tape-ds --help)"
            )
        )

    has_gpu = gpus() > 0
    # before torch and DeepSpeed are imported, which read it then
    os.environ |= installation.environment()
    if not has_gpu and "DS_ACCELERATOR" not in os.environ:
        os.environ |= {"DS_ACCELERATOR": "cpu", installation.FOUND_NO_GPU: "1"}
    line = deepspeed_line(name, arguments, has_gpu)
    if line is not None:
        print(f"tape-ds: {shlex.join(['deepspeed', *line[3:]])}", file=sys.stderr, flush=True)
        # -m would import a tape_ds of the current folder before this one
        os.execve(line[0], line, {**os.environ, "PYTHONSAFEPATH": "1"})

    # results, locks and messages show the command like this
    sys.argv = ["tape-ds", name, *arguments]
    module = importlib.import_module(f"tape_ds.cli.{MODULES[name]}")
    # the four training commands are one module, which gets the name of the one that was meant
    if name in TRAINING:
        code: int = module.main(TRAINING[name], arguments)
    else:
        code = module.main(arguments)
    return code


def usage() -> str:
    lines = ["tape-ds COMMAND ...", "", "Each command has --help.", ""]
    for title, group in GROUPS.items():
        lines.append(f"{title}:")
        for name, (_, summary) in group.items():
            if installation.IS_CHECKOUT or name not in OF_A_CHECKOUT:
                lines.append(f"    {name:<16}  {summary}")
        lines.append("")
    lines += [
        "    --folder          print the folders of the recipes and of DeepSpeed's configurations",
        "    --version         print the version",
        "",
    ]
    about = (
        "Where there is a GPU, DeepSpeed's launcher starts the training commands, with a process for each visible GPU. "
        "Without one they are a single process, and so is evaluate. These options change that, anywhere "
        "after the command, as in tape-ds extend llama2_7b_8k --gpus 2:"
    )
    options = textwrap.wrap(
        " ".join([*OPTION_NAMES, *DEEPSPEED_OPTIONS]), 114, break_on_hyphens=False
    )
    return "\n".join(
        [*lines, *textwrap.wrap(about, 118), "", *(f"    {line}" for line in options), ""]
    )


def deepspeed_line(name: str, words: Sequence[str], has_gpu: bool) -> list[str] | None:
    """Return the command line of DeepSpeed's launcher that a command needs, once the machines that it names have
    answered; None: this process does the work."""
    if name not in TRAINING and name != "evaluate":
        return None
    options, arguments = split(words)
    by_itself = name in TRAINING and "RANK" not in os.environ and not LOOKS & set(words)
    if by_itself and not has_gpu:
        print(
            "tape-ds: CUDA's driver shows no GPU: this is for the CPU", file=sys.stderr, flush=True
        )
    if not options and not (by_itself and has_gpu):
        return None
    # a machine that does not answer is named here: DeepSpeed's launcher would wait for it
    hostfile.machines(options)
    return [
        sys.executable,
        "-m",
        "deepspeed.launcher.runner",
        *options,
        "--module",
        "tape_ds",
        name,
        *arguments,
    ]


def gpus() -> int:
    """Return how many GPUs CUDA's driver shows this process, as torch would after seconds of importing it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
        return count.value
    return 0
