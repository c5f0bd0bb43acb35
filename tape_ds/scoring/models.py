"""Find the model of a name or path, then load it: anything trained here, or that transformers or peft load.

Finding reads configurations and reports everything that is wrong before any weight is read. Loading returns the whole
model, adapters merged, in evaluation mode.
"""

import argparse
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.quantizers import AutoHfQuantizer

from tape_ds import encodings, storage
from tape_ds.checkpoint import merging, source_model, trained
from tape_ds.checkpoint.merging import WholeModel
from tape_ds.data import tokenized
from tape_ds.data import tokenizer as tokenizers
from tape_ds.errors import Problem, UserError, collecting, is_main_process, raise_if_any
from tape_ds.models import saving
from tape_ds.models.changed_positions import change_positions, evaluated_at
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.files import config_file, exact, weight_files
from tape_ds.models.files.library_errors import READ_AGAIN, RUN_CODE, as_message
from tape_ds.models.files.weight_files import ADAPTER_CONFIG
from tape_ds.models.library_messages import quieten_libraries
from tape_ds.models.llama import TapeForCausalLM
from tape_ds.models.loading import extendable, model_folder
from tape_ds.registration import TYPES
from tape_ds.run_folder import TRAINED

_INSTALL = "install what the error names, or give the model as it was before it was quantised"
_PROBED = 8
"""Tokens that a loaded model is tried on."""


class LoadOptions(NamedTuple):
    # None: the model's own
    tokenizer: str | None
    # None: of the stored weights
    dtype: torch.dtype | None
    device: torch.device
    # whether code that came with the model or the tokenizer may run
    trust_remote_code: bool
    # see trained.find_base
    base_anyway: bool


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A model whose weights are not loaded yet."""

    name_or_path: str
    """As it was typed."""
    kind: str
    """For people: ``transformers``, ``trained``, ``model folder`` or ``peft adapter``."""
    folder: Path
    config: PreTrainedConfig
    load_options: LoadOptions
    dtype: torch.dtype
    files: Sequence[Path]
    """Every file that decides what the model computes."""
    whole: WholeModel
    """Adapters merged, on the CPU."""
    tokenizer_name_or_path: str
    record: trained.TrainedRecord | None = None
    """Of the run of this project that trained the model."""
    changed: TapeConfig | None = None
    """Configuration that replaces its own, because of ``asked``."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """Differences from the model as it was trained, as results store them."""

    def load(self) -> PreTrainedModel:
        """Return the whole model in its dtype on its device, in evaluation mode."""
        model = self.whole.fill(self.dtype)
        # packed weights cannot be cast
        if getattr(model.config, "quantization_config", None) is None:
            # the module's own cast would round the rotary frequencies, too
            for parameter in model.parameters():
                parameter.data = parameter.data.to(self.dtype)
        if self.changed is not None:
            own: Any = model
            change_positions(own, self.changed)
            model.config = self.changed
        model.to(self.device).eval()
        self._require_finite(model)
        return model

    @torch.no_grad()
    def _require_finite(self, model: PreTrainedModel) -> None:
        """Refuse a model whose logits are NaN or infinite, before hours of scoring store that."""
        ids_1T = torch.arange(min(_PROBED, self.rows), device=self.device)[None]
        with used_at(model, _PROBED):
            logits_1TV = model(input_ids=ids_1T, use_cache=False).logits
        if not bool(logits_1TV.isfinite().all()):
            raise exact.not_finite("model", self.name_or_path)

    @property
    def device(self) -> torch.device:
        return self.load_options.device

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the model's tokenizer, or the one that was asked for; read once."""
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return tokenizers.load_tokenizer(
            self.tokenizer_name_or_path, trust_remote_code=self.load_options.trust_remote_code
        )

    @property
    def known_length(self) -> int | None:
        """Tokens that the model was trained or extended for; None if its configuration has no such number."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None) or None

    @property
    def rows(self) -> int:
        """Rows of its embeddings: tokens that it can read."""
        return int(self.config.get_text_config().vocab_size)

    @property
    def native_length(self) -> int:
        if self.known_length is None:
            wrong = "its configuration has no max_position_embeddings"
            raise UserError(Problem("model", self.name_or_path, wrong, "write it into config.json"))
        return self.known_length

    @property
    def position_limit(self) -> int | None:
        """Tokens of the table of learned positions; None: no limit."""
        rotary = getattr(self.config.get_text_config(), "rope_parameters", None) is not None
        if rotary or self.config.model_type in TYPES:
            return None
        return self.known_length

    def digest(self) -> str:
        """Return the SHA-256 of its files, of code that may run included."""
        digest = hashlib.sha256()
        files = [*self.files]
        if self.load_options.trust_remote_code:
            files += sorted(
                Path(model_folder.resolve(self.tokenizer_name_or_path, with_weights=False)).rglob(
                    "*.py"
                )
            )
        for file in dict.fromkeys(files):
            digest.update(f"{file.name} {storage.digest(file)}\n".encode())
        return digest.hexdigest()

    def about(self) -> dict[str, Any]:
        """Return what results store of the model, with the hash of its files."""
        return {
            "address": self.name_or_path,
            "kind": self.kind,
            "sha256": self.digest(),
            "tokenizer": tokenized.tokenizer_fingerprint(self.tokenizer()),
            "model_type": self.config.model_type,
            "encoding": getattr(self.config, "position_encoding", None),
            "rope_parameters": getattr(self.config.get_text_config(), "rope_parameters", None),
            "native_length": self.known_length,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            **self.asked,
        }


def used_at(model: PreTrainedModel, length: int) -> AbstractContextManager[None]:
    """Let ``model`` compute as its encoding does for texts of ``length`` tokens; see
    :func:`tape_ds.models.changed_positions.evaluated_at`. Models of others compute the same at every length."""
    if isinstance(model, TapeForCausalLM):
        return evaluated_at(model, length)
    return nullcontext()


def check_lengths(name: str, lengths: Sequence[int], model: FoundModel) -> list[Problem]:
    """Return a problem for each length beyond the model's table of positions."""
    limit = model.position_limit
    wrong = f"{model.name_or_path} has positions for {limit} tokens and no more"
    remedy = f"give {limit} or less, or extend the model first"
    problems = []
    for length in lengths:
        if limit is not None and length > limit:
            problems.append(Problem(name, length, wrong, remedy))
    return problems


def check_tokens(field: str, ids: Sequence[int], model: FoundModel) -> list[Problem]:
    """Return a problem for a text with tokens that have no row in the model's embeddings."""
    beyond = sorted({token for token in ids if token >= model.rows})
    if not beyond:
        return []
    names = ", ".join(repr(token) for token in model.tokenizer().convert_ids_to_tokens(beyond[:3]))
    wrong = f"it has {names} (token {beyond[0]:,}), and the model has {model.rows:,} rows, the last for token "
    wrong += f"{model.rows - 1:,}"
    remedy = "leave it out of the text, or name the --tokenizer that the model was trained with"
    return [Problem(field, model.tokenizer().decode(list(ids)), wrong, remedy)]


def find(options: argparse.Namespace, problems: Sequence[Problem] = ()) -> FoundModel:
    """Return the model of the options that :func:`tape_ds.arguments.add_model` adds, not loaded yet; ``problems`` are
    reported with those of the model."""
    quieten_libraries()
    problems = [*problems]
    name_or_path: str = options.model
    place = torch.device("cpu")
    gpus = torch.cuda.device_count()
    try:
        if options.device != "auto":
            place = torch.device(options.device)
        elif gpus:
            place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus)
        # "meta" holds no numbers
        torch.zeros(1, device=place).item()
    except (RuntimeError, AssertionError) as error:
        reason = f"not available ({str(error).splitlines()[0]})"
        devices = ["auto", "cpu", *map("cuda:{}".format, range(gpus))]
        remedy = f"one of: {', '.join(devices)}"
        problems.append(Problem("--device", options.device, reason, remedy))

    model: FoundModel | None = None
    with collecting(problems):
        dtype = None
        if options.dtype != "auto":
            dtype = getattr(torch, options.dtype)
        chosen = LoadOptions(
            options.tokenizer, dtype, place, options.trust_remote_code, options.base_anyway
        )
        model = _find(name_or_path, chosen)
        changed = model.config if isinstance(model.config, TapeConfig) else None
        asked = {}
        if options.position_updates == "off":
            asked["position_updates"] = "off"
            without = None
            if changed is not None:
                without = encodings.without_updates(changed)
            if without is None:
                reason = f"{name_or_path} has no position updates"
                problems.append(Problem("--position_updates", "off", reason, "leave it out"))
            changed = without or changed
        if options.rope_scaling == "yarn":
            # the name in stored results
            asked["angles"] = "yarn"
            if changed is not None:
                changed = encodings.with_yarn(changed)
            if changed is None:
                reason = f"{name_or_path} has no plain RoPE that this package could scale"
                problems.append(Problem("--rope_scaling", "yarn", reason, "leave it out"))
        if asked:
            model = replace(model, changed=changed, asked=asked)
        # one that cannot be read is reported now
        model.tokenizer()
    raise_if_any(problems)
    assert model is not None
    return model


def digest_of(name_or_path: str, *, base_anyway: bool = False) -> str:
    """Return what the results of a model's evaluation store as its hash, if none of its own code ran."""
    return _find(
        name_or_path, LoadOptions(None, None, torch.device("cpu"), False, base_anyway)
    ).digest()


def _find(name_or_path: str, options: LoadOptions) -> FoundModel:
    given = Path(name_or_path)
    records = (given / trained.RECORD, given / TRAINED / trained.RECORD)
    if any(map(Path.is_file, records)) or source_model.model_type(given) in TYPES:
        # a run's folder, or a model folder of this project, exported ones included
        source = source_model.find(name_or_path, base_anyway=options.base_anyway)
        record = source.record
        folder = source.folder
        dtype = options.dtype or source.dtype
        files = _model_files(folder)
        kind = "model folder"
        if record is not None:
            kind = "trained"
            # of an adapter the base decides the numbers as well
            if record.base is not None and not any(folder.glob(trained.WHOLE_WEIGHTS)):
                files += _model_files(Path(trained.find_base(folder, record, options.base_anyway)))
        return FoundModel(
            name_or_path=name_or_path,
            kind=kind,
            folder=folder,
            config=source.config,
            load_options=options,
            dtype=dtype,
            files=files,
            whole=source.whole(),
            tokenizer_name_or_path=options.tokenizer or str(folder),
            record=record,
        )

    if given.exists():
        names = (config_file.CONFIG, ADAPTER_CONFIG)
        raise_if_any(list(config_file.check_name("model", name_or_path, names)))
    folder = Path(model_folder.resolve(name_or_path))
    if (folder / ADAPTER_CONFIG).is_file() and not weight_files.files(folder):
        return _find_adapter(name_or_path, folder, options)

    config = extendable.read(folder, trust_remote_code=options.trust_remote_code)
    auto_map = getattr(config, "auto_map", None) or {}
    own_code = "AutoModelForCausalLM" in auto_map
    runs_own_code = own_code and options.trust_remote_code
    if type(config) not in AutoModelForCausalLM._model_mapping and not runs_own_code:
        reason = f"its model_type is {config.model_type!r}, which is no causal LM that transformers knows"
        remedy = RUN_CODE if own_code else "give a causal language model"
        raise UserError(Problem("model", name_or_path, reason, remedy))
    dtype = options.dtype or exact.stored_dtype(folder, config)
    raise_if_any(weight_files.check_folder(folder))
    if not (options.trust_remote_code and auto_map):
        # refuse here what loading would refuse after hours of reading data; no weights are read
        quantised = getattr(config, "quantization_config", None)
        if quantised is None:
            _load_plain(
                folder, config, dtype=dtype, trust_remote_code=False, device_map={"": "meta"}
            )
        else:
            with as_message("transformers could not load it", "model", str(folder), _INSTALL):
                AutoHfQuantizer.from_config(quantised, pre_quantized=True).validate_environment(
                    device_map=None
                )
    load = partial(_load_plain, folder, config, trust_remote_code=options.trust_remote_code)
    files = _model_files(folder)
    if options.trust_remote_code:
        files += sorted(folder.rglob("*.py"))
    return FoundModel(
        name_or_path=name_or_path,
        kind="transformers",
        folder=folder,
        config=config,
        load_options=options,
        dtype=dtype,
        files=files,
        whole=merging.of_folder(
            folder, load, config, "model", name_or_path, runs_code=options.trust_remote_code
        ),
        tokenizer_name_or_path=options.tokenizer or str(folder),
    )


def find_adapter(
    name_or_path: str, *, base_anyway: bool = False, check_logits: bool = False
) -> FoundModel:
    """Find the folder of an adapter that peft saved, with its base, on the CPU and in the dtype of the base's weights;
    ``check_logits``: see :func:`merging.of_adapter`.
    Raises UserError: either is missing, damaged or of a kind that is not merged, or a whole model is in the folder."""
    folder = Path(name_or_path)
    raise_if_any(weight_files.check_alone(folder))
    options = LoadOptions(None, None, torch.device("cpu"), False, base_anyway)
    return _find_adapter(name_or_path, folder, options, check_logits)


def _find_adapter(
    name_or_path: str, folder: Path, options: LoadOptions, check_logits: bool = False
) -> FoundModel:
    """Find peft's adapter and the base that its configuration names."""
    from peft import PeftConfig

    def refuse(reason: str, remedy: str) -> UserError:
        return UserError(Problem("model", name_or_path, reason, remedy))

    if (folder / "trainable_params.bin").is_file():
        reason = (
            "trainable_params.bin of the adapter's folder (embeddings and norms) would be left out"
        )
        raise refuse(reason, "merge both into a model folder first, as LongLoRA does")
    raise_if_any(weight_files.check_adapter(folder))
    with as_message(f"{ADAPTER_CONFIG} cannot be read", "model", name_or_path, READ_AGAIN):
        config = PeftConfig.from_pretrained(str(folder))
    named = config.base_model_name_or_path
    if config.is_prompt_learning:
        reason = (
            f"{ADAPTER_CONFIG} is of the kind {config.peft_type}, which is not merged into weights"
        )
        raise refuse(reason, "give an adapter such as LoRA")
    for name, value in (("base_model_name_or_path", named), ("revision", config.revision)):
        if not isinstance(value, str | None):
            raise refuse(f"{ADAPTER_CONFIG} has {name} = {value!r}, not a text", READ_AGAIN)
    if not named or Path(named).resolve() == folder.resolve():
        whose = "its own folder as the" if named else "no"
        reason = f"{ADAPTER_CONFIG} names {whose} base"
        raise refuse(reason, "write the base's path as base_model_name_or_path into it")
    if config.revision and not Path(named).exists():
        named = f"{named}@{config.revision}"
    own_tokenizer = None
    if (folder / "tokenizer_config.json").is_file():
        own_tokenizer = str(folder)
    base = _find(named, options._replace(tokenizer=options.tokenizer or own_tokenizer))
    if getattr(base.config, "quantization_config", None) is not None:
        reason = f"its base {named} is quantised, and a merged model would be rounded to that again"
        raise refuse(
            reason, f"name the unquantised model as base_model_name_or_path in its {ADAPTER_CONFIG}"
        )

    raise_if_any(_check_rows(name_or_path, folder, base))

    whole = merging.of_adapter(folder, base.whole, base.name_or_path, name_or_path, check_logits)
    files = [*_model_files(folder), *base.files]
    found = replace(
        base,
        name_or_path=name_or_path,
        kind="peft adapter",
        folder=folder,
        files=files,
        whole=whole,
    )
    return replace(found, record=None)


def _check_rows(name_or_path: str, folder: Path, base: FoundModel) -> list[Problem]:
    """Refuse an adapter that holds embeddings with more rows, or fewer, than its base has."""
    file = folder / weight_files.ADAPTER
    theirs = weight_files.headers_of(file) if file.is_file() else {}
    own = weight_files.headers(base.folder)
    rows = set()
    for name, tensor in theirs.items():
        # as the base calls it
        plain = name.removeprefix("base_model.model.")
        plain = plain.replace(".base_layer", "").replace(".modules_to_save", "")
        if plain not in own or own[plain].shape[0] != base.rows:
            continue
        if own[plain].shape[1:] == tensor.shape[1:]:
            rows.add(tensor.shape[0])
    if not rows - {base.rows}:
        return []
    count = max(rows - {base.rows})
    wrong = f"it holds embeddings of {count:,} rows, and its base {base.name_or_path} has {base.rows:,}: the base was "
    wrong += "resized before it was trained"
    remedy = f"resize the base too: transformers' model.resize_token_embeddings({count}), then model.save_pretrained "
    remedy += f"into a new folder, and write that folder as base_model_name_or_path into its {ADAPTER_CONFIG}"
    return [Problem("model", name_or_path, wrong, remedy)]


def _load_plain(folder: Path, config: PreTrainedConfig, **arguments: Any) -> PreTrainedModel:
    arguments |= {"config": config}
    with saving.without_bar():
        model: PreTrainedModel = exact.load_exact(AutoModelForCausalLM, folder, **arguments)
    return model


def _model_files(folder: Path) -> list[Path]:
    """Return configuration and weights of a folder; pickled weights only if there are no others."""
    patterns: Sequence[str] = ("config.json", ADAPTER_CONFIG, trained.RECORD, "*.safetensors")
    files: list[Path] = []
    for pattern in patterns:
        files += sorted(folder.glob(pattern))
    if not any(file.suffix == ".safetensors" for file in files):
        files += sorted(folder.glob("*.bin"))
    return files


def print_notes(model: FoundModel, lengths: Sequence[int], *, bos: bool = True) -> None:
    """Print on standard error of rank 0 how far the longest length exceeds the model's own, and with ``bos`` that its
    tokenizer begins no text with the BOS that the model knows."""
    notes = []
    longest = max(lengths)
    native = model.known_length
    if native is not None and longest > native:
        times = f"{longest / native:.3g} times the length that {model.name_or_path} is made for, {native:,}"
        notes.append(f"{longest:,} tokens are {times}")
    if bos:
        notes += tokenizers.bos_note(model.tokenizer(), model.config).values()
    for note in notes:
        if is_main_process():
            print(f"note: {note}", file=sys.stderr, flush=True)
