"""The text decoder inside a model with pictures or sound, as a folder of its own.

Such a model (``Gemma3ForConditionalGeneration``, for example) holds a decoder that transformers also has alone
(``Gemma3ForCausalLM``), and computes the same of text. Its weights are copied under the names of the decoder alone, bit
for bit, so that everything else sees one more decoder. :mod:`tape_ds.export.wrapped` puts a trained one back.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
)

from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models import writing
from tape_ds.models.decoder_configuration import changes_logits
from tape_ds.models.files import weight_files
from tape_ds.models.files.tensor_rows import StoredRows, pieces

TEXT = "text_config"
"""Field of the decoder's configuration."""
EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
"""How the names of a decoder's tied tensors end."""
_READS_AHEAD = {
    "paligemma": "its prompts see their later tokens",
}
"""Wrapped decoders that compute something else of text than the decoder alone does."""
_CHANGES_LOGITS_TOO = ("gemma4", "gemma4_unified")
"""Wrappers that change logits as their decoders do (caps, factors). Others leave that out, such as Cohere2 Vision."""
KEPT: tuple[str, ...] = ("tokenizer*", "vocab*", "merges.txt", "*.model", "special_tokens_map.json")
KEPT += ("added_tokens.json", "chat_template*", weight_files.GENERATION)
"""Files of the wrapper's folder that belong to its text."""
_ALONE = "give a folder as its publisher or save_pretrained wrote it"


def read(folder: Path) -> PreTrainedConfig | None:
    """Return the configuration of the whole model of a folder whose text decoder is taken; None for any other."""
    try:
        whole = AutoConfig.from_pretrained(folder)
    except (ValueError, OSError, TypeError, KeyError):
        return None  # reading it as a model reports what is wrong
    if text_config(whole) is None:
        return None
    return whole


def text_config(whole: PreTrainedConfig) -> PreTrainedConfig | None:
    """Return the configuration of the decoder inside a model; None for a model that has none of transformers' own
    decoders, or is one."""
    if TEXT not in whole.sub_configs or whole.model_type in _READS_AHEAD:
        return None
    text = whole.text_config
    decoder = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(text), None)
    outer = MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(whole), None)
    if decoder is None or outer is None or getattr(whole, "quantization_config", None) is not None:
        return None
    if getattr(text, "rope_parameters", None) is None:
        return None
    if changes_logits(text) and whole.model_type not in _CHANGES_LOGITS_TOO:
        return None
    text.architectures = [decoder.__name__]
    # the wrapper ties by its own field, whatever its text part says
    text.tie_word_embeddings = bool(
        getattr(whole, "tie_word_embeddings", False) and outer._tied_weights_keys
    )
    text.dtype = text.dtype or whole.dtype
    text.name_or_path = whole.name_or_path
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(text, name, None) is None:
            setattr(text, name, getattr(whole, name, None))
    return text


def decoder_names(
    stored: Mapping[str, tuple[int, ...]], text: PreTrainedConfig, source: str
) -> dict[str, str]:
    """Return name in the wrapper's files -> name in the decoder's, of every tensor of the decoder.

    ``stored``: the wrapper's tensors and their shapes. Published files have either of two forms
    (``language_model.model.layers...``, ``model.language_model.layers...``), so the prefix is looked for.
    """
    with torch.device("meta"):
        decoder = MODEL_FOR_CAUSAL_LM_MAPPING[type(text)](text)
    shapes = {name: tuple(weight.shape) for name, weight in decoder.state_dict().items()}
    body = decoder.base_model_prefix
    rows = f"{body}.{EMBEDDING}"
    if rows not in shapes:
        wrong = f"its text decoder ({text.model_type}) has no {rows}"
        raise UserError(Problem("model", source, wrong, "give the text decoder alone"))
    prefix = _the_one(EMBEDDING, shapes[rows], stored, source).removesuffix(EMBEDDING)

    names = {}
    for name in stored:
        if name.startswith(prefix):
            names[name] = f"{body}.{name.removeprefix(prefix)}"
    # the head is no part of the body: it is the wrapper's own, or its text model's
    if any(name == HEAD or name.endswith(f".{HEAD}") for name in stored):
        names[_the_one(HEAD, shapes[HEAD], stored, source)] = HEAD
    return names


def _the_one(
    end: str, shape: tuple[int, ...], stored: Mapping[str, tuple[int, ...]], source: str
) -> str:
    found = []
    for name, own in stored.items():
        if own == shape and (name == end or name.endswith(f".{end}")):
            found.append(name)
    if len(found) != 1:
        wrong = (
            f"{len(found)} of its tensors may be its text decoder's {end}, of {list(shape)} numbers"
        )
        raise UserError(Problem("model", source, wrong, _ALONE))
    return found[0]


def write_decoder(source: Path, folder: Path) -> None:
    """Write the folder of the decoder inside the model of the folder ``source``."""
    text = text_config(AutoConfig.from_pretrained(source))
    assert text is not None
    raise_if_any(weight_files.check_folder(source))
    files = weight_files.files(source)
    stored = StoredRows(files)
    shapes = {name: stored.shape(name) for name in stored.names()}
    names = decoder_names(shapes, text, str(source))
    folder.mkdir()
    forms = {}
    for name, own in names.items():
        forms[own] = torch.empty(shapes[name], dtype=stored.dtype(name), device="meta")
    with writing.shards_of(folder, forms) as shards:
        for name, own in names.items():
            shards.write(own, pieces(stored, name))
    text.save_pretrained(folder)
    for pattern in KEPT:
        for file in source.glob(pattern):
            if file.is_file():
                shutil.copy(file, folder)
