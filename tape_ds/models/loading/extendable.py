"""Read the configuration of a pretrained folder, and make it the model that is extended, of any family.

A Llama-shaped model becomes one of this project; any other decoder of transformers is extended in its own class
(:mod:`tape_ds.models.decoder`). Both have the same forward arguments and ``with_rope_parameters``. Only this file
distinguishes them.
"""

import functools
import logging
from pathlib import Path
from typing import Any, TypeAlias

from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig, PreTrainedConfig

from tape_ds.encodings import trained_rope
from tape_ds.encodings.trained_rope import of_full
from tape_ds.errors import Problem, UserError, is_main_process, raise_if_any
from tape_ds.models import class_frequencies, convert, decoder, decoder_configuration, gptj, hybrids
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.decoder import ExtendedDecoder
from tape_ds.models.files import exact, gguf_header, json_file
from tape_ds.models.files.config_file import BAICHUAN, check_llama_shaped, has_llamas_names
from tape_ds.models.files.hub import CONFIG
from tape_ds.models.files.library_errors import as_message
from tape_ds.models.llama import TapeForCausalLM
from tape_ds.models.loading import baichuan, wrapper
from tape_ds.registration import register

logger = logging.getLogger(__name__)

Config: TypeAlias = TapeConfig | PreTrainedConfig
Model: TypeAlias = TapeForCausalLM | ExtendedDecoder
_OF_TORCH = (None, "eager", "sdpa", "flex_attention")
"""Attention that transformers computes by itself; for other names it looks for code on the hub."""


def read(
    source: str | Path, *, trust_remote_code: bool | None = None, **hub_arguments: Any
) -> PreTrainedConfig:
    """Return the configuration of a folder or hub id; a Baichuan2-7B's is that of the Llama it becomes, a GPT-J's has
    the RoPE parameters that transformers' own lacks, and a model with pictures or sound gives its text decoder's.

    A Llama-shaped model's has the length that its own RoPE scaling reaches as ``max_position_embeddings``, and complete
    ``rope_parameters``, from either published form. ``trust_remote_code``: whether code that comes with it may be run;
    None: no, and the command has no such option.
    """
    register()  # AutoConfig reads folders of this package as well
    if Path(source).is_dir():
        json_file.read(Path(source) / CONFIG, "model", str(source))
    remedy = "give a folder saved by save_pretrained, a hub id that can be reached, or a .gguf file"
    wrong = "no configuration could be read"
    with as_message(wrong, "model", str(source), remedy, trust_remote_code=trust_remote_code):
        content, _ = PreTrainedConfig.get_config_dict(source, **hub_arguments)
        if content.get("model_type") == BAICHUAN:
            return baichuan.llama_config(content, str(source))
        config = AutoConfig.from_pretrained(
            source, trust_remote_code=bool(trust_remote_code), **hub_arguments
        )
    if (text := wrapper.text_config(config)) is not None:
        say_once(
            f"{source}: a {config.model_type}, of which the text decoder is taken ({text.model_type})"
        )
        config = text
        content = text.to_dict()
    config = decoder_configuration.filled_in(gptj.with_rope(config))
    if config.dtype is not None and not getattr(config.dtype, "is_floating_point", False):
        wrong = f"its config.json has dtype = {config.dtype}, and weights are numbers with a point"
        raise UserError(
            Problem("model", str(source), wrong, "write the dtype of its files into config.json")
        )
    if has_llamas_names(config):
        rope = trained_rope.read(content, str(source))
        config.rope_parameters = rope.stated
        config.max_position_embeddings = rope.native_length
    raise_if_any(hybrids.check_null(config, content, str(source)))
    if Path(source).is_dir():
        raise_if_any(exact.check_named_files(source, config))
    _replace_what_cannot_be(config, str(source))
    return config


def gguf_config(file: str | Path) -> PreTrainedConfig:
    """Return the configuration that a GGUF file's header states; UserError for a file that says more than it has
    fields for."""
    path = Path(file)
    header = gguf_header.read(path)
    if header.architecture in gguf_header.ARCHITECTURES:
        content = header.config()
        for note in header.rope()[1]:
            say_once(f"{path}: {note}")
        return AutoConfig.for_model(**content)
    header.require_sizes()
    remedy = "give another GGUF file of a model that transformers knows"
    with as_message("could not be read", "model", str(path), remedy):
        return AutoConfig.from_pretrained(path.parent, gguf_file=path.name)


def read_gguf(file: str | Path) -> PreTrainedConfig:
    """Return what :func:`read` returns of the folder that a GGUF file becomes; nothing is unpacked."""
    config = gguf_config(file)
    if has_llamas_names(config):
        rope = trained_rope.read(config.to_dict(), str(file))
        config.rope_parameters = rope.stated
        config.max_position_embeddings = rope.native_length
    return config


def _replace_what_cannot_be(config: PreTrainedConfig, source: str) -> None:
    """Replace fields that are no part of the model and would stop or change its loading, and say so: a padding token
    without a row (what is padded is neither read nor scored), and attention that transformers would fetch."""
    text = config.get_text_config()
    rows = getattr(text, "vocab_size", None)
    padding = getattr(text, "pad_token_id", None)
    if isinstance(rows, int) and isinstance(padding, int) and not -rows <= padding < rows:
        try:
            config.pad_token_id = None
            text.pad_token_id = None
        except StrictDataclassFieldValidationError as error:
            wrong = f"its pad_token_id {padding:,} has none of the {rows:,} rows, "
            wrong += f"and {type(text).__name__} takes no null"
            remedy = "give pad_token_id in its config.json as a token that no text has"
            raise UserError(Problem("model", source, wrong, remedy)) from error
        say_once(
            f"{source}: pad_token_id {padding:,} has none of the {rows:,} rows: no token is taken for padding"
        )
    attention = config._attn_implementation
    if attention not in _OF_TORCH:
        config._attn_implementation = None
        say_once(
            f"{source}: config.json names the attention {attention}: transformers' own is computed instead"
        )


@functools.cache
def say_once(text: str) -> None:
    if is_main_process():
        logger.warning(text)


def check_weights(source: str | Path, config: PreTrainedConfig) -> None:
    """Raise UserError where the names or shapes of a folder's weights are not those of the model that :func:`load`
    would build; no weight is read."""
    load(source, config, device_map={"": "meta"})


def by_own_class(native: PreTrainedConfig) -> bool:
    """Return whether a model is extended in transformers' own class."""
    return not has_llamas_names(native) or bool(check_llama_shaped(native))


def check(native: PreTrainedConfig) -> list[Problem]:
    """Return why a model is not extended. A class of transformers is built without weights, and must compute what its
    configuration was read as."""
    if not by_own_class(native):
        return []
    return (
        decoder_configuration.check(native)
        or hybrids.check(native)
        or class_frequencies.check(native)
    )


def configure(native: PreTrainedConfig, **changes: Any) -> Config:
    """Return the configuration of the extended model: the native one's sizes, and ``changes`` to its fields."""
    if not by_own_class(native):
        config = convert.tape_config(native, **changes)
        if (kept := getattr(native, wrapper.PLACEHOLDERS, None)) is not None:
            # a second run on the trained model refuses the same data
            setattr(config, wrapper.PLACEHOLDERS, kept)
        return config
    if changes.get("rope_parameters") is not None and not hybrids.rotates(native):
        hybrids.check_unrotated(native, changes.pop("rope_parameters"))
    config = decoder_configuration.configure(native, **changes)
    if rope_parameters := changes.get("rope_parameters"):
        raise_if_any(class_frequencies.check_extended(native, config, of_full(rope_parameters)))
    return config


def load(source: str | Path, config: PreTrainedConfig, **arguments: Any) -> Model:
    """Load a pretrained folder or hub id with ``config`` (of :func:`configure`, or of an extended model's folder);
    arguments go to ``from_pretrained``."""
    if isinstance(config, TapeConfig):
        return convert.load(source, config, **arguments)
    return decoder.load(source, config, **arguments)
