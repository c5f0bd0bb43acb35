"""Rows of the vocabulary: never added, compared with the tokenizer, dropped only where no token has them."""

import ast
import logging
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.loading import extendable, reference_checkpoint
from tests.models.helpers import HEADS, SIZES, VOCABULARY, rounding, tiny_config, tiny_model, tokens
from tests.test_layout import ROOT, SCRIPTS, called, sources


def tokenizer_of(size, gap=0):
    """A tokenizer whose tokens are its numbers as words; the last id is ``gap`` further on."""
    names = ["<|endoftext|>", *map(str, range(1, size - 1))]  # the first one: transformers adds it to a Qwen2 without
    words = {name: number for number, name in enumerate(names)} | {"last": size - 1 + gap}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="1")))


@pytest.mark.parametrize(
    "size, note",
    [
        (32_000, "32,001 rows for a tokenizer of 32,000 tokens: the last row is never used"),
        (31_990, "32,001 rows for a tokenizer of 31,990 tokens: the last 11 rows are never used"),
        (32_001, None),
    ],
)
def test_rows_without_a_token_are_named_and_allowed(size, note):
    """Qwen2 has 151,936 rows for 151,665 tokens: a round number, no mistake."""
    config, tokenizer = LlamaConfig(vocab_size=32_001), tokenizer_of(size)
    assert convert.check_rows(config, tokenizer) == []
    assert convert.rows_note(config, tokenizer) == note


def test_a_token_without_a_row_is_a_problem():
    tokenizer = tokenizer_of(31_999)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    (problem,) = convert.check_rows(LlamaConfig(vocab_size=31_999), tokenizer)
    assert "31,999 rows for a tokenizer of 32,000 tokens: no row for '[PAD]'" in str(problem)
    assert convert.check_rows(LlamaConfig(vocab_size=32_000), tokenizer) == []
    assert convert.rows_note(LlamaConfig(vocab_size=31_999), tokenizer) is None


def test_an_id_behind_a_gap_needs_its_row_too():
    """As many tokens as rows are not enough where the ids have gaps."""
    tokenizer = tokenizer_of(30, gap=2)
    assert len(tokenizer.get_vocab()) == 30
    (problem,) = convert.check_rows(LlamaConfig(vocab_size=30), tokenizer)
    assert "'last'" in str(problem)
    assert convert.check_rows(LlamaConfig(vocab_size=32), tokenizer) == []


@pytest.mark.parametrize("encoding", ["rope", "tape"])
@pytest.mark.parametrize("size", [VOCABULARY, VOCABULARY + 1])
def test_a_checkpoint_keeps_its_rows(tmp_path, size, encoding):
    """32,000 stay 32,000, and 32,001 stay 32,001: every row as it was."""
    sizes = SIZES | HEADS["gqa"] | {"vocab_size": size}
    llama = LlamaForCausalLM(LlamaConfig(**sizes))
    llama.save_pretrained(tmp_path)
    ours = convert.load(tmp_path, convert.tape_config(extendable.read(tmp_path), position_encoding=encoding))
    assert ours.config.vocab_size == ours.lm_head.out_features == size
    assert torch.equal(ours.model.embed_tokens.weight, llama.model.embed_tokens.weight)
    assert torch.equal(ours.lm_head.weight, llama.lm_head.weight)


ADDING = {"add_special_tokens", "add_tokens", "resize_token_embeddings"}


def test_nothing_adds_tokens_or_rows():
    """To a pretrained tokenizer or model; a tokenizer built from a sentencepiece file gets that file's own pieces."""
    found = {}
    for path in sources("tape_ds", *SCRIPTS):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if names := sorted({str(called(call)) for call in calls} & ADDING):
            found[str(path.relative_to(ROOT))] = names
    assert found == {str(Path("tape_ds/models/loading/sentencepiece_tokenizer.py")): ["add_tokens"]}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("encoding", ["rope", "tape"])
def test_cutting_drops_the_last_rows_and_nothing_else(encoding, tied):
    size = VOCABULARY + 3
    model = tiny_model(encoding=encoding, vocab_size=size, tie_word_embeddings=tied, pad_token_id=size - 1)
    cut = convert.cut_rows(model, VOCABULARY, tokenizer_of(VOCABULARY))
    assert cut.config.vocab_size == VOCABULARY and cut.config.pad_token_id is None
    assert cut.generation_config.pad_token_id is None
    assert model.config.vocab_size == size and model.config.pad_token_id == size - 1, "the given one stays as it is"
    assert (cut.lm_head.weight is cut.model.embed_tokens.weight) == tied
    ids = tokens(2, 20)
    with torch.no_grad():
        torch.testing.assert_close(
            cut(ids).logits, model(ids).logits[..., :VOCABULARY], rtol=0, atol=rounding(model, ids)
        )
    for name, weight in model.state_dict().items():
        mine = cut.state_dict()[name]
        assert torch.equal(mine, weight[: len(mine)])
        assert mine.shape == weight.shape or name in ("model.embed_tokens.weight", "lm_head.weight")


@pytest.mark.parametrize(
    "kept, size, changes, words",
    [
        (62, 61, {}, "rows are never added"),
        (60, 61, {}, "the tokenizer has tokens beyond them: 'last'"),
        (60, 60, {"eos_token_id": [2, 60]}, "config.eos_token_id"),
    ],
)
def test_what_must_not_be_cut_is_refused(kept, size, changes, words):
    with pytest.raises(UserError, match=words):
        convert.cut_rows(tiny_model(**changes), kept, tokenizer_of(size))


def test_a_reference_checkpoint_with_a_row_for_padding(caplog):
    """Its training adds [PAD]; a configuration that still says the old number does not keep the weights out."""
    from tests.models.loading.test_reference_checkpoint import golden

    _, config, weights = golden("adape")
    size = config["vocab_size"]
    tables = ("model.embed_tokens.weight", "lm_head.weight")
    more = weights | {name: torch.cat((weights[name], weights[name].mean(0, keepdim=True))) for name in tables}
    with caplog.at_level(logging.WARNING, logger="tape_ds.models.loading.reference_checkpoint"):
        told = reference_checkpoint.from_reference(more, config | {"vocab_size": size + 1}, "adape")
        assert not caplog.records
        found = reference_checkpoint.from_reference(more, config, "adape")
    assert f"the weights have {size + 1} rows, config.vocab_size is {size}" in caplog.text
    assert told.config.vocab_size == found.config.vocab_size == size + 1
    cut = convert.cut_rows(found, size, tokenizer_of(size))
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        expected = reference_checkpoint.from_reference(weights, config, "adape")(ids).logits
        assert torch.equal(cut(ids).logits, expected)
    with pytest.raises(UserError, match=r"of another shape: lm_head\.weight"):
        reference_checkpoint.from_reference(more | {"lm_head.weight": weights["lm_head.weight"]}, config, "adape")


def test_a_configuration_of_other_rows_than_the_weights_is_refused(tmp_path):
    """A row short would train on a model that cannot hold its last token; transformers would fill it at random."""
    tiny_model(encoding="rope").save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"embed_tokens\.weight \[61, 32\], not \[62, 32\]"):
        convert.load(tmp_path, tiny_config(encoding="rope", vocab_size=VOCABULARY + 1))
