"""The exported code of every encoding: computes what the package computes, and needs nothing of it."""

import ast
import functools
import importlib
import sys

import pytest
import torch

from tape_ds import encodings
from tape_ds.export import model_code
from tape_ds.export.model_code import CopyError
from tape_ds.models.gptj import ScaledGPTJConfig, ScaledGPTJForCausalLM
from tests.models.helpers import ENCODINGS, VOCABULARY, randomised, tiny_model, tokens

_IDENTITY = ("model_type", "architectures", "transformers_version")
MAY_NEED = {"torch", "transformers", "huggingface_hub", "numpy"}
"""What an exported file imports, the standard library left out."""


def needed(text):
    """Packages that a source imports anywhere, the standard library's left out."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names)


@functools.cache
def code(encoding, model_type="tape"):
    """The files of an export, made once."""
    return model_code.files(model_type, encoding, "commit 0123456789ab")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The module with the model's class, of an encoding, imported once in a package."""
    folder = tmp_path_factory.mktemp("code")
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(folder)

        def of(encoding, model_type="tape"):
            package = folder / f"exported_{encoding}_{model_type}"
            if not package.is_dir():
                package.mkdir()
                for name, text in code(encoding, model_type).items():
                    (package / name).write_text(text, encoding="utf-8")
            return importlib.import_module(f"{package.name}.modeling_tape")

        yield of
    for name in [name for name in sys.modules if name.startswith("exported_")]:
        del sys.modules[name]


def twin(module, model):
    """The exported model with the configuration and weights of ``model``."""
    fields = {
        name: value for name, value in model.config.to_dict().items() if name not in _IDENTITY
    }
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
    assert (
        wanted.tolist()
        == other.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False).tolist()
    )
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


def test_a_gptj_with_scaled_angles_is_exported(exported):
    """The other model type: no Llama, one encoding, its own classes."""
    rope_parameters = {"rope_type": "ntk", "rope_theta": 1e4, "factor": 2.0}
    sizes = {
        "n_embd": 32,
        "n_head": 4,
        "n_layer": 2,
        "rotary_dim": 4,
        "vocab_size": VOCABULARY,
        "n_positions": 64,
    }
    config = ScaledGPTJConfig(
        **sizes, rope_parameters=rope_parameters, bos_token_id=1, eos_token_id=2
    )
    model = ScaledGPTJForCausalLM(config).eval()
    module = exported("rope", "tape_gptj")
    fields = {name: value for name, value in config.to_dict().items() if name not in _IDENTITY}
    other = module.ScaledGPTJForCausalLM(module.ScaledGPTJConfig(**fields)).eval()
    other.load_state_dict(model.state_dict())
    ids = tokens(2, 9)
    with torch.no_grad():
        assert torch.equal(other(ids).logits, model(ids).logits) and bool(other(ids).logits.any())
    assert set().union(*map(needed, code("rope", "tape_gptj").values())) <= MAY_NEED


@pytest.mark.parametrize("encoding", encodings.available())
def test_it_needs_torch_and_transformers_alone(encoding):
    files = code(encoding)
    assert "torch" in set().union(*map(needed, files.values())) <= MAY_NEED
    whole = "".join(files.values())
    assert '"tape_ds::' not in whole, "an operator of the package would be replaced by the export's"
    assert all("Apache License, Version 2.0" in text for text in files.values())


@pytest.mark.parametrize("encoding", ["tape", "nope"])
def test_what_is_not_needed_stays_at_home(encoding):
    """Other encodings, backends that need more than torch, Triton's kernels, the counting of operations."""
    assert "encodings_fire.py" in code("fire") and "encodings_fire.py" not in code(encoding)
    away = ("triton", "flop", "flash", "tape_attention", "option_types")
    assert not [name for name in code(encoding) if any(word in name for word in away)]


@pytest.mark.parametrize(
    "model_type, encoding", [("tape", "tape"), ("tape", "t5"), ("tape_gptj", "rope")]
)
def test_transformers_finds_every_file_from_those_that_the_configuration_names(
    model_type, encoding, tmp_path
):
    """It looks for lines ``from .name import``, in files of one folder, and copies what it finds, no more."""
    from transformers.dynamic_module_utils import get_relative_import_files

    for name, text in code(encoding, model_type).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    named = {value.split(".")[0] for value in model_code.auto_map(model_type).values()}
    assert named == (
        {"modeling_tape"} if model_type == "tape_gptj" else {"modeling_tape", "configuration_tape"}
    )
    model = str(tmp_path / "modeling_tape.py")
    assert {model, *get_relative_import_files(model)} == {str(path) for path in tmp_path.iterdir()}


def test_two_exports_do_not_share_operators(exported):
    """The operators of one folder are not replaced by another folder's: both still compute, in any order."""
    first, _ = exported("tape"), exported("rope")
    assert "exported_tape_tape.export_substitutes" in sys.modules
    model = randomised(twin(first, tiny_model()))
    expected = model(tokens(1, 5)).logits
    namespaces = [f"tape_exported_{name}_tape_export_substitutes" for name in ("tape", "rope")]
    mine, other = (getattr(torch.ops, name).rotate for name in namespaces)
    assert torch.isfinite(expected).all() and mine != other


CHANGED = [
    "tape_ds.attention",
    "tape_ds.encodings.catalogue",
    "tape_ds.encodings.registry",
    "tape_ds.kernels.rotate",
]


@pytest.mark.parametrize("module", CHANGED)
def test_a_source_that_a_change_does_not_fit_is_refused(module):
    with pytest.raises(CopyError):
        model_code.changed(module, 'x = "tape_ds::rotate"\n', "tape")


def test_an_import_that_has_no_relative_form_is_refused():
    with pytest.raises(CopyError, match=r"'import tape_ds\.errors' cannot be written"):
        model_code.relative("tape_ds.x", "import tape_ds.errors\n", {})
