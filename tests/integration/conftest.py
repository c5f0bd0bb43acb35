"""A tiny model on disk and the real launcher: what a user starts, in seconds."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
TEXT = "\n".join(f"def function_{i}(value):\n    return value + {i}\n" for i in range(400))


@dataclass(frozen=True)
class Ended:
    """A launch that has ended."""

    code: int
    output: str


def start(script: str, *arguments: str, processes: int = 2) -> subprocess.Popen[str]:
    """``deepspeed --num_accelerators N script arguments`` as a user types it, on the CPU, in a process group of its own
    to which every process of the run belongs."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    command = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_accelerators", str(processes)]
    return subprocess.Popen(
        [*command, "--master_port", str(port), script, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def launch(script: str, *arguments: str, processes: int = 2, timeout: float = 300) -> Ended:
    """:func:`start`, and wait for its end."""
    running = start(script, *arguments, processes=processes)
    try:
        output, _ = running.communicate(timeout=timeout)
    finally:
        kill(running)
    return Ended(running.returncode, re.sub(r"\x1b\[[0-9;]*m", "", output))


def kill(running: subprocess.Popen[str]) -> None:
    """``kill -9`` for everything that is left of a launch, all at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    running.wait()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``model`` (a Llama of 64 positions with grouped heads, and a tokenizer) and ``text.txt``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("tiny")
    (folder / "text.txt").write_text(TEXT)
    (folder / "held_out.txt").write_text(TEXT.replace("function", "routine"))
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>", pad_token="</s>")
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
