"""The training commands of ``tape-ds``, and which of their words DeepSpeed's launcher takes."""

from collections.abc import Sequence
from itertools import islice

TRAINING = {
    "extend": "extend_llama",
    "pretrain": "pretrain_c4",
    "finetune": "finetune",
    "generated": "train_generated",
}
"""Commands of ``tape-ds`` that train, with the file of ``launchers`` that is the same and that recipes name."""
SCROLLS = "finetune_scrolls"
"""The file of ``launchers`` for SCROLLS, whose recipes ``finetune`` takes as well."""
COMMANDS = {script: f"tape-ds {name}" for name, script in TRAINING.items()}
COMMANDS[SCROLLS] = COMMANDS["finetune"]
"""Every file of ``launchers`` that trains, which recipes name -> its command."""
DEEPSPEED_OPTIONS = {
    **dict.fromkeys(
        ("--num_gpus", "--num_accelerators", "--num_nodes", "--hostfile", "--include", "--exclude"),
        True,
    ),
    **dict.fromkeys(
        ("--master_addr", "--master_port", "--node_rank", "--ssh_port", "--venv_script"), True
    ),
    **dict.fromkeys(("--launcher_args", "--enable_each_rank_log", "--bind_core_list"), True),
    **dict.fromkeys(("--no_ssh", "--no_ssh_check", "--force_multi", "--bind_cores_to_rank"), False),
}
"""Options that ``tape-ds`` hands to DeepSpeed's launcher, and whether a value follows."""
OPTION_NAMES = {"--gpus": "--num_gpus"}
"""The name that ``tape-ds plan`` gives an option as well -> the launcher's."""


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that DeepSpeed's launcher takes, and all others."""
    options: list[str] = []
    rest: list[str] = []
    waiting = iter(words)
    for word in waiting:
        given, equals, value = word.partition("=")
        name = OPTION_NAMES.get(given, given)
        if name not in DEEPSPEED_OPTIONS:
            rest.append(word)
            continue
        options.append(name + equals + value)
        # its value is the next word, if there is one
        if DEEPSPEED_OPTIONS[name] and not equals:
            options += islice(waiting, 1)
    return options, rest
