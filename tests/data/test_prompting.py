"""No prompt ends with what its tokenizer appends to every text, whoever asks."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers.processors import BertProcessing, ByteLevel, Sequence, TemplateProcessing

from tape_ds.cli.evaluate import generate
from tape_ds.data import passkey
from tape_ds.data.prompting import appended, around, prompt_ids
from tape_ds.data.scrolls import examples as scrolls_data
from tape_ds.data.scrolls import prompts as scrolls
from tape_ds.data.tokenized import scored_rows
from tape_ds.training import samples
from tests.data.conftest import build_tokenizer

ROOT = Path(__file__).resolve().parents[2]
BOS, EOS = ("<s>", 0), ("</s>", 1)
ENDS = {
    "eos": (TemplateProcessing(single="<s> $A </s>", special_tokens=[BOS, EOS]), 1),
    "two": (TemplateProcessing(single="<s> $A <s> </s>", special_tokens=[BOS, EOS]), 2),
    "no eos": (TemplateProcessing(single="<s> $A <s>", special_tokens=[BOS]), 1),
    "sequence": (Sequence([ByteLevel(), TemplateProcessing(single="<s> $A </s>", special_tokens=[BOS, EOS])]), 1),
    "bert": (BertProcessing(EOS, BOS), 1),
    "none": (TemplateProcessing(single="<s> $A", special_tokens=[BOS]), 0),
}


def ending(name):
    tokenizer = build_tokenizer()
    tokenizer.backend_tokenizer.post_processor = ENDS[name][0]
    return tokenizer


@pytest.mark.parametrize("name", ENDS)
def test_the_end_is_taken_off_and_nothing_else(name):
    """A prompt's own EOS stays, also where the tokenizer appends none."""
    tokenizer, (_, count) = ending(name), ENDS[name]
    assert appended(tokenizer) == count
    for text in ("return", "a </s>", ""):
        whole = tokenizer(text)["input_ids"]
        assert prompt_ids(text, tokenizer) == whole[: len(whole) - count]
    own = tokenizer("a </s>", add_special_tokens=False)["input_ids"]
    assert own[-1] == EOS[1] and prompt_ids("a </s>", tokenizer)[1:] == own


def test_an_end_that_is_no_special_token_of_the_tokenizer_is_seen():
    """As [SEP] of a tokenizer that names none: the text that was measured with was that very token."""
    tokenizer = ending("eos")
    tokenizer.eos_token = None
    assert around(tokenizer) == (1, 1)


@pytest.mark.parametrize(("name", "begun"), [("eos", 1), ("none", 1), ("bare", 0)])
def test_a_prompt_that_begins_with_bos_has_one(name, begun):
    """As the server's completions get it from clients that rendered a chat template."""
    tokenizer = build_tokenizer(bos=False) if name == "bare" else ending(name)
    own = tokenizer("return", add_special_tokens=False)["input_ids"]
    assert prompt_ids("<s>return", tokenizer) == [BOS[1], *own]
    assert prompt_ids("return", tokenizer) == [BOS[1]] * begun + own


def sampled(tokenizer, monkeypatch):
    read = []
    monkeypatch.setattr(samples, "ends_of", lambda *_: set())
    monkeypatch.setattr(samples, "continue_prompts", lambda model, ids, **_: (read.extend(ids), [[5]])[1])
    trainer = SimpleNamespace(args=SimpleNamespace(device=SimpleNamespace(type="cpu")), beat=lambda _: None)
    samples.WriteSamples(trainer, SimpleNamespace(sample_prompts=["one", "two"], sample_tokens=1), tokenizer).write(
        None
    )
    return read


def question(tokenizer, _):
    text = "why?\n\nbecause"
    return scrolls.prompt_ids(scrolls_data.find("qasper"), text, tokenizer, 500, reserve=9, reference_format=True)


PLACES = {
    "passkeys of a run": lambda tokenizer, _: passkey.draw(tokenizer, [700], 2, seed=1),
    "evaluate passkey, grid": lambda tokenizer, _: [
        each.write() for each in passkey.grid(tokenizer, [700], [0.5], 2, seed=1, form="pose", reply=8)
    ],
    "evaluate passkey, published": lambda tokenizer, _: [
        each.write() for each in passkey.published(tokenizer, [2000], 2)
    ],
    "ids of a key": lambda tokenizer, _: (passkey.answer_ids(tokenizer, 71), passkey.same_ids(tokenizer, " 71", 71)),
    "generate": lambda tokenizer, _: generate.ids_of("return a", tokenizer, chat=False),
    "samples": sampled,
    "scrolls": question,
}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_reads_what_a_tokenizer_without_an_end_gives_it(place, monkeypatch):
    """Passkeys kept the EOS: 0 of 20 were found where the same model finds 19, and their ids were never compared.
    lm-eval's model and the server have this test among their own."""
    read = PLACES[place](ending("eos"), monkeypatch)
    assert read == PLACES[place](ending("none"), monkeypatch)
    assert read != (None, False)


def test_a_document_is_scored_without_the_end(tmp_path):
    """The end was a target of every document that was not cut."""
    (tmp_path / "x.txt").write_text("return a")
    rows = [list(scored_rows([f"text:{tmp_path}/x.txt"], ending(name), tmp_path / name)) for name in ("eos", "none")]
    assert rows[0] == rows[1] and rows[0][0]["input_ids"][-1] != EOS[1]


DOCUMENTS = {
    "tape_ds/data/prompting.py": "the one place that prompts",
    "tape_ds/data/tokenized.py": "documents, which a tokenizer may end",
    "tape_ds/data/chat/template.py": "a rendered conversation, add_special_tokens=False",
    "tape_ds/data/tokenizer.py": "the BOS before an empty text",
}


def test_no_other_file_encodes_a_text():
    """A call of something named tokenizer is a prompt, and belongs into prompting.py."""
    found = set()
    for folder in ("tape_ds", "evaluation", "tools", "launchers"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                called = ast.unparse(node.func) if isinstance(node, ast.Call) and node.args else ""
                if re.search(r"^(self\.|\w+\.)?tokenizer(\(\))?$", called):
                    found.add(str(path.relative_to(ROOT)))
    assert found == set(DOCUMENTS)
