"""Exported folders where this package is not: an environment with torch and transformers alone, and beside the package.

The runs of training are not needed here: what a method leaves behind is exported in ``tests/export``.
"""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from tape_ds.cli import export
from tape_ds.models.loading import extendable
from tests.integration import clean_environment
from tests.integration.conftest import ROOT
from tests.models.helpers import randomised, rounding

FORMS = {
    "own code": {"position_encoding": "tape"},
    "plain": {"position_encoding": "rope"},
}
ANGLES = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 2.0,
    "original_max_position_embeddings": 64,
}

LOAD = """
import json, sys
sys.dont_write_bytecode = True
from importlib.util import find_spec
absent = ("tape_ds", "triton", "peft", "deepspeed", "accelerate", "liger_kernel", "flash_attn", "datasets")
assert not [name for name in absent if find_spec(name)], "not a clean environment"
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
from transformers.cli.serving.model_manager import ModelManager
found = {}
for folder in sys.argv[2:]:
    trust = {"trust_remote_code": True} if "own code" in folder else {}
    model = AutoModelForCausalLM.from_pretrained(folder, **trust).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, **trust)
    stored = load_file(sys.argv[1])
    ids = stored["ids"]
    with torch.no_grad():
        logits = model(ids).logits
        cached = model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False)
        full = model.generate(ids, max_new_tokens=8, min_new_tokens=8, do_sample=False, use_cache=False)
        mask = torch.ones_like(ids)
        padded, padded_mask = (torch.nn.functional.pad(x, (3, 0), value=0) for x in (ids, mask))
        left = model(padded, attention_mask=padded_mask).logits[:, 3:]
    model.save_pretrained(folder + " again")
    again = AutoModelForCausalLM.from_pretrained(folder + " again", **trust).eval()
    with torch.no_grad():
        difference = (again(ids).logits - logits).abs().max().item()
    found[folder] = {
        "class": type(model).__name__,
        "difference": (logits - stored[folder.rsplit("/")[-1]]).abs().max().item(),
        "rounding": stored["rounding"].item(),
        "left": (left - logits).abs().max().item(),
        "again": difference,
        "cached": cached.tolist(),
        "full": full.tolist(),
        "length": tokenizer.model_max_length,
    }
    asked = pipeline("text-generation", folder, **trust)("Once upon", max_new_tokens=4, do_sample=False)
    found[folder]["pipeline"] = asked[0]["generated_text"]
    # what transformers serve does with a request's model; its web server is another package
    manager = ModelManager(**trust)
    manager.device = None  # a device_map, and any device is one, takes accelerate
    served = manager._load_model(folder + "@main").eval()
    with torch.no_grad():
        found[folder]["served"] = (served(ids).logits - logits).abs().max().item()
    snippet = open(folder + "/README.md").read().split("```python\\n")[1].split("```")[0]
    exec(snippet, {})  # names the folder, which lies in the working directory
print("\\nFOUND" + json.dumps(found))
"""


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    """A folder with both exports (``own code``, ``plain``) and ``expected.safetensors``: token ids, each model's logits
    as this package computes them, and the room that those of ``own code`` need for another order of sums."""
    from tape_ds.models import convert

    folder = tmp_path_factory.mktemp("exported")
    ids = torch.randint(2, 300, (2, 90))
    expected = {"ids": ids}
    for name, changes in FORMS.items():
        config = convert.tape_config(
            extendable.read(tiny / "model"),
            max_position_embeddings=128,
            rope_parameters=ANGLES,
            **changes,
        )
        model = randomised(convert.load(tiny / "model", config))
        with torch.no_grad():
            expected[name] = model(ids).logits
        source = folder / f"source {name}"
        model.save_pretrained(source)
        AutoTokenizer.from_pretrained(tiny / "model").save_pretrained(source)
        assert export.main([str(source), str(folder / name)]) == 0
        if name == "own code":
            expected["rounding"] = torch.tensor(rounding(model, ids))
    save_file(expected, folder / "expected.safetensors")
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The clean environment's."""
    return clean_environment.build(tmp_path_factory.mktemp("clean"))


@pytest.fixture(scope="module")
def found(exported, python, tmp_path_factory):
    """What the clean environment makes of both folders."""
    away = tmp_path_factory.mktemp("away")
    for name in FORMS:
        shutil.copytree(exported / name, away / name)
    folders = [str(away / name) for name in FORMS]
    printed = clean_environment.run(
        python, LOAD, away, str(exported / "expected.safetensors"), *folders
    )
    assert "Do you wish to run the custom code" not in printed, (
        "a snippet of the card made transformers ask"
    )
    assert printed.count("Once upon a time") == len(FORMS), (
        "the snippets of the cards print what they generate"
    )
    return {name: json.loads(printed.partition("FOUND")[2])[str(away / name)] for name in FORMS}


@pytest.mark.parametrize("name", FORMS)
def test_a_clean_environment_loads_it_and_computes_the_same(found, name):
    """Another process may take sums in another order. transformers takes its angles in fp32 where ours are fp64 and
    rounded once: hence 1e-4 for the plain folder. The code travels with the weights: ``save_pretrained`` copies it."""
    own_code, here = name == "own code", found[name]
    assert here["class"] == ("TapeForCausalLM" if own_code else "LlamaForCausalLM")
    assert here["difference"] <= (here["rounding"] if own_code else 1e-4)
    assert here["length"] == 128 and here["again"] == 0.0
    assert torch.tensor(here["cached"]).shape == (2, 98) and here["cached"] == here["full"]
    assert here["left"] <= 1e-4, "padding on the left"
    assert here["served"] == 0.0 and here["pipeline"].startswith("Once upon")


FROM_THE_HUB = """
import sys, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
stored = load_file(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained("somebody/tiny", trust_remote_code=True).eval()
with torch.no_grad():
    assert (model(stored["ids"]).logits - stored["own code"]).abs().max() <= stored["rounding"]
print(type(model).__module__)
"""


@pytest.mark.slow
def test_it_loads_from_the_hub(exported, python, tmp_path):
    """transformers finds and copies the files of the hub's models in another way than those of folders: here from its
    own cache, as a download would have filled it."""
    commit, cached = (
        "c0ffee" * 6 + "beef",
        tmp_path / ".cache/huggingface/hub/models--somebody--tiny",
    )
    shutil.copytree(exported / "own code", cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    printed = clean_environment.run(
        python, FROM_THE_HUB, tmp_path, str(exported / "expected.safetensors")
    )
    assert printed.split()[-1] == f"transformers_modules.somebody.tiny.{commit}.modeling_tape"


BESIDE = """
import sys, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
folder, stored = sys.argv[1], load_file(sys.argv[2])
if sys.argv[3] == "before":
    import tape_ds
    tape_ds.register()
exported = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
import tape_ds
own = tape_ds.TapeForCausalLM.from_pretrained(folder).eval()
with torch.no_grad():
    for model in (exported, own, exported):
        assert (model(stored["ids"]).logits - stored["own code"]).abs().max() <= stored["rounding"]
    loss = exported.train()(stored["ids"], labels=stored["ids"]).loss
    assert (loss - own.train()(stored["ids"], labels=stored["ids"]).loss).abs() <= 1e-6
print(type(exported).__module__.split(".")[0], type(own).__module__.split(".")[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("imported", "module"), [("before", "tape_ds"), ("after", "transformers_modules")]
)
def test_it_works_beside_the_package(exported, tmp_path, imported, module):
    """transformers prefers a class that is registered already; otherwise the folder's code runs, and importing the
    package afterwards changes nothing for it: operators have names of their own."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
    }
    arguments = [str(exported / "own code"), str(exported / "expected.safetensors"), imported]
    command = [sys.executable, "-c", BESIDE, *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.split() == [module, "tape_ds"]
