"""Give a model all tensors of a checkpoint: none missing, none left over, from exactly the files that were checked.

``from_pretrained`` looks around in a folder: an ``adapter_config.json`` puts an adapter onto the model, a file
``.metadata`` makes it a distributed checkpoint, and a field of config.json names other files of weights. What is
fingerprinted and compared would then be another model than what is built. So it reads from a folder of links, which
holds the checked files alone.
"""

import contextlib
import json
import logging
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.files import library_errors, weight_files
from tape_ds.models.files.hub import CONFIG
from tape_ds.numbers import some

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

_Model = TypeVar("_Model", bound="PreTrainedModel")

_SHOWN = 12  # names of tensors in a message
_COULD_NOT = "transformers could not load it"
_UNDAMAGED = "take an earlier checkpoint, or fetch it again"
_NOT_FINITE = f"{_UNDAMAGED}; a model in float16 may need --dtype float32 or bfloat16"
_MEND = "mend the folder, or install what the error names"
_SIZES = (
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
)
_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_Required = Callable[["PreTrainedModel", Collection[str]], Iterable[str]]


def _all(model: "PreTrainedModel", missing: Collection[str]) -> Iterable[str]:
    return missing


def load_exact(kind: Any, source: str | Path, required: _Required = _all, **arguments: Any) -> Any:
    """Return ``kind.from_pretrained(source, **arguments)`` if every tensor of the source was used. A tied head and
    computed buffers may be missing or left over, as in transformers.

    Args:
        kind: a class of transformers, or an automatic one.
        source: a folder.
        required: which of the missing parameters of a model must not be missing; default: all.
        arguments: for ``from_pretrained``, ``config`` among them. With ``trust_remote_code`` the folder is read as it
            is: code that runs may read any file of it.
    """
    raise_if_any(weight_files.check_folder(source))
    config = arguments["config"]
    raise_if_any(check_sizes(source, config))
    log = logging.getLogger("transformers.modeling_utils")
    log.addFilter(_is_no_report)
    runs_code = bool(arguments.get("trust_remote_code"))
    folder = contextlib.nullcontext(Path(source)) if runs_code else checked_files(source)
    try:
        with folder as read, library_errors.as_message(_COULD_NOT, "model", str(source), _MEND):
            options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
            model, info = kind.from_pretrained(read, **options, **arguments)
    finally:
        log.removeFilter(_is_no_report)
    # not that of the links, which are gone
    model.config.name_or_path = str(source)
    model.name_or_path = str(source)
    mismatched = [
        f"{name} {list(theirs)}, not {list(ours)}" for name, theirs, ours in info["mismatched_keys"]
    ]
    require_exact(
        str(source), required(model, info["missing_keys"]), info["unexpected_keys"], mismatched
    )
    if getattr(model.config, "quantization_config", None) is None:
        _require_no_integers(model, source)
    return model


def check_exact(
    kind: Any, source: str | Path, required: _Required = _all, **arguments: Any
) -> None:
    """Raise what :func:`load_exact` would raise about names and shapes; no weight is read, and no memory taken."""
    load_exact(kind, source, required, device_map={"": "meta"}, **arguments)


@contextlib.contextmanager
def checked_files(source: str | Path) -> Iterator[Path]:
    """Yield a temporary folder of links to the files that :func:`weight_files.files` names, to config.json and to the
    settings of generation; an index without ``metadata``, which transformers does not read, gets it."""
    source = Path(source).absolute()
    with tempfile.TemporaryDirectory(prefix="tape_ds-") as temporary:
        folder = Path(temporary) / source.name
        folder.mkdir()
        found = weight_files.files(source)
        for file in found:
            (folder / file.name).symlink_to(file)
        # one without the other has settings of generation too
        for name in (CONFIG, weight_files.GENERATION):
            if (source / name).is_file():
                (folder / name).symlink_to(source / name)
        for whole in (weight_files.WHOLE, weight_files.PICKLED):
            shards = weight_files.places(source, whole)
            if found and set(shards.values()) == {file.name for file in found}:
                index = {"metadata": {}, "weight_map": shards}
                (folder / f"{whole}.index.json").write_text(json.dumps(index), encoding="utf-8")
        yield folder


def check_named_files(source: str | Path, config: "PreTrainedConfig") -> list[Problem]:
    """Refuse a configuration whose field ``transformers_weights`` names other files than those that are read."""
    named = getattr(config, "transformers_weights", None)
    files = {file.name for file in weight_files.files(source)}
    if named is None or named in files:
        return []
    wrong = f"its config.json names {named} as its weights (transformers_weights), which is not what is read here"
    remedy = "load it with transformers, and give what its save_pretrained writes into a new folder"
    return [Problem("model", str(source), wrong, remedy)]


def check_sizes(source: str | Path, config: "PreTrainedConfig") -> list[Problem]:
    """Compare a configuration with the headers of the weights, before a model is built: sizes that they cannot bear out
    would take memory and minutes."""
    found: list[Problem] = []
    headers = weight_files.headers(source)
    if not headers or getattr(config, "quantization_config", None) is not None:
        return found
    largest = max([len(headers), *(tensor.numbers for tensor in headers.values())])
    text = config.get_text_config()
    limits = {"num_hidden_layers": len(headers), **dict.fromkeys((*_SIZES, *_COUNTS), largest)}
    for name, limit in limits.items():
        value = _size(text, name)
        if isinstance(value, int) and value > limit:
            wrong = f"config.json has {name} = {value:,}, and the weights are {len(headers):,} tensors of at most "
            wrong += f"{largest:,} numbers"
            found.append(
                Problem(
                    "model", str(source), wrong, "give weights and configuration of the same model"
                )
            )
    return found


def _size(config: "PreTrainedConfig", name: str) -> Any:
    """Return a size of a configuration, under transformers' standard name or the family's own."""
    try:
        return getattr(config, name, None)
    except RuntimeError:
        # layers differ in it, as in Gemma 4's head_dim: transformers gives none for all of them
        return config.to_dict().get(name)


def stored_dtype(source: str | Path, config: "PreTrainedConfig") -> "torch.dtype":
    """Return the dtype in which most numbers of a folder's weights are stored. config.json may name another (bf16, of
    fp32 files), to which a merged model would be rounded; it counts only where files have no header."""
    import torch

    name = None
    if getattr(config, "quantization_config", None) is None:
        name = weight_files.stored_dtype(source)
    named = {
        "F64": torch.float64,
        "F32": torch.float32,
        "BF16": torch.bfloat16,
        "F16": torch.float16,
    }
    if name is not None:
        return named[name]
    return config.dtype or torch.float32


def require_finite(model: "PreTrainedModel", field: str, name: str) -> None:
    """Raise UserError for weights that are NaN or infinite; ``field`` and ``name`` are for the message."""
    wrong = [each for each, weight in model.named_parameters() if not is_finite(weight)]
    raise_if_any(not_finite_weights(wrong, field, name))


def is_finite(weight: "Tensor") -> bool:
    """Whether no number is NaN or infinite. One pass over the memory: ``isfinite`` makes three, and copies."""
    if not weight.is_floating_point() or not weight.numel():
        return True
    least, most = weight.aminmax()
    return bool(least.isfinite() and most.isfinite())


def not_finite_weights(names: Sequence[str], field: str, name: str) -> list[Problem]:
    """Return the problem of a model whose weights of these ``names`` are NaN or infinite; none without names."""
    if not names:
        return []
    wrong = f"weights that are not finite, NaN or infinite: {some(names, _SHOWN)}"
    return [Problem(field, name, wrong, _UNDAMAGED)]


def not_finite(field: str, name: str) -> UserError:
    """Return the error for a model whose logits are no numbers."""
    wrong = "its logits are not finite (NaN or infinite): its weights are damaged, or its dtype has too small a range"
    return UserError(Problem(field, name, wrong, _NOT_FINITE))


def require_numbers(losses: Iterable[float], model: "PreTrainedModel") -> None:
    """Raise UserError if one of a model's losses is NaN, which its logits then are; a process scores its own share."""
    if any(math.isnan(loss) for loss in losses):
        error = not_finite("model", model.name_or_path)
        error.on_one_rank = True
        raise error


def _require_no_integers(model: "PreTrainedModel", source: str | Path) -> None:
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    headers = weight_files.headers(source)
    integers = [name for name in sorted(parameters & headers.keys()) if not headers[name].is_float]
    if integers:
        wrong = f"integers in the place of weights: {', '.join(integers[:_SHOWN])}"
        remedy = "give the weights as they were published, with the quantization_config of their config.json"
        raise UserError(Problem("model", str(source), wrong, remedy))


def _is_no_report(record: Any) -> bool:
    text = record.getMessage()
    # an error of conversion is named there only
    return "LOAD REPORT" not in text or "CONVERSION" in text


def fill(model: _Model, tensors: Mapping[str, "Tensor"], source: str) -> _Model:
    """Give a model on the meta device these very tensors, all of them and nothing else; evaluation mode."""
    tied = set(model.all_tied_weights_keys)
    untied = [
        f"{name} (not equal to {twin}, to which it is tied)"
        for name, twin in model.all_tied_weights_keys.items()
        if name in tensors and twin in tensors and not tensors[name].equal(tensors[twin])
    ]
    require_exact(source, (), untied, ())
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items() if name not in tied}
    given = {name: tensor for name, tensor in tensors.items() if name not in tied}
    require_exact(source, shapes.keys() - given.keys(), given.keys() - shapes.keys(), ())
    require_exact(
        source, (), (), [name for name, tensor in given.items() if tensor.shape != shapes[name]]
    )
    model.load_state_dict(given, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def require_exact(
    source: str, missing: Iterable[str], unexpected: Iterable[str], mismatched: Iterable[Any]
) -> None:
    missing = list(missing)
    unexpected = list(unexpected)
    parts = []
    for what, found in (
        ("missing", missing),
        ("without a place", unexpected),
        ("of another shape", mismatched),
    ):
        if names := sorted(map(str, found)):
            parts.append(f"{what}: {some(names, _SHOWN)}")
    if parts:
        remedy = "give weights and configuration of the same model"
        if prefix := _added_prefix(set(missing), set(unexpected)):
            remedy = "save the model that is inside the wrapper: "
            remedy += f"every name begins with {prefix!r}, which is not its own"
        raise UserError(Problem("model", source, "tensors " + "; ".join(parts), remedy))


def _added_prefix(missing: set[str], unexpected: set[str]) -> str:
    """Return what a wrapper put before every name (``module.``, ``_orig_mod.``); "" if none did."""
    first = min(missing, default=None)
    if first is None:
        return ""
    prefixes = [name.removesuffix(first) for name in unexpected if name.endswith(first)]
    return next(
        (prefix for prefix in prefixes if {prefix + name for name in missing} <= unexpected), ""
    )
