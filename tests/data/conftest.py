"""A real tokenizer, trained on the spot, and documents to go with it."""

import datasets
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tape_ds.data.selection import select

CORPUS = [
    "def add(a, b):\n    return a + b\n",
    "class Tape:\n    position = 0\n",
    "for letter in text:\n    pass\n",
]


class CountingTokenizer(PreTrainedTokenizerFast):
    """Counts the texts it is given, to show when a cache is really used."""

    texts = 0

    def __call__(self, text, **kwargs):
        CountingTokenizer.texts += len(text)
        return super().__call__(text, **kwargs)


def build_tokenizer(bos: bool = True) -> CountingTokenizer:
    """A byte-level BPE of 300 entries; like Llama's, it begins a text with BOS unless asked otherwise."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    return CountingTokenizer(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def tokenize(specs, tokenizer, split, cache, bad_rows=None):
    return select(specs, tokenizer, split, cache, bad_rows=bad_rows).documents


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(*map(torch.as_tensor, (one[name], other[name]))) for name in one
    )


@pytest.fixture
def tokenizer() -> CountingTokenizer:
    CountingTokenizer.texts = 0
    return build_tokenizer()


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()
