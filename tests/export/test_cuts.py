"""The exported code of every encoding: computes what the package computes, needs nothing of it, and can be read."""

import ast
import functools
import importlib.util
import sys

import pytest
import torch

from tape_ds.export import cuts
from tape_ds.export.folder import model_code
from tape_ds.export.modules import BundleError
from tape_ds.model import positions
from tape_ds.model.gptj import ScaledGPTJForCausalLM
from tape_ds.model.gptj_configuration import ScaledGPTJConfig
from tests.model.helpers import ENCODINGS, VOCABULARY, randomised, tiny_config, tiny_model, tokens

_IDENTITY = ("model_type", "architectures", "transformers_version")
MAY_NEED = {"torch", "transformers", "huggingface_hub", "numpy"}
"""What an exported file imports beside the standard library."""


def needed(text):
    """Packages that a source imports anywhere, the standard library's left out."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names)


@functools.cache
def code(encoding, model_type="tape"):
    """The source of an export, generated once."""
    return model_code(model_type, encoding)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The generated module of an encoding, imported once under a name of its own."""
    folder, made = tmp_path_factory.mktemp("code"), {}

    def of(encoding, model_type="tape"):
        if (key := encoding if model_type == "tape" else model_type) not in made:
            path = folder / f"exported_{key}.py"
            path.write_text(code(encoding, model_type), encoding="utf-8")
            spec = importlib.util.spec_from_file_location(path.stem, path)
            made[key] = importlib.util.module_from_spec(spec)
            sys.modules[path.stem] = made[key]
            spec.loader.exec_module(made[key])
        return made[key]

    yield of
    for key in made:
        del sys.modules[f"exported_{key}"]


def twin(module, model):
    """The exported model with the configuration and weights of ``model``."""
    fields = {name: value for name, value in model.config.to_dict().items() if name not in _IDENTITY}
    other = module.TapeForCausalLM(module.TapeConfig(**fields))
    other.load_state_dict(model.state_dict())
    return other.train(model.training)


@pytest.mark.parametrize("name", ENCODINGS)
def test_logits_are_the_packages_bit_for_bit(exported, name):
    model = tiny_model("gqa", name)
    other = twin(exported(model.config.position_encoding), model)
    ids = tokens(2, 20)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with torch.no_grad():
        for arguments in ({}, {"attention_mask": mask}):
            assert torch.equal(other(ids, **arguments).logits, model(ids, **arguments).logits)


@pytest.mark.parametrize("name", ["tape", "t5", "rope dynamic"])
def test_it_generates_what_the_package_generates(exported, name):
    model = tiny_model("gqa", name)
    other = twin(exported(model.config.position_encoding), model)
    ids = tokens(2, 9)
    wanted = model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert wanted.tolist() == other.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False).tolist()
    assert wanted.shape == (2, 17)


@pytest.mark.parametrize("name", ["tape", "fire"])
def test_it_can_be_trained(exported, name):
    """Loss and gradients: the operators' backward passes are exported too."""
    model = tiny_model("gqa", name).train()
    other = twin(exported(model.config.position_encoding), model)
    ids = tokens(2, 12)
    for each in (model, other):
        each(ids, labels=ids).loss.backward()
    for (key, mine), theirs in zip(other.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.grad, theirs.grad) and bool(mine.grad.any()), key


def test_the_reference_backend_gives_weights(exported):
    model = tiny_model(attention_backend="reference")
    other = twin(exported("tape"), model)
    ids = tokens(1, 7)
    mine, theirs = (each(ids, output_attentions=True).attentions for each in (other, model))
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)) and mine[0].shape == (1, 4, 7, 7)


def test_a_gptj_with_scaled_angles_is_exported(exported):
    """The other model type: no Llama, one encoding, its own classes."""
    angles = {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}
    sizes = {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4, "vocab_size": VOCABULARY, "n_positions": 64}
    still = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    config = ScaledGPTJConfig(**sizes, **still, rope_parameters=angles, bos_token_id=1, eos_token_id=2)
    model = ScaledGPTJForCausalLM(config).eval()
    module = exported("rope", "tape_gptj")
    fields = {name: value for name, value in config.to_dict().items() if name not in _IDENTITY}
    other = module.ScaledGPTJForCausalLM(module.ScaledGPTJConfig(**fields)).eval()
    other.load_state_dict(model.state_dict())
    ids = tokens(2, 9)
    with torch.no_grad():
        assert torch.equal(other(ids).logits, model(ids).logits) and bool(other(ids).logits.any())
    assert not hasattr(module, "TapeForCausalLM") and needed(code("rope", "tape_gptj")) <= MAY_NEED
    wanted = model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)
    assert wanted.tolist() == other.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False).tolist()


@pytest.mark.parametrize("encoding", positions.available())
def test_it_needs_torch_and_transformers_alone_and_keeps_its_words(encoding):
    text = code(encoding)
    tree = ast.parse(text)
    assert "torch" in needed(text) <= MAY_NEED
    public = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and not n.name.startswith("_")]
    assert len(public) > 40 and all(ast.get_docstring(node) for node in public)
    assert '"tape_ds::' not in text, "an operator of the package would be replaced by the export's"
    assert "Apache License, Version 2.0" in text and "the MLP's output before it joins the residual" in text


def test_a_foreign_backend_is_refused_by_name(exported):
    with pytest.raises(ValueError, match=r"attention_backend = 'triton': unknown backend"):
        exported("tape").TapeConfig(**{**tiny_config().to_dict(), "attention_backend": "triton"})


def test_another_encoding_is_refused_by_name(exported):
    with pytest.raises(ValueError, match=r"position_encoding = 'alibi': unknown encoding"):
        exported("tape").TapeConfig(**{**tiny_config().to_dict(), "position_encoding": "alibi"})


def test_two_exports_do_not_share_operators(exported):
    """The operators of one module are not replaced by another module's: both still compute, in any order."""
    first, second = exported("tape"), exported("rope")
    assert first.NAMESPACE == "tape_exported_tape" and second.NAMESPACE == "tape_exported_rope"
    model = randomised(twin(first, tiny_model()))
    expected = model(tokens(1, 5)).logits
    assert torch.isfinite(expected).all() and torch.ops.tape_exported_tape.rotate != torch.ops.tape_exported_rope.rotate


@pytest.mark.parametrize("position", range(len(cuts.cuts("tape"))))
def test_every_cut_says_why_and_refuses_a_source_it_does_not_fit(position):
    cut = cuts.cuts("tape")[position]
    assert cut.why
    with pytest.raises(BundleError, match=cut.module):
        cut.apply("x = 1\n")


def test_an_unknown_encoding_is_refused():
    with pytest.raises(BundleError, match="_OPTIONS has no ropee"):
        cuts.model_bundle("tape", "ropee")
