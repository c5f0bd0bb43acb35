"""llama.cpp's own log-probabilities of exported GGUF files, against transformers' (slow; needs llama-cpp-python)."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tape_ds.cli import export
from tape_ds.data import tokenizer as tokenizers
from tape_ds.models.loading import model_folder
from tests.export import gguf_models

llama_cpp = pytest.importorskip(
    "llama_cpp", reason="llama-cpp-python is not installed: it runs the exported files"
)

pytestmark = pytest.mark.slow
SHORT = 100
LONG = 600
"""Tokens: within the window of 256 that a scaling begins from, and beyond it."""
EXACT = 1e-3
"""Of fp32 files: both sum in another order. A wrong scaling shows as 0.5 and more."""


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A SentencePiece tokenizer of 512 pieces."""
    return tokenizers.train(
        ["stdlib"], 512, tmp_path_factory.mktemp("tokenizers") / "spm", max_characters=200_000
    )


def exported(tmp_path, folder, kind, tokenizer="auto"):
    file = tmp_path / f"{kind}.gguf"
    words = [str(folder), "--gguf", str(file), "--gguf_type", kind, "--gguf_tokenizer", tokenizer]
    assert export.main(words) == 0
    return file


def by_llama_cpp(file, ids):
    """Return log-probabilities [T, V] with a cache in fp32."""
    fp32 = llama_cpp.GGML_TYPE_F32
    model = llama_cpp.Llama(
        str(file), n_ctx=len(ids), n_batch=len(ids), n_ubatch=len(ids), logits_all=True, n_threads=1, verbose=False,
        type_k=fp32, type_v=fp32, flash_attn=False,
    )  # fmt: skip
    model.eval(ids)
    return torch.tensor(model.scores[: len(ids)].copy()).log_softmax(-1)


@torch.no_grad()
def by_transformers(model, ids):
    return model(torch.tensor([ids])).logits[0].log_softmax(-1)


def drawn(tokens):
    return torch.randint(
        3, gguf_models.ROWS, (tokens,), generator=torch.Generator().manual_seed(tokens)
    ).tolist()


@pytest.mark.parametrize(("kind", "scaling"), gguf_models.CASES)
def test_llama_cpp_computes_what_transformers_computes(tmp_path, kind, scaling):
    model = gguf_models.make(tmp_path / "model", kind, gguf_models.SCALINGS[scaling])
    plain = gguf_models.make(tmp_path / "plain", kind, gguf_models.SCALINGS["none"])
    file = exported(tmp_path, tmp_path / "model", "F32", "none")
    for tokens in (SHORT, LONG):
        ids = drawn(tokens)
        difference = (by_llama_cpp(file, ids) - by_transformers(model, ids)).abs().max().item()
        unscaled = (by_transformers(plain, ids) - by_transformers(model, ids)).abs().max().item()
        print(f"{kind} {scaling} {tokens}: {difference:.1e}, unscaled {unscaled:.1f}")
        assert difference < EXACT
        assert scaling == "none" or unscaled > 100 * EXACT


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_smaller_types_differ_by_their_rounding(tmp_path, tokenizer, kind):
    """By twice what the rounded weights change in transformers: llama.cpp rounds activations to the same type."""
    model = gguf_models.make(tmp_path / "model", "llama", gguf_models.SCALINGS["yarn"])
    tokenizers.save(tokenizer, tmp_path / "model")
    file = exported(tmp_path, tmp_path / "model", kind)
    rounded = AutoModelForCausalLM.from_pretrained(
        model_folder.resolve(str(file), tmp_path / "models")
    ).eval()
    for tokens in (SHORT, LONG):
        ids = drawn(tokens)
        exact = by_transformers(model, ids)
        own = (by_transformers(rounded, ids) - exact).abs().mean().item()
        difference = (by_llama_cpp(file, ids) - exact).abs().mean().item()
        print(f"{kind} {tokens}: mean {difference:.1e}, by the weights alone {own:.1e}")
        assert 0 < difference < 2 * own


TEXTS = [
    "Hello world",
    "def main(argv):\n    return 12345\n",
    "  two spaces, été, 你好",
    "",
    "a\tb\n\n\nc",
]


def test_llama_cpp_makes_the_same_ids_of_a_text(tmp_path, tokenizer):
    """tokenizer.json has no scores: gguf's LlamaHfVocab writes one score for every piece, which joins others."""
    gguf_models.make(tmp_path / "model", "llama", gguf_models.SCALINGS["none"])
    tokenizers.save(tokenizer, tmp_path / "model")
    file = exported(tmp_path, tmp_path / "model", "F32")
    model = llama_cpp.Llama(str(file), n_ctx=64, vocab_only=True, verbose=False)
    own = AutoTokenizer.from_pretrained(tmp_path / "model")
    for text in TEXTS:
        begins = own("")["input_ids"] != []
        assert (
            model.tokenize(text.encode(), add_bos=begins, special=False) == own(text)["input_ids"]
        )
