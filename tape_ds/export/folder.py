"""Write the exported folder (weights, configuration, tokenizer, model card, and the model's code if transformers has
none), and upload it.

Plain if that is exact: a model with rotary encoding and RoPE scaling that transformers computes becomes a Llama (or
Qwen2) folder, and one that was extended in transformers' class a folder of that class. Every other model carries its
code (:mod:`tape_ds.export.model_code`), which ``trust_remote_code=True`` runs. The folder is complete or absent.
"""

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HFValidationError, HTTPError
from huggingface_hub.utils import validate_repo_id
from transformers import PreTrainedModel

from tape_ds import building, encodings, results
from tape_ds.checkpoint.source_model import SourceModel
from tape_ds.data import tokenizer as tokenizers
from tape_ds.errors import Problem, UserError
from tape_ds.export import card, config_json, model_code, wrapped
from tape_ds.models import convert
from tape_ds.models.files.hub import CONFIG
from tape_ds.models.loading import extendable
from tape_ds.models.loading.wrapper import Wrapper
from tape_ds.registration import TYPES

_NOT_REACHED = "the hub refused, or was not reached ({})"


def is_plain(source: SourceModel) -> bool:
    """Return whether transformers itself computes this model exactly."""
    config = source.config
    if extendable.by_own_class(config):
        return config.model_type not in TYPES
    return encodings.llama_rope_parameters(config) is not None


def write(
    source: SourceModel,
    out: Path,
    name: str,
    license: str | None = None,
    dtype: torch.dtype | None = None,
    check_logits: bool = False,
    around: Wrapper | None = None,
) -> PreTrainedModel:
    """Write the folder ``out``, which must not exist; return the model as it was written, perhaps without its weights.

    Args:
        name, license: for the model card, see :func:`tape_ds.export.card.text`.
        dtype: of the weights; default: the base model's.
        check_logits: see :class:`tape_ds.checkpoint.adapted_weights.AdaptedWeights`.
        around: the model with pictures into which the decoder is put back.
    """
    assert not out.exists(), "checked by the caller"
    plain = is_plain(source)
    config: Any = source.config
    own_class = extendable.by_own_class(config)
    code: dict[str, str] = {}
    if not plain:
        commit = results.commit()
        origin = "not from a checkout" if commit is None else card.commit_words(commit)
        code = model_code.files(
            config.model_type, getattr(config, "position_encoding", "rope"), origin
        )

    def adjust(model: Any) -> Any:
        # it is there to generate
        model.config.use_cache = True
        if plain:
            if own_class:
                return model
            return convert.to_plain(model)
        model.config.auto_map = model_code.auto_map(config.model_type)
        if getattr(model.config, "attention_backend", "auto") not in ("auto", *model_code.BACKENDS):
            model.config.attention_backend = "auto"
        return model

    model: Any = None

    stored = dtype or source.dtype
    if around is not None:
        stored = wrapped.widest_dtype(around)

    def build(folder: Path) -> None:
        if around is None:
            build_alone(folder)
            return
        decoder = folder.with_name("decoder")
        build_alone(decoder)
        wrapped.write(decoder, around, folder)

    def build_alone(folder: Path) -> None:
        nonlocal model
        model = source.whole(check_logits=check_logits).write(folder, stored, adjust)
        written = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        if not plain:
            # `transformers serve` takes the first architecture's class from transformers itself; its auto class is
            # there, and finds the folder's code
            written["architectures"].insert(0, "AutoModelForCausalLM")
        else:
            written = config_json.for_engines(written, type(model.config))
        (folder / CONFIG).write_text(
            json.dumps(written, indent=2, sort_keys=True) + "\n", encoding="utf-8"
        )

        for file, text in code.items():
            (folder / file).write_text(text, encoding="utf-8")
        if source.has_tokenizer:
            tokenizer = tokenizers.load_tokenizer(str(source.folder), "source")
            tokenizer.model_max_length = source.config.max_position_embeddings
            tokenizers.save(tokenizer, folder)
        (folder / card.CARD).write_text(
            card.text(source, model, name, license, plain=plain, around=around), encoding="utf-8"
        )

    building.build_aside(out, build, "out")
    assert model is not None
    written: PreTrainedModel = model
    return written


def check_push(name: str) -> list[Problem]:
    """Validate name, token and connection before there is anything to upload."""
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        return [
            Problem("--push", name, str(error), "give NAME, or OWNER/NAME for an organisation's")
        ]
    if get_token() is None:
        return [
            Problem(
                "--push",
                name,
                "there is no token for the hub",
                "run `hf auth login`, or export HF_TOKEN",
            )
        ]
    try:
        HfApi().whoami()
    except (HTTPError, OSError) as error:
        wrong = _NOT_REACHED.format(" ".join(str(error).split())[:300])
        return [
            Problem("--push", name, wrong, "check the token (`hf auth whoami`) and the connection")
        ]
    return []


def push(name: str, folder: Path) -> str:
    """Upload a folder as the model ``name``, created as private if it does not exist; return its URL."""
    api = HfApi()
    try:
        repository = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=repository.repo_id, folder_path=folder, commit_message="Export by tape_ds"
        )
    except (HTTPError, OSError) as error:
        wrong = _NOT_REACHED.format(" ".join(str(error).split())[:300])
        remedy = f"the folder {folder} is complete: upload it with `hf upload {name} {folder}`"
        raise UserError(Problem("--push", name, wrong, remedy)) from error
    return str(repository)
