"""From a name or path to a model that can be asked: whatever was trained here, and whatever transformers or peft load.

A model is first *found* (its files, its configuration, the SHA-256 of its weights; everything wrong with it is told
before anything heavy is read), then loaded: whole, adapters merged, in evaluation mode.
"""

import argparse
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.quantizers import AutoHfQuantizer

from tape_ds import encodings, storage
from tape_ds.checkpoint import trained
from tape_ds.data import tokenized
from tape_ds.data import tokenizer as tokenizers
from tape_ds.errors import Problem, UserError, collecting, raise_if_any
from tape_ds.export import source_model
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.llama import TapeForCausalLM, change_positions, evaluated_at
from tape_ds.models.loading import config_file, configuration, model_folder, weight_files
from tape_ds.models.loading.config_file import RUN_CODE
from tape_ds.models.loading.strict import load_exact, require_exact, without_bar
from tape_ds.models.loading.weight_files import ADAPTER_CONFIG
from tape_ds.registration import TYPES
from tape_ds.run_folder import TRAINED

_TOKENIZER_CODE = ("tokenizer_config.json", "config.json")


class Held(NamedTuple):
    """How a model is held."""

    tokenizer: str | None
    """None: the model's own."""
    dtype: torch.dtype | None
    """None: as it is stored."""
    device: torch.device
    trust_remote_code: bool
    """Whether code that came with the model or the tokenizer may run."""
    base_anyway: bool = False
    """See :func:`tape_ds.checkpoint.trained.find_base`."""


@dataclass(frozen=True, kw_only=True)
class FoundModel:
    """A model whose weights are not loaded yet."""

    name_or_path: str
    """As it was typed."""
    kind: str
    """What the name or path leads to, for people."""
    folder: Path
    """Its files."""
    config: PreTrainedConfig
    """Of the model that :meth:`load` gives."""
    held: Held
    dtype: torch.dtype
    files: Callable[[], Iterable[Path]]
    """Every file that decides what the model computes."""
    whole: Callable[[], PreTrainedModel]
    """The whole model, adapters merged, on the CPU, in its dtype or one that holds it."""
    tokenizer_name_or_path: str
    record: trained.TrainedRecord | None = None
    """What the run that trained the model says of it; None where no run of this project did."""
    changed: TapeConfig | None = None
    """What it computes with instead of its own configuration, where ``asked`` says so."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """What differs from the model as it was trained."""

    def load(self) -> PreTrainedModel:
        """Return the whole model in its dtype on its device, in evaluation mode.

        Raises:
            UserError: weights that are missing or do not fit.
        """
        model = self.whole()
        if getattr(model.config, "quantization_config", None) is None:  # packed weights are no numbers to round
            for parameter in model.parameters():  # not the module: its cast would round the angles' frequencies, too
                parameter.data = parameter.data.to(self.dtype)
        if self.changed is not None:
            own: Any = model
            change_positions(own, self.changed)
            model.config = self.changed
        model.to(self.device)
        return model.eval()

    @property
    def device(self) -> torch.device:
        """Where :meth:`load` puts it."""
        return self.held.device

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the model's tokenizer, or the one that was asked for; read once.

        Raises:
            UserError: there is none.
        """
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerBase:
        return tokenizers.load(self.tokenizer_name_or_path, trust_remote_code=self.held.trust_remote_code)

    @property
    def tokenizer_has_code(self) -> bool:
        """Whether a class for the tokenizer comes with it: code that only those run who trust it."""
        folder = Path(model_folder.resolve(self.tokenizer_name_or_path, with_weights=False))
        return any(_names_tokenizer_code(folder / name) for name in _TOKENIZER_CODE)

    @property
    def known_length(self) -> int | None:
        """Tokens that the model is made for; of an extended one, what it was extended to. None: its configuration does
        not say."""
        return getattr(self.config.get_text_config(), "max_position_embeddings", None) or None

    @property
    def native_length(self) -> int:
        """The known length.

        Raises:
            UserError: there is none.
        """
        found = self.known_length
        if found is None:
            wrong = "its configuration has no max_position_embeddings"
            raise UserError(Problem("model", self.name_or_path, wrong, "write it into config.json"))
        return found

    @property
    def position_limit(self) -> int | None:
        """Tokens beyond which there are no positions: a learned table ends. None: there is no such end."""
        ours = self.config.model_type in TYPES
        rotary = getattr(self.config, "rope_parameters", None) is not None
        return None if ours or rotary else self.known_length

    def about(self) -> dict[str, Any]:
        """Return what results say of the model: its files' hash among it."""
        digest = hashlib.sha256()
        files = [*self.files()]
        if self.held.trust_remote_code:
            files += _code(Path(model_folder.resolve(self.tokenizer_name_or_path, with_weights=False)))
        for file in dict.fromkeys(files):
            digest.update(f"{file.name} {storage.digest(file)}\n".encode())
        return {
            "address": self.name_or_path,
            "kind": self.kind,
            "sha256": digest.hexdigest(),
            "tokenizer": tokenized.tokenizer_fingerprint(self.tokenizer()),
            "model_type": self.config.model_type,
            "encoding": getattr(self.config, "position_encoding", None),
            "rope_parameters": getattr(self.config, "rope_parameters", None),
            "native_length": self.known_length,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": self.device.type,
            **self.asked,
        }


def used_at(model: PreTrainedModel, length: int) -> AbstractContextManager[None]:
    """Within the block, ``model`` computes as its encoding says for texts of ``length`` tokens; see
    :func:`tape_ds.models.llama.evaluated_at`. Models that are not ours are the same at every length."""
    return evaluated_at(model, length) if isinstance(model, TapeForCausalLM) else nullcontext()


def find(options: argparse.Namespace, problems: Sequence[Problem] = ()) -> FoundModel:
    """Return the model of the options that :func:`tape_ds.scoring.options.add_model` adds; see :func:`at`.

    Raises:
        UserError: what is wrong with it, behind the ``problems`` that are known.
    """
    names = ("tokenizer", "dtype", "device", "trust_remote_code", "base_anyway", "position_updates", "rope_scaling")
    try:
        return at(options.model, **{name: vars(options)[name] for name in names})
    except UserError as error:
        raise UserError([*problems, *error.problems]) from error


def at(
    name_or_path: str,
    *,
    tokenizer: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    trust_remote_code: bool = False,
    base_anyway: bool = False,
    position_updates: str = "on",
    rope_scaling: str = "own",
) -> FoundModel:
    """Return the model that a name or path leads to, not loaded yet.

    Raises:
        UserError: everything wrong with it: nothing there, not a causal LM, no tokenizer, no such device.
    """
    problems: list[Problem] = []
    place, found = torch.device("cpu"), None
    with collecting(problems):
        place = find_device(device)
    with collecting(problems):
        asked = None if dtype == "auto" else getattr(torch, dtype)
        found = _find(name_or_path, Held(tokenizer, asked, place, trust_remote_code, base_anyway))
        found = _changed(found, position_updates, rope_scaling)
        found.tokenizer()
    raise_if_any(problems)
    assert found is not None
    return found


def _changed(found: FoundModel, position_updates: str, rope_scaling: str) -> FoundModel:
    """Return the model with its position updates off, with YaRN's RoPE scaling, or both."""
    own = found.config if isinstance(found.config, TapeConfig) else None
    changed, asked, problems = own, {}, []
    if position_updates == "off":
        asked["position_updates"] = "off"
        changed = own and encodings.without_updates(own)
        if changed is None:
            wrong = f"{found.name_or_path} has no position updates"
            problems.append(Problem("--position_updates", "off", wrong, "leave it out"))
    if rope_scaling == "yarn":
        asked["angles"] = "yarn"  # the name in stored results
        changed = None if own is None else encodings.with_yarn(changed or own)
        if changed is None:
            wrong = f"{found.name_or_path} has no plain RoPE that this package could scale"
            problems.append(Problem("--rope_scaling", "yarn", wrong, "leave it out"))
    raise_if_any(problems)
    return replace(found, changed=changed, asked=asked) if asked else found


def find_device(name: str) -> torch.device:
    """Return the device that ``name`` means for this process.

    Raises:
        UserError: no such device here.
    """
    gpus = torch.cuda.device_count()
    if name == "auto":
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus) if gpus else torch.device("cpu")
    try:
        device = torch.device(name)
        if torch.zeros(1, device=device).is_meta:
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        remedy = f"one of: auto, cpu{''.join(f', cuda:{index}' for index in range(gpus))}"
        raise UserError(Problem("--device", name, f"not to be had here ({reason})", remedy)) from error
    return device


def _find(name_or_path: str, held: Held) -> FoundModel:
    if _is_ours(name_or_path):
        return _find_own(name_or_path, held)
    if Path(name_or_path).exists():
        raise_if_any(list(config_file.check_name("model", name_or_path, (config_file.CONFIG, ADAPTER_CONFIG))))
    folder = Path(model_folder.resolve(name_or_path))
    if (folder / ADAPTER_CONFIG).is_file() and not weight_files.files(folder):
        return _find_adapter(name_or_path, folder, held)
    config = configuration.read(folder, trust_remote_code=held.trust_remote_code)
    _check_causal_lm(name_or_path, config, held.trust_remote_code)
    dtype = held.dtype or config.dtype or torch.float32
    if not (held.trust_remote_code and getattr(config, "auto_map", None)):
        _check_plain(folder, config, dtype)
    return FoundModel(
        name_or_path=name_or_path,
        kind="transformers",
        folder=folder,
        config=config,
        held=held,
        dtype=dtype,
        files=lambda: [*_model_files(folder), *(_code(folder) if held.trust_remote_code else ())],
        whole=partial(_load_plain, folder, config, dtype, held.trust_remote_code),
        tokenizer_name_or_path=held.tokenizer or str(folder),
    )


def _find_own(name_or_path: str, held: Held) -> FoundModel:
    """Return what a run left behind, or a model folder of this project, exported ones included."""
    source = source_model.find(name_or_path, base_anyway=held.base_anyway)
    record, folder, dtype = source.record, source.folder, held.dtype or source.dtype

    def files() -> Iterator[Path]:
        yield from _model_files(folder)
        if record is not None and record.base is not None and not any(folder.glob(trained.WHOLE_WEIGHTS)):
            yield from _model_files(Path(trained.find_base(folder, record, held.base_anyway)))

    return FoundModel(
        name_or_path=name_or_path,
        kind="trained" if record is not None else "model folder",
        folder=folder,
        config=source.config,
        held=held,
        dtype=dtype,
        files=files,
        whole=lambda: source.load(dtype),
        tokenizer_name_or_path=held.tokenizer or str(folder),
        record=record,
    )


def _check_plain(folder: Path, config: PreTrainedConfig, dtype: torch.dtype) -> None:
    """Refuse what :func:`_load_plain` would refuse, before data are read for hours; reads no number of the weights."""
    quantised = getattr(config, "quantization_config", None)
    if quantised is None:
        with without_bar():
            _load_plain(folder, config, dtype, False, device_map={"": "meta"})
        return
    with _loading(folder):
        AutoHfQuantizer.from_config(quantised, pre_quantized=True).validate_environment(device_map=None)


def _load_plain(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, trust_remote_code: bool, **arguments: Any
) -> PreTrainedModel:
    """Whatever ``AutoModelForCausalLM`` loads."""
    with _loading(folder):
        model: PreTrainedModel = load_exact(
            AutoModelForCausalLM, folder, config=config, dtype=dtype, trust_remote_code=trust_remote_code, **arguments
        )
    return model


def _loading(folder: Path) -> AbstractContextManager[None]:
    remedy = "mend the folder, or install what the sentence asks for"
    return _reported("model", str(folder), "transformers could not load it", remedy)


@contextmanager
def _reported(field: str, value: str, wrong: str, remedy: str) -> Iterator[None]:
    """Within the block a library reads files of others, and raises whatever it meets: a message, with its sentence."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(Problem(field, value, f"{wrong} ({reason[:600]})", remedy)) from error


def _is_ours(name_or_path: str) -> bool:
    """Return whether the name or path leads to a folder that a run, a conversion or an export of this project made."""
    folder = Path(name_or_path)
    records = (folder / trained.RECORD, folder / TRAINED / trained.RECORD)
    return any(record.is_file() for record in records) or source_model.model_type(folder) in TYPES


def _find_adapter(name_or_path: str, folder: Path, held: Held) -> FoundModel:
    """peft's adapter on a base that its configuration names."""
    from peft import PeftConfig

    if (folder / "trainable_params.bin").is_file():
        wrong = "trainable_params.bin beside the adapter (embeddings and norms) would be left out"
        raise UserError(Problem("model", name_or_path, wrong, "merge both into a model folder first, as LongLoRA does"))
    raise_if_any(weight_files.check_adapter(folder))
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (OSError, ValueError, TypeError, KeyError) as error:
        wrong = f"{ADAPTER_CONFIG} cannot be read ({error})"
        raise UserError(Problem("model", name_or_path, wrong, weight_files.REMEDY)) from error
    named = config.base_model_name_or_path
    if config.is_prompt_learning:
        wrong = f"{ADAPTER_CONFIG} is of the kind {config.peft_type}, which is not merged into weights"
        raise UserError(Problem("model", name_or_path, wrong, "give an adapter such as LoRA"))
    if not named:
        wrong = f"{ADAPTER_CONFIG} names no base"
        raise UserError(Problem("model", name_or_path, wrong, "write base_model_name_or_path into it"))
    if config.revision and not Path(named).exists():
        named = f"{named}@{config.revision}"
    if Path(named).resolve() == folder.resolve():
        wrong = f"{ADAPTER_CONFIG} names its own folder as the base"
        raise UserError(
            Problem("model", name_or_path, wrong, "write the base's place as base_model_name_or_path into it")
        )
    own = str(folder) if (folder / "tokenizer_config.json").is_file() else None
    base = _find(named, held._replace(tokenizer=held.tokenizer or own))
    if getattr(base.config, "quantization_config", None) is not None:
        wrong = f"its base {named} is quantised, and a merged model would be rounded to that again"
        remedy = f"name the unquantised model as base_model_name_or_path in its {ADAPTER_CONFIG}"
        raise UserError(Problem("model", name_or_path, wrong, remedy))
    return replace(
        base,
        name_or_path=name_or_path,
        kind="peft adapter",
        folder=folder,
        files=lambda: [*_model_files(folder), *base.files()],
        whole=lambda: _merged(name_or_path, folder, base),
        record=None,
    )


def _merged(name_or_path: str, folder: Path, base: FoundModel) -> PreTrainedModel:
    """Merged in fp32, which loses nothing."""
    from peft import PeftModel
    from peft.utils.save_and_load import load_peft_weights, set_peft_model_state_dict

    wrong, remedy = f"peft could not put it onto {base.name_or_path}", "give the adapter's own base, and all its files"
    with weight_files.reading(folder), warnings.catch_warnings(), _reported("model", name_or_path, wrong, remedy):
        warnings.filterwarnings("error", message="Found missing adapter keys")  # peft would go on without them
        model = PeftModel.from_pretrained(base.whole().float(), str(folder))
        # once more, only because from_pretrained does not tell which tensors it had no place for
        unexpected = set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu")).unexpected_keys
        require_exact(str(folder), (), unexpected, ())
        merged: PreTrainedModel = model.merge_and_unload(safe_merge=True)
    return merged


def _check_causal_lm(name_or_path: str, config: PreTrainedConfig, trust_remote_code: bool) -> None:
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) not in AutoModelForCausalLM._model_mapping and not (own_code and trust_remote_code):
        wrong = f"its model_type is {config.model_type!r}, which is no causal LM that transformers knows"
        remedy = RUN_CODE if own_code else "give a causal language model"
        raise UserError(Problem("model", name_or_path, wrong, remedy))


def _names_tokenizer_code(file: Path) -> bool:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    named = content.get("auto_map") or {}
    # A list is how tokenizers once said it. A configuration's code runs too, where a tokenizer names no class.
    return isinstance(named, list) or bool({"AutoTokenizer", "AutoConfig"} & named.keys())


def _model_files(folder: Path) -> list[Path]:
    """Configuration and weights of a folder; pickled weights where there are no others."""
    patterns: Sequence[str] = ("config.json", ADAPTER_CONFIG, trained.RECORD, "*.safetensors")
    found = [file for pattern in patterns for file in sorted(folder.glob(pattern))]
    if not any(file.suffix == ".safetensors" for file in found):
        found += sorted(folder.glob("*.bin"))
    return found


def _code(folder: Path) -> list[Path]:
    """Return the Python files that a folder carries."""
    return sorted(folder.rglob("*.py"))
