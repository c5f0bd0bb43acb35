"""A tiny Llama that spells its answers letter by letter, served in the test's own process."""

import threading
from contextlib import contextmanager

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.serving.running import listening
from tests.serving.tokenizers_of_kinds import spelling

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

LENGTH = 128
VOCABULARY = 98
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "


def spelling_llama():
    """A random model that draws no special token unless it is biased to."""
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = LlamaConfig(
        vocab_size=VOCABULARY, max_position_embeddings=LENGTH, initializer_range=0.3, **sizes
    )
    config.bos_token_id = 0
    config.eos_token_id = 1
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).eval()
    head = torch.nn.Linear(32, VOCABULARY)
    head.weight = model.lm_head.weight
    head.bias.data.zero_()
    head.bias.data[:2] = -30
    model.lm_head = head
    return model


def new_served(**fields):
    from tape_ds.serving.served import Served

    tokenizer = spelling()
    tokenizer.chat_template = TEMPLATE
    return Served(spelling_llama(), tokenizer, "tiny", LENGTH, **fields)


@contextmanager
def asking(served):
    """A client in this process, to whom an error of the server is an error of the test."""
    from starlette.testclient import TestClient

    from tape_ds.serving.app import application

    with TestClient(application(served), base_url="http://127.0.0.1") as client:
        yield client


@pytest.fixture(scope="package")
def served():
    return new_served()


@pytest.fixture(scope="package")
def client(served):
    with asking(served) as client:
        yield client


class Held:
    """A server whose model waits before each forward pass until it is let go."""

    port = 0

    def __init__(self):
        self.go = threading.Event()
        self.entered = threading.Event()
        self.passes = 0

    def wait(self):
        self.passes += 1
        self.entered.set()
        assert self.go.wait(60)


@contextmanager
def holding():
    from tape_ds.serving.app import application

    held = Held()
    served = new_served()
    served.model.register_forward_pre_hook(lambda *_: held.wait())
    with listening(application(served), timeout_graceful_shutdown=1) as port:
        held.port = port
        try:
            yield held
        finally:
            held.go.set()


@pytest.fixture
def held():
    with holding() as held:
        yield held
