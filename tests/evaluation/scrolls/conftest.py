"""A tiny Llama whose tokenizer spells any text, SCROLLS in miniature, and an oracle in the model's place."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from evaluation import language_model
from tape_ds.data.scrolls import examples
from tape_ds.model import convert
from tests.model.helpers import tiny_model

DATA = Path(__file__).resolve().parents[2] / "assets" / "scrolls"


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One id for each byte; a text begins with <s>, as Llama's."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1} | {letter: number for number, letter in enumerate(letters, 2)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """A folder with a random Llama and its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "spelling-llama"
    sizes = {"vocab_size": 258, "bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 1024}
    convert.to_plain(tiny_model(encoding="rope", **sizes)).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def known_answers(*names, split="validation"):
    """Input -> first reference answer, of all the sets."""
    return {each.input: each.outputs[0] for name in names for each in examples.read(name, split, DATA)}


@pytest.fixture
def oracle(monkeypatch):
    """Every prompt that ends in a known question and document is continued with its reference answer."""
    tokenizer, asked = byte_tokenizer(), []

    def answers(*names):
        known = known_answers(*names)

        def continue_prompts(model, prompts, **settings):
            asked.append((len(prompts), settings))
            texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in prompts]
            found = [next(answer for text, answer in known.items() if text in prompt) for prompt in texts]
            return [tokenizer(answer, add_special_tokens=False)["input_ids"] for answer in found]

        monkeypatch.setattr(language_model, "continue_prompts", continue_prompts)
        return asked

    return answers
