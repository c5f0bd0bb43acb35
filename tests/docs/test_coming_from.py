"""The page of other code's names gives names that exist here."""

import re

import pytest

from tape_ds.config import extension, finetuning, loading, pretraining, trainer
from tape_ds.config.kinds import KINDS
from tests.docs import pages

PAGE = pages.ROOT / "docs" / "coming_from.md"
FILE = re.compile(r"(?:launchers|tools|ds_configs|tape_ds)/[\w/]+\.(?:py|json)")


def ours():
    """The second column of every table: what things are called here."""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| ---"):
            yield line.removesuffix(" |").split(" | ", 1)[1]


def flags():
    return {flag for cell in ours() for code in re.findall(r"`([^`]+)`", cell) for flag in re.findall(r"--(\w+)", code)}


@pytest.fixture(scope="module")
def known():
    """Fields of all recipes, and the options that the evaluation's and the tools' parsers are given."""
    fields = {field for kind in KINDS.values() for field in loading.field_hints(kind)} | {"recipe"}
    files = [path for folder in ("tape_ds/cli", "tools") for path in (pages.ROOT / folder).rglob("*.py")]
    return fields | {each for path in files for each in re.findall(r'"--(\w+)"', path.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("flag", sorted(flags()))
def test_the_flag_exists_here(flag, known):
    assert flag in known


@pytest.mark.parametrize("file", sorted({file for cell in ours() for file in FILE.findall(cell)}))
def test_the_file_exists_here(file):
    assert (pages.ROOT / file).is_file()


@pytest.mark.parametrize(
    ("kind", "old"),
    [
        (extension.ExtensionRecipe, "model_max_length use_flash_attn use_full_attn rope_scaling_type trainable_params"),
        (extension.ExtensionRecipe, "rope_scaling_factor inference_length train_data_file low_rank_training peft_type"),
        (extension.ExtensionRecipe, "model_max_position_embeddings evaluation_strategy warmup_ratio dataset_cache_dir"),
        (pretraining.PretrainingRecipe, "model_max_position_embeddings use_flash_attention_2 dataset_cache_dir"),
        (finetuning.ScrollsRecipe, "block_size model_name_or_path use_flash_attention_2 preprocessing_num_workers"),
    ],
)
def test_an_old_flag_is_answered_with_the_new_one(kind, old):
    page = PAGE.read_text(encoding="utf-8")
    former = {**trainer.REMOVED, **kind.FORMER}
    for flag in old.split():
        assert f"--{flag}" in page
        first = former[flag].split(" ")[0].rstrip(":,")
        assert first == "nothing" or first.split(".")[0] in loading.field_hints(kind), f"{flag}: {former[flag]}"


def test_flags_and_files_are_found():
    assert len(flags()) > 40
