"""Make a folder that loads where tape_ds is not installed, or a GGUF file for llama.cpp.

    tape-ds export SOURCE OUT [--dtype bfloat16] [--name NAME] [--license ID] [--push NAME] [--check ENGINE...]
    tape-ds export SOURCE --gguf FILE [--gguf_type Q8_0]

SOURCE is the folder of a run, its folder ``trained``, one of its checkpoints, or a TAPE model folder. The text decoder
of a model with pictures is put back into that model; ``--text_only`` exports it alone. A model with
RoPE scaling that transformers knows becomes an ordinary Llama (Qwen2, Qwen3) folder; any other carries its code
and loads with ``AutoModelForCausalLM.from_pretrained(OUT, trust_remote_code=True)``. README.md is the model card:
read it before you publish the folder. ``--push`` uploads the folder to the Hugging Face hub, where it is private until
you change that on its page. ``--check`` refuses a folder that an engine would silently compute as another model.

``--gguf`` writes one file with weights, tokenizer and chat template, of a model that llama.cpp computes exactly; SOURCE
may be any Llama, Qwen2 or Qwen3 folder then. OUT and ``--gguf`` may be given together.
"""

import argparse
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds import checkpoint, paths
from tape_ds.arguments import Parser, add_new_folder
from tape_ds.engines import table
from tape_ds.errors import Problem, collecting, command, raise_if_any

if TYPE_CHECKING:
    from tape_ds.checkpoint.source_model import SourceModel
    from tape_ds.models.loading.wrapper import Wrapper

_TYPES = {"auto": "auto", "f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0"}
"""Values of ``--gguf_type``, in any letters."""


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds export", description=__doc__)
    add_new_folder(parser, "source", optional=True)
    parser.add_argument(
        "--name", help="of the model, in its card; default: the name of OUT, or of the GGUF file"
    )
    parser.add_argument(
        "--license", help="of the weights, as the hub names licences; default: the card has none"
    )
    parser.add_argument(
        "--push", metavar="NAME", help="upload the folder to the Hugging Face hub as this model"
    )
    engines = ", ".join(table.engines())
    help = f"refuse what one of these would silently compute as another model: {engines}"
    parser.add_argument("--check", nargs="+", metavar="ENGINE", default=[], help=help)
    parser.add_argument("--check_anyway", action="store_true", help="write it all the same")
    help = "of a model with pictures, export the text decoder alone"
    parser.add_argument("--text_only", action="store_true", help=help)
    group = parser.add_argument_group("GGUF")
    group.add_argument("--gguf", metavar="FILE", help="write this file, for llama.cpp")
    help = "of its matrices: F32, F16, BF16 or Q8_0; default: as the weights are stored, or as --dtype says"
    group.add_argument("--gguf_type", metavar="TYPE", default="auto", help=help)
    help = "auto: the model's own; none: the file has none; or the name of llama.cpp's pre-tokenizer for it, such as "
    help += "llama-bpe, where it is not found"
    group.add_argument("--gguf_tokenizer", metavar="WHICH", default="auto", help=help)
    options = parser.parse_args(argv)

    problems = _check_places(options)
    if options.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.\-]*", options.license):
        remedy = "give an id in small letters, such as apache-2.0, llama3 or other"
        problems.append(Problem("--license", options.license, "not an id of a licence", remedy))
    problems += table.check_names("--check", options.check)
    # seconds: not for --help
    import torch

    from tape_ds.checkpoint import source_model
    from tape_ds.export import config_json, folder, gguf_file, gguf_tokenizer
    from tape_ds.models.library_messages import quieten_libraries

    problems += gguf_tokenizer.check_choice(options.gguf_tokenizer)
    source = None
    with collecting(problems):
        source = source_model.find(
            options.source,
            base_anyway=options.base_anyway,
            any_llama=options.out is None and options.gguf is not None,
        )
    around = None
    if source is not None and options.out is not None and not options.text_only:
        with collecting(problems):
            around = _around(source, options)
    # engines read config.json alone: what they would compute is known before anything is written
    served: Mapping[str, Any] | None = None
    if options.out is not None and source is not None:
        served = config_json.planned(source.config)
        if around is not None:
            served = config_json.put_back(served, around)
        if not options.check_anyway:
            known = [name for name in options.check if name in table.engines()]
            problems += table.check_served("--check", known, served)
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    planned = None
    if options.gguf is not None and source is not None:
        kind = gguf_file.type_of(options.gguf_type, dtype or source.dtype)
        # the plan reads the tokenizer and the names of all tensors, which only make sense for a model that fits
        unfit = gguf_file.check(source, kind)
        problems += unfit
        name = options.name or Path(options.gguf).stem
        if not unfit:
            with collecting(problems):
                planned = gguf_file.plan(
                    source, kind, name, options.license, options.gguf_tokenizer
                )
    if options.push is not None:
        problems += folder.check_push(options.push)
    raise_if_any(problems)
    assert source is not None

    quieten_libraries()
    if served is not None:
        print_engines(served, options.check)
        _write_folder(options, source, dtype, around)
    if planned is not None:
        # once, with the folder, is enough: both are merged alike
        numbers = gguf_file.write(
            planned, source, Path(options.gguf), options.check_logits and served is None
        )
        print(f"{options.gguf}: {numbers / 1e6:,.2f} M numbers, {gguf_file.described(planned)}")
    if not source.has_tokenizer:
        print(f"no tokenizer: there is none in {source.folder}")
    return 0


def _check_places(options: argparse.Namespace) -> list[Problem]:
    """Return problems with the folder and the file to write, and with what belongs to one of them."""
    if options.out is None and options.gguf is None:
        return [Problem("out", None, "missing", "name a new folder, or a file: --gguf FILE")]
    problems = []
    if options.out is not None:
        out = Path(options.out)
        unfit = paths.check_new("out", out) or checkpoint.check_outside("out", out)
        if not unfit and not out.resolve().parent.is_dir():
            unfit.append(
                Problem("out", options.out, "the folder around it does not exist", "make it first")
            )
        problems += unfit
    else:
        if options.push is not None:
            problems.append(
                Problem(
                    "--push", options.push, "uploads a folder, and none is written", "name one: OUT"
                )
            )
        if options.text_only:
            wrong = "is asked of a folder, and none is written"
            problems.append(Problem("--text_only", True, wrong, "name one: OUT"))
        if options.check:
            wrong = "is asked of a folder, and none is written; what llama.cpp computes otherwise, no GGUF file holds"
            problems.append(Problem("--check", " ".join(options.check), wrong, "name one: OUT"))
    if options.gguf is not None:
        file = Path(options.gguf)
        unfit = paths.check_new("--gguf", file)
        if file.suffix != ".gguf":
            unfit.append(
                Problem(
                    "--gguf", options.gguf, "the name of a GGUF file ends in .gguf", f"{file}.gguf"
                )
            )
        elif not unfit and not file.resolve().parent.is_dir():
            unfit.append(
                Problem(
                    "--gguf", options.gguf, "the folder around it does not exist", "make it first"
                )
            )
        problems += unfit
    elif options.gguf_type != "auto" or options.gguf_tokenizer != "auto":
        given = "--gguf_tokenizer"
        if options.gguf_type != "auto":
            given = "--gguf_type"
        value = vars(options)[given[2:]]
        problems.append(
            Problem(
                given, value, "belongs to a GGUF file, and none is written", "name one: --gguf FILE"
            )
        )
    options.gguf_type = _TYPES.get(options.gguf_type.lower(), options.gguf_type)
    if options.gguf_type not in _TYPES.values():
        known = ", ".join(kind for kind in _TYPES.values() if kind != "auto")
        # all else is checked with the default
        problems.append(
            Problem(
                "--gguf_type",
                options.gguf_type,
                "not a type that is written",
                f"give one of {known}",
            )
        )
        options.gguf_type = "auto"
    return problems


def _around(source: "SourceModel", options: argparse.Namespace) -> "Wrapper | None":
    """Return the model with pictures whose decoder was trained; None of any other model."""
    from tape_ds.checkpoint import trained
    from tape_ds.export import folder, wrapped
    from tape_ds.models.files.config_file import SMOLLM2
    from tape_ds.models.loading import model_folder, wrapper

    if source.record is None or source.record.base is None:
        return None
    name = trained.base_name(source.record, options.base_anyway)
    if name == SMOLLM2 or name.endswith(".gguf"):
        return None
    whole = wrapper.find(model_folder.find_folder(name, with_weights=False))
    if whole is None:
        return None
    # compares it with the base that was trained on
    trained.find_base(source.folder, source.record, options.base_anyway)
    whole = replace(whole, folder=Path(model_folder.find_folder(name)))
    problems = wrapped.check(whole)
    if not folder.is_plain(source):
        encoding = getattr(source.config, "position_encoding", "rope")
        wrong = f"has positions ({encoding}) that the model around the decoder does not compute"
        problems.append(Problem("source", options.source, wrong, "--text_only"))
    if options.dtype != "auto":
        wrong = "the model around the decoder stays as it is stored"
        problems.append(Problem("--dtype", options.dtype, wrong, "leave it out, or --text_only"))
    raise_if_any(problems)
    return whole


def _write_folder(
    options: argparse.Namespace, source: "SourceModel", dtype: Any, around: "Wrapper | None"
) -> None:
    from tape_ds.export import folder, wrapped

    out = Path(options.out)
    model = folder.write(
        source,
        out,
        options.name or out.resolve().name,
        options.license,
        dtype,
        options.check_logits,
        around,
    )
    plain = folder.is_plain(source)
    kind = "with its own code, modeling_tape.py and what it imports"
    if plain:
        kind = "plain transformers"
    name = type(model).__name__
    if around is not None:
        name = f"{around.class_name} with a {name}"
    print(f"{out}: {name}, {model.num_parameters() / 1e6:,.2f} M parameters, {model.dtype}, {kind}")
    if around is not None:
        print(f"put back into {around.folder}, whose other tensors and files are unchanged")
        if left := wrapped.other_weights(around):
            print(
                f"not copied, since they hold untrained weights: {', '.join(f.name for f in left)}"
            )
    if source.result is None:
        print(f"model card without results: {source.without_result}")
    if options.push is not None:
        print(f"uploaded to {folder.push(options.push, out)}")


def print_engines(served: Mapping[str, Any], checked: Collection[str]) -> None:
    """Say what engines compute of the ``config.json`` that is to be written: of those that are checked, and in a line
    each where one needs a flag or is silently wrong."""
    print(f"other engines: {table.summary(served)}")
    for verdict in table.verdicts(served):
        if verdict.engine.name in checked or verdict.result in ("flag", "wrong"):
            print(f"  {verdict}", flush=True)
