"""Write the exported folder: weights, configuration, tokenizer, model card, and the model's code if transformers has
none.

Plain if that is exact: a model with rotary encoding and RoPE scaling that transformers computes becomes a Llama (or
Qwen2) folder, and one that was extended in transformers' class a folder of that class. Every other model carries its
code (:mod:`tape_ds.export.model_code`), which ``trust_remote_code=True`` runs. The folder is complete or absent.
"""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

import tape_ds
from tape_ds import building, encodings, results
from tape_ds.checkpoint.source_model import SourceModel
from tape_ds.data import tokenizer as tokenizers
from tape_ds.export import card, model_code
from tape_ds.models import convert, saving
from tape_ds.models.loading import extendable
from tape_ds.models.loading.hub import CONFIG
from tape_ds.registration import TYPES

HEADER = """# {{module}} of tape_ds {version} ({commit}), its imports changed to files of this folder, without what
# needs more than torch, transformers and numpy. Modules that docstrings refer to are those of tape_ds.
#
# Licensed under the Apache License, Version 2.0; you may not use this file except in compliance with the License, which
# is at http://www.apache.org/licenses/LICENSE-2.0. Distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF
# ANY KIND, either express or implied.
"""


def is_plain(source: SourceModel) -> bool:
    """Return whether transformers itself computes this model exactly."""
    config = source.config
    if extendable.by_own_class(config):
        return config.model_type not in TYPES
    return encodings.llama_rope_parameters(config) is not None


def write(source: SourceModel, out: Path, wishes: card.Wishes, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Write the folder ``out``, which must not exist; return the model as it was written, by default in the base
    model's dtype."""
    assert not out.exists(), "checked by the caller"
    plain = is_plain(source)
    config: Any = source.config
    own_class = extendable.by_own_class(config)
    code = {} if plain else code_files(config.model_type, getattr(config, "position_encoding", "rope"))

    model: Any = source.load().to(dtype or source.dtype)
    model.config.use_cache = True  # it is there to generate
    if not plain:
        model.config.auto_map = model_code.auto_map(config.model_type)
        if getattr(model.config, "attention_backend", "auto") not in ("auto", *model_code.BACKENDS):
            model.config.attention_backend = "auto"
    elif not own_class:
        model = convert.to_plain(model)

    def build(folder: Path) -> None:
        saving.save(model, folder)
        _edit_config(folder / CONFIG, plain=plain, own_class=own_class)
        for name, text in code.items():
            (folder / name).write_text(text, encoding="utf-8")
        if source.has_tokenizer:
            tokenizer = tokenizers.load_tokenizer(str(source.folder), "source")
            tokenizer.model_max_length = source.config.max_position_embeddings
            tokenizers.save(tokenizer, folder)
        (folder / "README.md").write_text(card.text(source, model, wishes, plain=plain), encoding="utf-8")

    building.build_aside(out, build, "out")
    return model


def _edit_config(path: Path, *, plain: bool, own_class: bool) -> None:
    if plain and own_class:
        return
    config = json.loads(path.read_text(encoding="utf-8"))
    if plain:
        # transformers 4 and converters made for it (older ones of llama.cpp and vLLM) read these names; transformers 5
        # reads both
        scaling = dict(config["rope_parameters"])
        config["rope_theta"] = scaling.pop("rope_theta")
        config["rope_scaling"] = None if scaling["rope_type"] == "default" else scaling
    else:
        # `transformers serve` takes the first architecture's class from transformers itself; its auto class is there,
        # and finds the folder's code
        config["architectures"].insert(0, "AutoModelForCausalLM")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def code_files(model_type: str, encoding: str) -> dict[str, str]:
    """Return file name -> source of the code that a model of this type with this encoding carries.

    Raises:
        CopyError: the package's sources changed in a way that the export does not support.
    """
    commit = results.commit()
    origin = "not from a checkout" if commit is None else card.commit_words(commit)
    header = HEADER.format(version=tape_ds.__version__, commit=origin)
    return model_code.files(model_type, encoding, header)
