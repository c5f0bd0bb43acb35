"""The text decoder inside a model with pictures or sound, as a separate folder.

Such a model (``Gemma3ForConditionalGeneration``, for example) holds a decoder that transformers also has alone
(``Gemma3ForCausalLM``), and computes the same of text. Its weights are copied under the names of the decoder alone, bit
for bit, so that everything else sees one more decoder. :mod:`tape_ds.export.wrapped` puts a trained one back.
"""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
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
from tape_ds.models.files.config_file import token_ids
from tape_ds.models.files.hub import CONFIG
from tape_ds.models.files.tensor_rows import StoredRows, pieces

TEXT = "text_config"
"""Field of the decoder's configuration."""
EMBEDDING = "embed_tokens.weight"
HEAD = "lm_head.weight"
"""How the names of a decoder's tied tensors end."""
PLACEHOLDERS = "placeholder_token_ids"
"""Field of a decoder's configuration that was taken out of another: tokens that stand for pictures or sound there, by
the name of its own field."""
_OF_TOKENS = re.compile("_(token_(id|ids|index)|start_id|end_id)$")
_OF_TEXT = re.compile("^_?(bos|eos|pad|sep|cls|mask|unk|decoder_start|forced_bos|forced_eos)_")
_READS_AHEAD = {
    "paligemma": "its prompts see their later tokens",
}
"""Wrapped decoders that compute something else of text than the decoder alone does."""
_CHANGES_LOGITS_TOO = ("gemma4", "gemma4_unified")
"""Wrappers that change logits as their decoders do (caps, factors). Others leave that out, such as Cohere2 Vision."""
_KEPT: tuple[str, ...] = ("tokenizer*", "vocab*", "merges.txt", "*.model", "added_tokens.json")
_KEPT += ("special_tokens_map.json", "chat_template*", weight_files.GENERATION)
"""Files of the wrapper's folder that belong to its text."""
_ALONE = "give a folder as its publisher or save_pretrained wrote it"


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
    # the wrapper ties by the field of the whole, not by that of its text part
    text.tie_word_embeddings = bool(
        getattr(whole, "tie_word_embeddings", False) and outer._tied_weights_keys
    )
    text.dtype = text.dtype or whole.dtype
    text.name_or_path = whole.name_or_path
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(text, name, None) is None:
            setattr(text, name, getattr(whole, name, None))
    found = _placeholders(whole, text)
    if found:
        setattr(text, PLACEHOLDERS, found)
    return text


def _placeholders(whole: PreTrainedConfig, text: PreTrainedConfig) -> dict[str, list[int]]:
    of_text = set()
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        of_text |= set(token_ids(getattr(text, name, None)))
    found = {}
    for name, value in whole.to_dict().items():
        if not _OF_TOKENS.search(name) or _OF_TEXT.search(name):
            continue
        # some configurations have tokens that no row is for
        rows = [token for token in token_ids(value) if 0 <= token < text.vocab_size]
        own = [token for token in rows if token not in of_text]
        if own:
            found[name] = own
    return found


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


@dataclass(frozen=True)
class Wrapper:
    """The folder of a model with pictures or sound."""

    folder: Path
    whole: PreTrainedConfig
    text: PreTrainedConfig
    """Configuration of its text decoder."""

    @property
    def class_name(self) -> str:
        """Name of its class in transformers."""
        return MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING[type(self.whole)].__name__

    @cached_property
    def stored(self) -> StoredRows:
        return StoredRows(self.files)

    @property
    def files(self) -> list[Path]:
        """Files of its weights."""
        return weight_files.files(self.folder)

    @cached_property
    def names(self) -> dict[str, str]:
        """Name of each tensor of the decoder -> its name in the decoder alone."""
        shapes = {name: self.stored.shape(name) for name in self.stored.names()}
        return decoder_names(shapes, self.text, str(self.folder))

    @property
    def sources(self) -> list[Path]:
        """Files that :meth:`write_decoder` reads."""
        found = [self.folder / CONFIG, *self.files]
        for pattern in _KEPT:
            found += [file for file in self.folder.glob(pattern) if file.is_file()]
        # two patterns may name one file
        return sorted(set(found))

    def write_decoder(self, folder: Path) -> None:
        """Write the folder of the decoder."""
        raise_if_any(weight_files.check_folder(self.folder))
        folder.mkdir()
        forms = {}
        for name, own in self.names.items():
            dtype = self.stored.dtype(name)
            forms[own] = torch.empty(self.stored.shape(name), dtype=dtype, device="meta")
        with writing.shards_of(folder, forms) as shards:
            for name, own in self.names.items():
                shards.write(own, pieces(self.stored, name))
        self.text.save_pretrained(folder)
        for file in set(self.sources) - {self.folder / CONFIG, *self.files}:
            shutil.copy(file, folder)


def find(folder: str | Path) -> Wrapper | None:
    """Return the model of a folder whose text decoder is taken; None for any other."""
    try:
        # without a question on the terminal whether the folder's own code may run
        whole = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (ValueError, OSError, TypeError, KeyError):
        return None  # reading it as a model reports what is wrong
    text = text_config(whole)
    if text is None:
        return None
    return Wrapper(Path(folder), whole, text)
