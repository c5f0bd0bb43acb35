"""Put a trained text decoder back into the model with pictures or sound that it was taken from.

The written folder is the original but for what was trained: its other tensors have the same bytes in the same files,
its ``config.json`` has other values only where the decoder's changed, and the files of its processor are copied.
:mod:`tape_ds.models.loading.wrapper` takes the decoder out.
"""

import functools
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig

from tape_ds import storage
from tape_ds.checkpoint.source_model import TOKENIZER
from tape_ds.data import tokenizer as tokenizers
from tape_ds.errors import Problem, UserError, collecting, raise_if_any
from tape_ds.export.card import CARD
from tape_ds.models import writing
from tape_ds.models.files import exact, json_file, weight_files
from tape_ds.models.files.config_file import token_ids
from tape_ds.models.files.hub import CONFIG
from tape_ds.models.files.tensor_rows import StoredRows, pieces
from tape_ds.models.loading import wrapper
from tape_ds.models.loading.wrapper import Wrapper
from tape_ds.numbers import some

_ALONE = "give --text_only, which exports the decoder alone"
_NOT_THE_DECODER: tuple[str, ...] = ("_name_or_path", "architectures", "dtype", "torch_dtype")
_NOT_THE_DECODER += ("transformers_version", "use_cache", "tie_word_embeddings")
# transformers' trainer replaces them by those of the tokenizer
_NOT_THE_DECODER += ("bos_token_id", "eos_token_id", "pad_token_id")
"""Fields of a config.json that belong to the folder that it is in."""
_ENDS = "eos_token_id"
_TEMPLATE = "chat_template"
_OLDER_ROPE = ("rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")
"""Fields that had RoPE's parameters before transformers 5."""
_WEIGHTS = re.compile(
    r"\.(safetensors|bin|pth?|gguf|onnx|msgpack|h5)(\.index\.json)?$|^params\.json$"
)
"""Names of files of weights, and of Mistral's own description of them."""


def check(whole: Wrapper) -> list[Problem]:
    """Check that a model's decoder can be put back: its weights are safetensors, its tokenizer's settings readable."""
    problems = []
    others = [file.name for file in whole.files if file.suffix != ".safetensors"]
    if others:
        wrong = f"the model around the decoder has its weights in {others[0]}, and safetensors are written"
        problems.append(Problem("source", str(whole.folder), wrong, _ALONE))
    with collecting(problems):
        _settings(whole.folder, TOKENIZER)
    return problems


def other_weights(whole: Wrapper) -> list[Path]:
    """Return files of the folder that hold the weights in another form: they are not trained, and not copied."""
    read = {*whole.files, whole.folder / f"{weight_files.WHOLE}.index.json"}
    found = []
    for file in sorted(whole.folder.iterdir()):
        if file.is_file() and file not in read and _WEIGHTS.search(file.name):
            found.append(file)
    return found


def widest_dtype(whole: Wrapper) -> torch.dtype:
    """Return the dtype that holds every number of the decoder's tensors as they are stored."""
    dtypes = [whole.stored.dtype(name) for name in whole.names]
    return functools.reduce(torch.promote_types, dtypes)


def write(decoder: Path, whole: Wrapper, folder: Path) -> None:
    """Write ``folder``: the model ``whole`` with the weights and positions of ``decoder``.

    ``decoder`` is a plain folder with the same tensors, in :func:`widest_dtype`. Its model card is taken.
    """
    folder.mkdir()
    config = _changed_config(decoder, whole)
    storage.write_json(folder / CONFIG, config)
    _require_same_rope(decoder, folder)
    _write_weights(decoder, whole, folder)
    made = {whole.folder / CONFIG, whole.folder / CARD, *whole.files, *other_weights(whole)}
    for file in sorted(whole.folder.iterdir()):
        if file.is_file() and file not in made:
            shutil.copy(file, folder)
    _write_length(folder, config)
    _write_ends(decoder, folder)
    _write_template(decoder, folder)
    shutil.copy(decoder / CARD, folder)


def _write_weights(decoder: Path, whole: Wrapper, folder: Path) -> None:
    names = dict(whole.names)
    trained = StoredRows(weight_files.files(decoder))
    known = set(trained.names())
    if whole.text.tie_word_embeddings:
        # a tied head is stored again in some files
        (embedding,) = {own for own in names.values() if own.endswith(wrapper.EMBEDDING)}
        for name, own in names.items():
            if own not in known and own.endswith(wrapper.HEAD):
                names[name] = embedding
    lost = known.symmetric_difference(names.values())
    if lost:
        others = f"its tensors are not those of {whole.folder}: {some(sorted(lost), 5)}"
        raise UserError(Problem("source", str(decoder), others, _ALONE))

    wrong: set[str] = set()
    for file in whole.files:
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
                    shards.write(name, _cast(pieces(trained, names[name]), form.dtype, name, wrong))
                else:
                    shards.write(name, pieces(stored, name))
    raise_if_any(exact.not_finite_weights(sorted(wrong), "source", str(decoder)))


def _cast(
    rows: Iterable[Tensor], dtype: torch.dtype, name: str, wrong: set[str]
) -> Iterator[Tensor]:
    """Add ``name`` to ``wrong`` where a number is too large for ``dtype``."""
    for piece in rows:
        narrow = piece.to(dtype)
        if not exact.is_finite(narrow):
            wrong.add(name)
        yield narrow


def _changed_config(decoder: Path, whole: Wrapper) -> dict[str, Any]:
    """Return the whole model's ``config.json`` with the fields that differ between its decoder and ``decoder``."""
    config: dict[str, Any] = json.loads((whole.folder / CONFIG).read_text(encoding="utf-8"))
    now = json.loads((decoder / CONFIG).read_text(encoding="utf-8"))
    before = json.loads(whole.text.to_json_string(use_diff=False))
    changed = config[wrapper.TEXT]
    for name, value in now.items():
        if name in _NOT_THE_DECODER or before.get(name) == value:
            continue
        changed[name] = value
    if now.get("rope_parameters") != before.get("rope_parameters"):
        # where published files have them besides, transformers reads these too
        for name in _OLDER_ROPE:
            if name not in now:
                changed.pop(name, None)
    return config


def _require_same_rope(decoder: Path, folder: Path) -> None:
    """Raise UserError where transformers reads other RoPE parameters of the written configuration than of the
    decoder's."""
    wanted = AutoConfig.from_pretrained(decoder).rope_parameters
    whole = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    read = whole.text_config.rope_parameters
    if read != wanted:
        wrong = f"in the model around the decoder transformers reads {read} for {wanted}"
        raise UserError(Problem("source", str(decoder), wrong, _ALONE))


def _settings(folder: Path, name: str) -> dict[str, Any]:
    """Return the content of a JSON file of a folder, which need not be there."""
    file = folder / name
    if not file.is_file():
        return {}
    return json_file.read(file, "source", str(folder))


def _write_length(folder: Path, config: Mapping[str, Any]) -> None:
    """Make a tokenizer that names the length before the extension name the one after."""
    settings = _settings(folder, TOKENIZER)
    length = config[wrapper.TEXT].get("max_position_embeddings")
    if length is not None and settings and settings.get("model_max_length", length) < length:
        settings["model_max_length"] = length
        storage.write_json(folder / TOKENIZER, settings)


def _write_ends(decoder: Path, folder: Path) -> None:
    """Add the tokens that end an answer since training, such as those of a chat template, to the folder's."""
    trained = _settings(decoder, weight_files.GENERATION)
    own = _settings(folder, weight_files.GENERATION)
    known = token_ids(own.get(_ENDS))
    missing = [token for token in token_ids(trained.get(_ENDS)) if token not in known]
    if missing:
        own = own or trained
        own[_ENDS] = [*known, *missing]
        storage.write_json(folder / weight_files.GENERATION, own)


def _write_template(decoder: Path, folder: Path) -> None:
    """Give the folder the chat template that was trained with, where it has another."""
    trained = _settings(decoder, TOKENIZER).get(_TEMPLATE)
    if not isinstance(trained, str):
        return
    if tokenizers.load_tokenizer(str(folder), "source").chat_template == trained:
        return
    (folder / f"{_TEMPLATE}.jinja").write_text(trained, encoding="utf-8")
    # the form that processors had before
    (folder / f"{_TEMPLATE}.json").unlink(missing_ok=True)
    settings = _settings(folder, TOKENIZER)
    if _TEMPLATE in settings:
        settings[_TEMPLATE] = trained
        storage.write_json(folder / TOKENIZER, settings)
