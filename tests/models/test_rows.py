"""Rows of the vocabulary: never added, compared with the tokenizer, dropped only where no token has them."""

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, PreTrainedTokenizerFast

from tape_ds.errors import UserError
from tape_ds.models import convert
from tape_ds.models.loading import reference_checkpoint
from tests.models.helpers import VOCABULARY, rounding, tiny_model, tokens


def tokenizer_of(size, gap=0):
    """A tokenizer whose tokens are its numbers as words; the last id is ``gap`` further on."""
    # the first one: transformers adds it to a Qwen2 without
    names = ["<|endoftext|>", *map(str, range(1, size - 1))]
    words = {name: number for number, name in enumerate(names)} | {"last": size - 1 + gap}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="1"))
    )


def test_rows_without_a_token_are_allowed_and_tokens_without_a_row_are_not():
    """Where ids have gaps, as many rows as tokens are not enough."""
    tokenizer = tokenizer_of(30, gap=2)
    (problem,) = convert.check_rows(LlamaConfig(vocab_size=31), tokenizer)
    assert "no row for 'last'" in str(problem)
    for rows in (32, 35):
        config = LlamaConfig(vocab_size=rows)
        assert convert.check_rows(config, tokenizer) == []
        assert bool(convert.rows_note(config, tokenizer)) == (rows > 32)


@pytest.mark.parametrize("tied", [True, False])
def test_cutting_drops_the_last_rows_and_nothing_else(tied):
    size = VOCABULARY + 3
    model = tiny_model(vocab_size=size, tie_word_embeddings=tied, pad_token_id=size - 1)
    cut = convert.cut_rows(model, VOCABULARY, tokenizer_of(VOCABULARY))
    assert cut.config.vocab_size == VOCABULARY and cut.config.pad_token_id is None
    assert cut.generation_config.pad_token_id is None
    assert model.config.vocab_size == size and model.config.pad_token_id == size - 1, (
        "the given one stays as it is"
    )
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


def test_a_reference_checkpoint_with_a_row_for_padding():
    """Its training adds [PAD]; a configuration with the old number does not keep the weights out."""
    from tests.models.loading.test_reference_checkpoint import golden

    _, config, weights = golden("adape")
    size = config["vocab_size"]
    tables = ("model.embed_tokens.weight", "lm_head.weight")
    more = weights | {
        name: torch.cat((weights[name], weights[name].mean(0, keepdim=True))) for name in tables
    }
    found = reference_checkpoint.from_reference(more, config, "adape")
    assert found.config.vocab_size == size + 1
    cut = convert.cut_rows(found, size, tokenizer_of(size))
    ids = torch.arange(3, 20)[None]
    with torch.no_grad():
        expected = reference_checkpoint.from_reference(weights, config, "adape")(ids).logits
        assert torch.equal(cut(ids).logits, expected)
    with pytest.raises(UserError, match=r"of another shape: lm_head\.weight"):
        reference_checkpoint.from_reference(
            more | {"lm_head.weight": weights["lm_head.weight"]}, config, "adape"
        )
