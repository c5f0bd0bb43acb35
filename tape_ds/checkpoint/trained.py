"""The weights that a run leaves: only the trained ones, and the reference to their base.

A folder of *trained weights* holds ``trained.json`` (format, base model, method, exact parameter names), the
configuration, the tokenizer and the trained tensors as safetensors (with adapters: peft's two files, which hold the
groups trained whole as well as the adapters). ``load_trained`` puts them onto the base model; with every parameter
trained, the folder is an ordinary model folder itself.
"""

import copy
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME as ADAPTER_WEIGHTS
from pydantic import ConfigDict, TypeAdapter
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from tape_ds import run_folder, storage
from tape_ds.checkpoint import hollow_adapter
from tape_ds.checkpoint.format import WRITING, replace
from tape_ds.checkpoint.hollow_adapter import HollowAdapter
from tape_ds.data import tokenizer as tokenizers
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models import saving
from tape_ds.models.files import hub, library_errors, weight_files
from tape_ds.models.files.tensor_rows import StoredRows
from tape_ds.models.loading import extendable, model_folder
from tape_ds.run_folder import RECORD as RECORD
from tape_ds.run_folder import WHOLE_WEIGHTS

FORMAT = 1
WEIGHTS = "trained.safetensors"
KEPT = ".kept"
"""Suffix of a person's file in the folder ``trained`` whose name a run needs."""
_LOADED = (
    RECORD,
    WEIGHTS,
    ADAPTER_WEIGHTS,
    "adapter_config.json",
    WHOLE_WEIGHTS,
    "model.safetensors.index.json",
)
"""Patterns of files that would be loaded instead of the new ones, if another method left them."""
_REMEDY = "give the folder 'trained' of a run, or one of its checkpoints"


@dataclass(frozen=True)
class TrainedRecord:
    """Contents of ``trained.json``."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    base: str | None
    """Name or path of the model that was extended, as :mod:`tape_ds.models.loading.model_folder` takes it; None for a
    model trained from scratch, whose folder is whole."""
    method: str
    names: tuple[str, ...]
    """Exact names of the trained parameters; none where only the configuration differs from the base's."""
    base_commit: str | None = None
    """Commit of a base from the hub."""
    base_files: Mapping[str, str] | None = None
    """Fingerprints of the base's weights by file; None in what older versions saved."""
    averaged: Mapping[str, str] | None = None
    """Fingerprints of the checkpoints' files whose mean these weights are; None: those of one step."""
    format: int = FORMAT


def origin(model: str, folder: str | Path, published: str | Path | None = None) -> dict[str, Any]:
    """Return the fields of a record for the base ``model`` (a path is absolute), whose weights are in ``folder``;
    ``published``: the folder that these were made of, if it is another."""
    commit = None if Path(model).exists() else hub.commit_of(published or folder)
    return {
        "base": model if commit is None else hub.split(model)[0],
        "base_commit": commit,
        "base_files": _fingerprints(folder),
    }


def _fingerprints(folder: str | Path) -> dict[str, str]:
    """Return the fingerprints of a model folder's weights by file."""
    return {file.name: weight_files.fingerprint(file) for file in weight_files.files(folder)}


def base_name(record: TrainedRecord, base_anyway: bool = False) -> str:
    """Return the name of a record's base; a hub id has the commit that was trained on, unless ``base_anyway``."""
    assert record.base is not None
    # a person may have put a folder in place of a hub id
    on_hub = not Path(record.base).is_dir()
    if record.base_commit is not None and on_hub and not base_anyway:
        return f"{record.base}@{record.base_commit}"
    return record.base


def find_base(folder: str | Path, record: TrainedRecord, base_anyway: bool = False) -> str:
    """Return the folder of a record's base, of a hub id at the commit that was trained on. Other weights are refused,
    unless ``base_anyway``."""
    name = base_name(record, base_anyway)
    remedy = f"restore that base, or write where it is now into {RECORD}"
    try:
        base = model_folder.resolve(name)
    except UserError as error:
        wrong = f"its base {name} is missing: {error.problems[0].wrong}"
        raise UserError(Problem("trained weights", str(folder), wrong, remedy)) from error
    if record.base_files is None or base_anyway:
        return base
    # the files that are there now: only these would be read
    now = _fingerprints(base)
    changed = dict(sorted(now.items() - record.base_files.items()))
    if changed or not now:
        wrong = f"it was trained on {_in_words(record.base_files)} of {name}, which now has "
        wrong += _in_words(changed) or "no weights"
        remedy += ", or give --base_anyway to use what is there"
        raise UserError(Problem("trained weights", str(folder), wrong, remedy))
    return base


def _in_words(fingerprints: Mapping[str, str]) -> str:
    return ", ".join(f"{file} ({fingerprint})" for file, fingerprint in fingerprints.items())


def files_of_weights(folder: Path) -> list[Path]:
    """Return the files of trained weights in a run's ``trained`` or in one of its checkpoints."""
    files: list[Path] = []
    for kind in (WEIGHTS, ADAPTER_WEIGHTS, WHOLE_WEIGHTS):
        files += sorted(folder.glob(kind))
    return files


def require_readable(files: Iterable[Path], field: str) -> None:
    """Check the headers and sizes of files of weights, before a tensor of any is read."""
    problems: list[Problem] = []
    for file in files:
        problems += weight_files.check_file(file, field)
    raise_if_any(problems)


def gather(model: nn.Module, names: Sequence[str]) -> dict[str, Tensor]:
    """Return whole CPU copies of these parameters on rank 0, an empty dict elsewhere. Every rank must call it.
    Parameters that ZeRO-3 has partitioned, or that ranks hold in pieces, are gathered one at a time. Raises
    RuntimeError for an empty tensor: nothing is saved that cannot be loaded."""
    # only a run saves, and these take seconds
    import deepspeed

    from tape_ds.distributed.cuts import cut_of

    parameters = dict(model.named_parameters())
    gathered = {}
    for name in names:
        parameter = parameters[name]
        # does nothing to one that is not partitioned
        with deepspeed.zero.GatheredParameters([parameter]):
            # every rank reads its piece, although rank 0 alone keeps the whole: that is a collective
            cut = cut_of(parameter)
            tensor = parameter.detach() if cut is None else cut.whole(parameter)
            if RankSync().rank == 0:
                gathered[name] = tensor.to("cpu", copy=True).contiguous()
    if empty := [name for name, tensor in gathered.items() if tensor.numel() == 0]:
        raise RuntimeError(f"gathered without content: {', '.join(empty)}")
    return gathered


def save_trained(
    folder: str | Path,
    model: PreTrainedModel | PeftModel,
    record: TrainedRecord,
    tokenizer: Any = None,
) -> None:
    """Write a folder of trained weights from rank 0; every rank must call it."""
    folder = Path(folder)
    tensors = gather(model, record.names)
    if RankSync().rank:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in _LOADED:
        for file in list(folder.glob(pattern)):
            file.unlink()

    if isinstance(model, PeftModel):
        # peft's own `save_pretrained` asks the hub about the base's vocabulary and adds a blank model card, and both of
        # its files would name this machine's folder of the base
        saved = by_file_names(model, tensors)
        # tied ones must not share memory in a file
        saved = {name: tensor.clone() for name, tensor in saved.items()}
        storage.write_file(
            folder / ADAPTER_WEIGHTS, lambda path: save_file(saved, path, metadata={"format": "pt"})
        )
        adapters = copy.copy(model.peft_config["default"])
        adapters.base_model_name_or_path = record.base
        adapters.revision = record.base_commit
        adapters.inference_mode = True
        adapters.save_pretrained(folder)
        config = copy.deepcopy(model.get_base_model().config)
        if getattr(config, "quantization_config", None) is not None:
            # only how the base was held
            del config.quantization_config
        config.save_pretrained(folder)
    elif len(record.names) == len(list(model.named_parameters())):
        # Every parameter was trained: the folder is an ordinary one, which transformers loads by itself.
        for name, buffer in persistent_buffers(model).items():
            tensors[name] = buffer.to("cpu", copy=True)
        use_cache = model.config.use_cache
        # training keeps no key/value cache, generation needs one
        model.config.use_cache = True
        try:
            # transformers shows one even for a single file, and in logs
            with saving.without_bar():
                saving.save(model, folder, state_dict=tensors)
        finally:
            model.config.use_cache = use_cache
    else:
        # Some parameters were trained, or none: an encoding without weights changes the configuration alone.
        model.config.save_pretrained(folder)
        if tensors:
            storage.write_file(
                folder / WEIGHTS, lambda path: save_file(tensors, path, metadata={"format": "pt"})
            )
    if tokenizer is not None:
        tokenizers.save(tokenizer, folder)
    content = asdict(record)
    # which older versions do not know
    if record.averaged is None:
        del content["averaged"]
    storage.write_json(folder / RECORD, content)


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return what a model's files hold besides parameters, such as Gemma 4's ``layer_scalar``. It is not trained, and
    ZeRO partitions no buffer."""
    stored = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name in stored}


def replace_trained(
    folder: Path, model: PreTrainedModel | PeftModel, record: TrainedRecord, tokenizer: Any = None
) -> None:
    """Call :func:`save_trained` for the folder ``trained`` of a run, so that an older one stays whole until the new one
    is; every rank must call it. Files in the older one that no run wrote are kept in the new one."""
    aside = folder.with_name(folder.name + WRITING)
    if RankSync().rank == 0:
        shutil.rmtree(aside, ignore_errors=True)
    try:
        save_trained(aside, model, record, tokenizer)
        if RankSync().rank == 0:
            written = _files_in(aside)
            known = run_folder.trained_files(folder.parent)
            _keep_foreign(folder, aside, written if known is None else known)
            run_folder.add_trained_files(folder.parent, written)
            for path in aside.iterdir():
                storage.sync(path)
    except Exception:
        # or a full disk would stay full
        shutil.rmtree(aside, ignore_errors=True)
        raise
    if RankSync().rank == 0:
        replace(aside, folder)


def _files_in(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, below it. A link is one of them, to a folder as well: what it points
    at is not the run's to copy."""
    names = []
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            names.append(path.relative_to(folder).as_posix())
    return sorted(names)


def _keep_foreign(folder: Path, aside: Path, known: Sequence[str]) -> None:
    """Put every file of ``folder`` that is not ``known`` as a run's into ``aside`` as well. One that takes the name of
    a new file, or that would be loaded instead, gets the suffix :data:`KEPT`."""
    for name in _files_in(folder):
        if name in known:
            continue
        place = aside / name
        if any(fnmatch(name, pattern) for pattern in _LOADED):
            place = place.with_name(place.name + KEPT)
        while os.path.lexists(place):
            place = place.with_name(place.name + KEPT)
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(folder / name, place, follow_symlinks=False)
        except OSError:
            # a file system without hard links
            shutil.copy2(folder / name, place, follow_symlinks=False)


def by_every_name(model: nn.Module, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of parameters, given by the names of ``named_parameters``, by each of their names: tied ones have
    several."""
    first_names = {id(parameter): name for name, parameter in model.named_parameters()}
    spread = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first_name = first_names[id(parameter)]
        if first_name in values:
            spread[name] = values[first_name]
    return spread


def by_file_names(model: PeftModel, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of parameters, given by the names of ``named_parameters``, by the keys of peft's files, which leave
    out the adapter's name."""
    every_name = by_every_name(model, values)
    # without the embeddings' check, for which peft would ask the hub
    in_files: dict[str, Any] = get_peft_model_state_dict(
        model, state_dict=every_name, save_embedding_layers=False
    )
    return in_files


def read_record(folder: str | Path) -> TrainedRecord:
    try:
        record = TypeAdapter(TrainedRecord).validate_json((Path(folder) / RECORD).read_bytes())
        if record.format != FORMAT:
            raise ValueError(f"it is of format {record.format}, this version reads {FORMAT}")
        return record
    except (OSError, ValueError) as error:
        wrong = f"no readable {RECORD} ({error})"
        raise UserError(Problem("trained weights", str(folder), wrong, _REMEDY)) from error


def differences(
    folder: Path, model: PreTrainedModel | PeftModel, record: TrainedRecord
) -> list[str]:
    """Return the fields in which a folder of trained weights differs from ``model`` and ``record``, without those that
    only describe how a model is held or saved."""
    saved = read_record(folder)
    compared = ["base", "method", "names"]
    # the same base, wherever it was moved
    if saved.base_files and saved.base_files == record.base_files:
        compared.remove("base")
    fields = [name for name in compared if getattr(saved, name) != getattr(record, name)]

    is_adapted = isinstance(model, PeftModel)
    plain_model = model.get_base_model() if is_adapted else model
    config = plain_model.config.to_dict()
    saved_config = extendable.read(folder).to_dict()
    names = (saved_config.keys() | config.keys()) - _NOT_THE_MODEL
    fields += sorted(name for name in names if saved_config.get(name) != config.get(name))

    # the adapters' targets are in the names of trained parameters
    if is_adapted and saved.method == record.method:
        saved_adapter = PeftConfig.from_pretrained(folder)
        adapter = model.peft_config["default"]
        for field, name in {"lora_r": "r", "lora_alpha": "lora_alpha"}.items():
            if getattr(saved_adapter, name) != getattr(adapter, name):
                fields.append(field)
    return fields


_NOT_THE_MODEL = {
    *("_name_or_path", "architectures", "dtype", "transformers_version", "use_cache"),
    # of a base that trains in 4 bits; not in a folder of trained weights
    "quantization_config",
}


def load_trained(
    folder: str | Path, *, base_anyway: bool = False, **arguments: Any
) -> extendable.Model | PeftModel:
    """Return the base model with the trained weights; a ``PeftModel`` where the method was LoRA. ``arguments`` are for
    ``from_pretrained`` of the base, such as ``dtype``; ``base_anyway``: see :func:`find_base`."""
    folder = Path(folder)
    record = read_record(folder)
    config = extendable.read(folder)
    if any(folder.glob(WHOLE_WEIGHTS)):
        return extendable.load(folder, config, **arguments)
    check_base(folder, record)
    model: Any = extendable.load(find_base(folder, record, base_anyway), config, **arguments)
    if (folder / "adapter_config.json").exists():
        return with_adapters(folder, record, model)
    if record.names:
        apply_trained(folder, model, record.names)
    return model


def check_base(folder: Path, record: TrainedRecord) -> None:
    """Raise UserError for a folder without whole weights that has no base either."""
    if record.base is None:
        wrong = "a model trained from scratch, without weights"
        remedy = "restore its model*.safetensors: it has no base"
        raise UserError(Problem("trained weights", str(folder), wrong, remedy))


def with_adapters(folder: Path, record: TrainedRecord, model: PreTrainedModel) -> PeftModel:
    """Return a base's model with the adapters of a folder of trained weights, and what they were trained with."""
    # not PeftModel.from_pretrained, which only warns of a tensor that is missing
    with _putting_on(folder):
        adapters = PeftConfig.from_pretrained(folder)
        adapters.base_model_name_or_path = None
        wrapped: Any = get_peft_model(model, adapters, autocast_adapter_dtype=False)
    apply_trained(folder, wrapped, record.names)
    return wrapped


def with_hollow_adapters(
    folder: Path, record: TrainedRecord, model: PreTrainedModel
) -> HollowAdapter:
    """Return the same of a base's model without its weights."""
    with _putting_on(folder):
        wrapped = hollow_adapter.wrap(model, PeftConfig.from_pretrained(folder))
    parameters = _stored_parameters(wrapped, record.names)
    return hollow_adapter.read_from(wrapped, parameters, tensors_for(folder, wrapped, record.names))


def _putting_on(folder: Path) -> AbstractContextManager[None]:
    raise_if_any(weight_files.check_adapter(folder, "trained weights"))
    wrong = "peft could not put its adapter onto the base"
    return library_errors.as_message(
        wrong, "trained weights", str(folder), library_errors.READ_AGAIN
    )


def apply_trained(folder: str | Path, model: nn.Module, names: Sequence[str]) -> None:
    """Copy the tensors of a folder of trained weights into ``model``, exactly these names and shapes."""
    parameters = _stored_parameters(model, names)
    tensors = tensors_for(folder, model, names)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors.rows(name))


def tensors_for(folder: str | Path, model: nn.Module, names: Sequence[str]) -> StoredRows:
    """Return the tensors of a folder of trained weights that take the place of parameters of ``model``, exactly these
    names and shapes."""
    known = dict(model.named_parameters(remove_duplicate=False))
    unknown = set(names) - known.keys()
    kept = persistent_buffers(model).keys()
    return _trained_tensors(folder, _stored_parameters(model, names), unknown, kept)


def _stored_parameters(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """Return those of these parameters that ``model`` has, by their names in a folder of trained weights."""
    known = dict(model.named_parameters(remove_duplicate=False))
    parameters = {name: known[name] for name in names if name in known}
    if isinstance(model, PeftModel):
        return by_file_names(model, parameters)
    return parameters


def _trained_tensors(
    folder: str | Path,
    parameters: Mapping[str, Tensor],
    unknown: Iterable[str],
    kept: Collection[str],
) -> StoredRows:
    """Return the tensors of a folder's files. Raises UserError if they are not those of ``parameters`` in name and
    shape, or any is ``unknown``; those ``kept`` as they are may be there too."""
    files = files_of_weights(Path(folder))
    if not files:
        raise UserError(Problem("trained weights", str(folder), "it holds no weights", _REMEDY))
    require_readable(files, "trained weights")
    tensors = StoredRows(files)
    held = set(tensors.names()) - set(kept)
    misfits = {*(held ^ parameters.keys()), *unknown}
    # Shapes are compared where all names agree: there every tensor has a parameter.
    if not misfits:
        misfits = {name for name in held if tensors.shape(name) != parameters[name].shape}
    if misfits:
        wrong = f"tensors that do not fit this model: {', '.join(sorted(misfits)[:8])}"
        remedy = "use it with the base it names"
        raise UserError(Problem("trained weights", str(folder), wrong, remedy))
    return tensors
