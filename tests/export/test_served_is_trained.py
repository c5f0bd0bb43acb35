"""Every form of folder that export writes computes what was trained: in transformers, ``evaluate`` and ``serve``."""

import argparse
import itertools

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tape_ds import arguments
from tape_ds.checkpoint import source_model
from tape_ds.checkpoint.trained import TrainedRecord, save_trained
from tape_ds.encodings import trained_rope
from tape_ds.export import folder
from tape_ds.models.loading import extendable
from tape_ds.scoring import models
from tape_ds.scoring.losses import score_spans
from tests.export.conftest import YARN
from tests.models.helpers import randomised, tokens

pytest.importorskip("fastapi")

LENGTH = 128
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PLAIN = {
    "default": {"rope_type": "default", "rope_theta": 1e6},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
    "ntk": {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn, attention_factor": {**YARN, "attention_factor": 1.2},
    "yarn, truncate": {**YARN, "truncate": False},
    "yarn, betas": {**YARN, "beta_fast": 8.0, "beta_slow": 2.0},
}
OWN_CODE = {
    "dynamic": {
        "rope_type": "dynamic",
        "rope_theta": 1e4,
        "factor": 2.0,
        "original_max_position_embeddings": 64,
    },
    "yarn_revised": {**YARN, "rope_type": "yarn_revised"},
}
DAILY = {
    ("rope", "yarn, attention_factor"),
    ("rope", "llama3"),
    ("rope", "dynamic"),
    ("olmo2", "yarn, truncate"),
}
FORMS = [
    *(("rope", name) for name in (*PLAIN, *OWN_CODE)),
    *(("tape", name) for name in ("yarn", "yarn, attention_factor")),
    *(("olmo2", name) for name in ("linear", "yarn", "yarn, attention_factor", "yarn, truncate")),
]
CASES = [
    pytest.param(*form, marks=() if form in DAILY else pytest.mark.slow, id="-".join(form))
    for form in FORMS
]


@pytest.fixture
def made(run, base, tmp_path):
    """A function that makes a run of an encoding, or of a family that is extended by its own class."""

    def make(encoding, rope_parameters):
        if encoding != "olmo2":
            return run(encoding, "norms", rope_parameters, trained=("norm",))
        sizes = {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        native = AutoConfig.for_model(
            "olmo2", vocab_size=61, max_position_embeddings=64, pad_token_id=0, **sizes
        )
        native.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
        randomised(AutoModelForCausalLM.from_config(native)).save_pretrained(tmp_path / "base")
        config = extendable.configure(
            extendable.read(tmp_path / "base"),
            rope_parameters=rope_parameters,
            max_position_embeddings=LENGTH,
        )
        model = extendable.load(tmp_path / "base", config)
        record = TrainedRecord(base=str(tmp_path / "base"), method="yarn", names=())
        save_trained(tmp_path / "trained", model, record, AutoTokenizer.from_pretrained(base))
        return tmp_path / "trained"

    return make


def found(path):
    parser = argparse.ArgumentParser()
    arguments.add_model(parser)
    return models.find(parser.parse_args([str(path)]))


def evaluated(path, ids):
    """Mean loss of a text, as ``evaluate`` computes it."""
    model = found(path).load()
    with models.used_at(model, LENGTH):
        return score_spans(model, ids, LENGTH).mean


def served(path, ids):
    """Log-probabilities of a text's tokens from the second on, as ``serve`` answers."""
    from starlette.testclient import TestClient

    from tape_ds.serving.app import application
    from tape_ds.serving.served import Served

    model = found(path).load()
    asked = {
        "model": "tiny",
        "prompt": ids[0].tolist(),
        "max_tokens": 0,
        "echo": True,
        "logprobs": 1,
    }
    with models.used_at(model, LENGTH):
        app = application(Served(model, found(path).tokenizer(), "tiny", LENGTH))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            answer = client.post("/v1/completions", json=asked).json()
    return torch.tensor(answer["choices"][0]["logprobs"]["token_logprobs"][1:])


@pytest.mark.parametrize(("encoding", "scaling"), CASES)
def test_what_leaves_computes_what_was_trained(made, tmp_path, encoding, scaling):
    """1e-4: transformers takes its angles in fp32 where ours are fp64 and rounded once."""
    trained = made(encoding, (PLAIN | OWN_CODE)[scaling])
    source = source_model.find(str(trained))
    out = tmp_path / "out"
    folder.write(source, out, "tiny")
    is_plain = encoding != "tape" and scaling in PLAIN
    assert folder.is_plain(source) is is_plain is not bool(list(out.glob("*.py")))
    ids = tokens(1, LENGTH - 8)

    model = source.whole().fill(torch.float32)
    with models.used_at(model, LENGTH), torch.no_grad():
        expected = model(ids).logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
    if is_plain:
        outside = AutoModelForCausalLM.from_pretrained(out).eval()
        with torch.no_grad():
            logits = outside(ids).logits
        computed = logits.log_softmax(-1)[0, :-1].gather(-1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(computed, expected, rtol=0, atol=1e-4)
    for path in (trained, out):
        torch.testing.assert_close(served(path, ids), expected, rtol=0, atol=1e-4)
        assert evaluated(path, ids) == pytest.approx(-expected.mean().item(), abs=1e-4)


def test_another_scaling_would_be_noticed(base):
    """The random models compute something else at other angles, by much more than 1e-4."""
    ids = tokens(1, LENGTH - 8)
    model = randomised(extendable.load(base, extendable.configure(extendable.read(base))), seed=5)
    computed = []
    for rope_parameters in PLAIN.values():
        with model.with_rope_parameters(rope_parameters), torch.no_grad():
            computed.append(model(ids).logits.log_softmax(-1))
    differences = [(one - other).abs().max() for one, other in itertools.combinations(computed, 2)]
    assert min(differences) > 2e-3


@pytest.mark.parametrize("scaling", ["yarn, attention_factor", "yarn, truncate"])
def test_what_is_said_twice_is_read_as_said_once(run, tmp_path, scaling):
    """An exported folder is a base again: its RoPE is the one that was trained, without the other words for it."""
    out = tmp_path / "out"
    source = source_model.find(str(run("rope", "norms", PLAIN[scaling], trained=("norm",))))
    folder.write(source, out, "tiny")
    written = AutoConfig.from_pretrained(out).to_dict()
    assert {"mscale", "beta_fast"} & written["rope_parameters"].keys(), "said in other words, too"
    read = trained_rope.read(written, "out").parameters
    bounds = {} if "attention" in scaling else {"beta_fast": 32.0, "beta_slow": 1.0}
    assert read == {**PLAIN[scaling], **bounds}
