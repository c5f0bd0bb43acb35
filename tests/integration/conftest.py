"""A tiny model on disk and the real launcher: what a user starts, in seconds."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.processes import ROOT, Forked, Launch, deepspeed

__all__ = ["ROOT", "Ended", "asked", "forked", "launch", "make_answers", "make_tiny", "start"]

SECONDS = 300
"""Longer than any job of these tests takes, on a busy machine as well."""
TEXT = "\n".join(f"def function_{i}(value):\n    return value + {i}\n" for i in range(400))


@dataclass(frozen=True)
class Ended:
    """A job that has ended."""

    code: int
    output: str


def start(
    log: Path, *words: str, processes: int = 2, environment: Mapping[str, str] | None = None
) -> Launch:
    """``deepspeed --num_accelerators N words`` as a user types it, on the CPU."""
    return Launch([*deepspeed(processes), *words], log, environment)


def launch(*words: str, processes: int = 2) -> Ended:
    """:func:`start`, and wait for its end: for what is about launching."""
    with (
        tempfile.TemporaryDirectory() as folder,
        start(Path(folder) / "log", *words, processes=processes) as running,
    ):
        return Ended(running.wait(SECONDS), running.printed)


def forked(script: str, *words: str, processes: int = 2) -> Ended:
    """The same script on as many ranks, without a launcher and a quarter of a minute sooner."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Forked(ROOT / script, words, Path(folder) / "log", processes) as running,
    ):
        return Ended(running.wait(SECONDS), running.printed)


def asked(request: pytest.FixtureRequest, *parameters: str) -> list[str]:
    """What a fixture of this file's tests has to compute: their values of these parameters, joined by ``-``."""
    cases = [
        item.callspec.params for item in request.session.items if item.path == request.node.path
    ]
    return list(dict.fromkeys("-".join(case[name] for name in parameters) for case in cases))


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """A trainer that a test builds in this process sets variables, which a later job would inherit."""
    kept = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(kept)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of :func:`make_tiny`, which all tests share."""
    return make_tiny(tmp_path_factory.mktemp("tiny"))


def make_tiny(folder: Path) -> Path:
    """Write ``model`` (a Llama of 64 positions with grouped heads, and a tokenizer), ``text.txt`` and ``held_out.txt``;
    returns the folder."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    (folder / "text.txt").write_text(TEXT)
    (folder / "held_out.txt").write_text(TEXT.replace("function", "routine"))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=300,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.1,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


def make_answers(folder: Path) -> Path:
    """Write questions of unequal length, whose answers have one to three tokens, as SCROLLS has them; returns the
    folder."""
    (folder / "quality").mkdir()
    for split, first in {"train": 0, "validation": 40}.items():
        lines = []
        for number in range(first, first + 40):
            text = f"function_{number % 8}?\n\n" + "return value\n" * (number % 4)
            answer = "def function" + "(value)" * (number % 3)
            lines.append(json.dumps({"id": str(number), "input": text, "output": answer}))
        (folder / "quality" / f"{split}.jsonl").write_text("\n".join(lines))
    return folder
