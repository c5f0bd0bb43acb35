"""Put a trained text decoder back into the model with pictures or sound that it was taken from.

The written folder is the original but for what was trained: its other tensors have the same bytes in the same files,
its ``config.json`` has other values only where the decoder's changed, and the files of its processor are copied.
:mod:`tape_ds.models.loading.wrapper` takes the decoder out.
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from tape_ds import storage
from tape_ds.errors import Problem, UserError
from tape_ds.models import writing
from tape_ds.models.files import weight_files
from tape_ds.models.files.hub import CONFIG
from tape_ds.models.files.tensor_rows import StoredRows, pieces
from tape_ds.models.loading import wrapper

CARD = "README.md"
TOKENIZER_SETTINGS = "tokenizer_config.json"
_NOT_THE_DECODER: tuple[str, ...] = ("_name_or_path", "architectures", "dtype", "torch_dtype")
_NOT_THE_DECODER += ("transformers_version", "use_cache", "tie_word_embeddings")
"""Fields of a config.json that belong to the folder that it is in."""


def check(original: Path) -> list[Problem]:
    """Check that a model's decoder can be put back: that its weights are safetensors."""
    others = [file.name for file in weight_files.files(original) if file.suffix != ".safetensors"]
    if not others:
        return []
    wrong = (
        f"the model around the decoder has its weights in {others[0]}, and safetensors are written"
    )
    remedy = "give --text_only, which exports the decoder alone"
    return [Problem("source", str(original), wrong, remedy)]


def widest_dtype(original: Path) -> torch.dtype:
    """Return the dtype that holds every number of the decoder's tensors as they are stored."""
    stored = StoredRows(weight_files.files(original))
    widest = torch.float16
    for number, name in enumerate(_decoder_names(original)):
        dtype = stored.dtype(name)
        widest = torch.promote_types(widest, dtype) if number else dtype
    return widest


def write(decoder: Path, original: Path, folder: Path) -> None:
    """Write ``folder``: the model of the folder ``original`` with the weights and positions of ``decoder``.

    ``decoder`` is a plain folder with the same tensors, in :func:`widest_dtype`. Its model card is taken.
    """
    folder.mkdir()
    _write_weights(decoder, original, folder)
    config = _changed_config(decoder, original)
    storage.write_text(folder / CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    made = {CONFIG, CARD, *(file.name for file in weight_files.files(original))}
    for file in sorted(original.iterdir()):
        if file.is_file() and file.name not in made:
            shutil.copy(file, folder)
    _write_length(folder, config)
    shutil.copy(decoder / CARD, folder)


def _decoder_names(original: Path) -> dict[str, str]:
    """Return tensor of ``original`` -> tensor of the decoder alone."""
    stored = StoredRows(weight_files.files(original))
    shapes = {name: stored.shape(name) for name in stored.names()}
    return wrapper.decoder_names(shapes, _text_config(original), str(original))


def _text_config(original: Path) -> PreTrainedConfig:
    whole = wrapper.read(original)
    assert whole is not None, "checked by the caller"
    text = wrapper.text_config(whole)
    assert text is not None
    return text


def _write_weights(decoder: Path, original: Path, folder: Path) -> None:
    names = _decoder_names(original)
    trained = StoredRows(weight_files.files(decoder))
    known = set(trained.names())
    if _text_config(original).tie_word_embeddings:
        # a tied head is stored again in some files
        (embedding,) = {own for own in names.values() if own.endswith(wrapper.EMBEDDING)}
        for name, own in names.items():
            if own not in known and own.endswith(wrapper.HEAD):
                names[name] = embedding
    lost = known.symmetric_difference(names.values())
    if lost:
        wrong = f"its tensors are not those of {original}: {', '.join(sorted(lost)[:5])}"
        remedy = "give --text_only, which exports the decoder alone"
        raise UserError(Problem("source", str(decoder), wrong, remedy))

    for file in weight_files.files(original):
        stored = StoredRows([file])
        forms = {}
        for name in stored.names():
            shape = stored.shape(name)
            if name in names:
                shape = trained.shape(names[name])
            forms[name] = torch.empty(shape, dtype=stored.dtype(name), device="meta")
        with writing.ShardFiles(folder, {file.name: list(forms)}, forms) as shards:
            for name, form in forms.items():
                if name in names:
                    shards.write(name, _cast(pieces(trained, names[name]), form.dtype))
                else:
                    shards.write(name, pieces(stored, name))


def _cast(rows: Iterable[Tensor], dtype: torch.dtype) -> Iterator[Tensor]:
    for piece in rows:
        yield piece.to(dtype)


def _changed_config(decoder: Path, original: Path) -> dict[str, Any]:
    """Return the original's ``config.json`` with the fields that differ between its decoder and ``decoder``."""
    config: dict[str, Any] = json.loads((original / CONFIG).read_text(encoding="utf-8"))
    now = json.loads((decoder / CONFIG).read_text(encoding="utf-8"))
    before = json.loads(_text_config(original).to_json_string(use_diff=False))
    changed = config[wrapper.TEXT]
    for name, value in now.items():
        if name in _NOT_THE_DECODER or before.get(name) == value:
            continue
        changed[name] = value
    return config


def _write_length(folder: Path, config: Mapping[str, Any]) -> None:
    """Make a tokenizer that names the length before the extension name the one after."""
    file = folder / TOKENIZER_SETTINGS
    length = config[wrapper.TEXT].get("max_position_embeddings")
    if length is None or not file.is_file():
        return
    settings = json.loads(file.read_text(encoding="utf-8"))
    if settings.get("model_max_length", length) < length:
        settings["model_max_length"] = length
        text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
        storage.write_text(file, text)
