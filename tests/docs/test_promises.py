"""Numbers that pages promise are those that the code keeps.

A page had a limit for archives that no code kept, and another counted trained parameters where the code counts all.
"""

import re

import pytest

from tape_ds import storage
from tape_ds.cli.evaluate import passkey as passkey_command
from tape_ds.cli.evaluate import perplexity as perplexity_command
from tape_ds.config.kinds import KINDS
from tape_ds.distributed import rendezvous
from tape_ds.kernels import linear_cross_entropy
from tape_ds.planning import search
from tape_ds.resilience import stopping, watchdog
from tape_ds.resilience.keep_alive import LONGEST_BACKOFF, Patience
from tape_ds.scoring import CHUNK, language_model, resumable
from tape_ds.training import device
from tests.config import loads
from tests.docs.pages import ROOT

FIELDS = KINDS["extend_llama"].fields()


def default(name):
    return FIELDS[name].default


PROMISES = [
    (
        "staying_alive.md",
        "`.`, `_`, `-`, up to {}; the name",
        64,
        int(stopping._NAME.pattern.rpartition(",")[2][:2]),
    ),
    ("staying_alive.md", "| `nonfinite_limit` | {} |", 5, default("nonfinite_limit")),
    ("staying_alive.md", "| `spike_sigma` | {} |", 8, default("spike_sigma")),
    ("staying_alive.md", "| `spike_window` | {} |", 128, default("spike_window")),
    ("staying_alive.md", "for `watchdog_seconds` ({};", 1800, default("watchdog_seconds")),
    (
        "staying_alive.md",
        "{} times that while saving",
        "four",
        {4.0: "four"}[watchdog.LONGER["saving"]],
    ),
    (
        "staying_alive.md",
        "finishes a piece of work for {} hours",
        "two",
        {7200.0: "two"}[resumable.STUCK_SECONDS],
    ),
    ("staying_alive.md", "[--restarts {}] [--backoff 5]", 10, Patience().restarts),
    ("staying_alive.md", "[--restarts 10] [--backoff {}]", 5, Patience().backoff),
    ("staying_alive.md", "[--grace {}] COMMAND", 60, Patience().grace),
    ("staying_alive.md", "(`--backoff`), {} minutes at most", 5, LONGEST_BACKOFF / 60),
    (
        "staying_alive.md",
        "{} second or more after the first",
        "a",
        {1.0: "a"}[stopping.TWICE_SECONDS],
    ),
    ("data.md", "A file above {} MiB counts", 64, storage.HASHED_WHOLE / 2**20),
    ("data.md", "its size and {} blocks of 16 KiB", "eight", {8: "eight"}[storage.BLOCKS]),
    ("data.md", "its size and eight blocks of {} KiB", 16, storage.BLOCK_BYTES / 2**10),
    (
        "memory.md",
        "leaves an {} of the GPU's memory free",
        "eighth",
        {1 / 8: "eighth"}[search.SPARE],
    ),
    ("memory.md", "Times within {} % are a tie", 1, search.TIE * 100),
    ("memory.md", "micro-batch of {} tokens", "16,384", f"{search.BUSY:,}"),
    (
        "memory.md",
        "tokens' logits as {} MiB of fp32 take",
        128,
        linear_cross_entropy.CHUNK_BYTES / 2**20,
    ),
    (
        "memory.md",
        "a model of more than a {} parameters",
        "billion",
        {1e9: "billion"}[device.LARGEST],
    ),
    ("memory.md", "| `profile_start` | {} |", 3, default("profile_start")),
    ("memory.md", "| `profile_steps` | {} |", 2, default("profile_steps")),
    ("memory.md", "| `profile_ranks` | {} |", "[0]", str(default("profile_ranks"))),
    ("evaluation.md", "and {} tokens long", 10, passkey_command.REPLY_TOKENS),
    ("evaluation.md", "| `--chunk {}` |", 4096, CHUNK),
    ("evaluation.md", "a window every `--stride` tokens ({})", 256, perplexity_command.STRIDE),
    (
        "evaluation.md",
        "as many texts at once as hold {}k tokens",
        16,
        language_model.AUTO_TOKENS / 1024,
    ),
    ("cluster.md", "is named after {} minutes", "ten", {600.0: "ten"}[rendezvous.JOIN_SECONDS]),
    (
        "cluster.md",
        "every {} seconds rank 0 reports which are missing",
        30,
        rendezvous.NOTICE_SECONDS,
    ),
    ("extending.md", "`lora_r` {},", 8, default("lora_r")),
    ("extending.md", "`lora_alpha` {},", 16, default("lora_alpha")),
    ("extending.md", "`lora_dropout` {}.", 0, default("lora_dropout")),
]
"""Page, its words with a place for a number, what it says, and what the code has."""


@pytest.mark.parametrize(("page", "words", "said", "kept"), PROMISES)
def test_a_number_of_a_page_is_the_code_s(page, words, said, kept):
    text = re.sub(r"\s+", " ", (ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert words.format(said) in text
    assert said == kept


RATES = {
    "llama3_8b_32k_lora_80gb": (2e-4, 16, 1000),
    "llama3_8b_32k_qlora_24gb": (2e-4, 16, 1000),
    "llama3_8b_32k": (2e-5, 64, 1000),
    "llama2_7b_8k_norms": (2e-5, 64, 1000),
    "llama2_7b_8k_longlora": (2e-5, 64, 1000),
    "llama2_7b_8k_lora": (2e-5, 64, 1000),
    "llama_7b_pose_yarn_16k": (2e-5, 64, 1000),
    "smollm2_16k_tape": (1e-3, 8, 16),
    "smollm2_16k_norms": (1e-3, 8, 16),
    "smollm2_16k_full": (1e-4, 8, 16),
}
"""The table of rates in extending.md: learning rate, sequences and steps of each recipe."""


@pytest.mark.parametrize("name", RATES)
def test_the_rates_of_extending_are_the_recipes(name):
    recipe = loads.extension(["--recipe", name], elsewhere=True)
    trainer = recipe.trainer
    assert (trainer.learning_rate, recipe.global_batch_size, trainer.max_steps) == RATES[name]


def test_the_settings_of_scrolls_are_the_recipes():
    trainer = loads.scrolls(
        ["--recipe", "scrolls/qasper", "--model", "smollm2"], elsewhere=True
    ).trainer
    found = [
        getattr(trainer, name)
        for name in ("max_steps", "learning_rate", "warmup_steps", "weight_decay", "seed", "bf16")
    ]
    assert found == [1000, 1e-5, 0.1, 0.01, 2024, True]
