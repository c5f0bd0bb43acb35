"""A tiny Llama whose tokenizer spells any text, and SCROLLS in miniature."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tape_ds.data.scrolls import examples
from tape_ds.models import convert
from tests.models.helpers import tiny_model

DATA = Path(__file__).resolve().parents[2] / "assets" / "scrolls"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One id for each byte; a text begins with <s>, as Llama's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {
        letter: number for number, letter in enumerate(letters, 2)
    }
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A folder with a random Llama and its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "spelling-llama"
    sizes = {
        "vocab_size": 258,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "max_position_embeddings": 1024,
    }
    convert.to_plain(tiny_model(encoding="rope", **sizes)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def known_answers(*names, split="validation"):
    """Input -> first reference answer, of all the sets."""
    return {
        each.input: each.outputs[0] for name in names for each in examples.read(name, split, DATA)
    }
