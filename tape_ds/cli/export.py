"""Make a folder that loads where tape_ds is not installed.

    tape-ds export SOURCE OUT [--dtype bfloat16] [--name NAME] [--license ID] [--push NAME] [--check ENGINE...]

SOURCE is the folder of a run, its folder ``trained``, one of its checkpoints, or a TAPE model folder. A model with
RoPE scaling that transformers knows becomes an ordinary Llama (Qwen2, Qwen3) folder; any other carries its code
and loads with ``AutoModelForCausalLM.from_pretrained(OUT, trust_remote_code=True)``. README.md is the model card:
read it before you publish the folder. ``--push`` uploads the folder to the Hugging Face hub, where it is private until
you change that on its page. ``--check`` refuses a folder that an engine would silently compute as another model.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tape_ds import checkpoint, paths
from tape_ds.arguments import Parser, add_new_folder
from tape_ds.engines import table
from tape_ds.errors import Problem, collecting, command, raise_if_any


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds export", description=__doc__)
    add_new_folder(parser, "source")
    parser.add_argument("--name", help="of the model, in its card; default: the name of OUT")
    parser.add_argument("--license", help="of the weights, as the hub names licences; default: the card has none")
    parser.add_argument("--push", metavar="NAME", help="upload the folder to the Hugging Face hub as this model")
    parser.add_argument(
        "--check",
        nargs="+",
        metavar="ENGINE",
        default=[],
        help=f"refuse what one of these would silently compute as another model: {', '.join(table.engines())}",
    )
    parser.add_argument("--check_anyway", action="store_true", help="write it all the same")
    options = parser.parse_args(argv)

    out = Path(options.out)
    problems = paths.check_new("out", out) or checkpoint.check_outside("out", out)
    if not problems and not out.resolve().parent.is_dir():
        problems.append(Problem("out", options.out, "the folder around it does not exist", "make it first"))
    if options.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.\-]*", options.license):
        remedy = "give an id in small letters, such as apache-2.0, llama3 or other"
        problems.append(Problem("--license", options.license, "not an id of a licence", remedy))
    problems += table.check_names("--check", options.check)
    import torch

    from tape_ds.checkpoint import source_model
    from tape_ds.export import config_json, folder
    from tape_ds.models.library_messages import quieten_libraries

    with collecting(problems):
        source = source_model.find(options.source, base_anyway=options.base_anyway)
        served = config_json.planned(source.config)
        if not options.check_anyway:
            problems += table.check_served(
                "--check", [name for name in options.check if name in table.engines()], served
            )
    if options.push is not None:
        problems += folder.check_push(options.push)
    raise_if_any(problems)

    print_engines(served, options.check)
    quieten_libraries()
    dtype = None if options.dtype == "auto" else getattr(torch, options.dtype)
    model = folder.write(source, out, options.name or out.resolve().name, options.license, dtype)
    plain = folder.is_plain(source)
    kind = "plain transformers" if plain else "with its own code, modeling_tape.py and what it imports"
    print(f"{out}: {type(model).__name__}, {model.num_parameters() / 1e6:,.2f} M parameters, {model.dtype}, {kind}")
    if source.result is None:
        print(f"model card without results: {source.without_result}")
    if not source.has_tokenizer:
        print(f"no tokenizer: there is none in {source.folder}")
    if options.push is not None:
        print(f"uploaded to {folder.push(options.push, out)}")
    return 0


def print_engines(served: Mapping[str, Any], checked: Collection[str]) -> None:
    """Say what engines compute of the ``config.json`` that is to be written: of those that are checked, and in a line
    each where one needs a flag or is silently wrong."""
    print(f"other engines: {table.summary(served)}")
    for verdict in table.verdicts(served):
        if verdict.engine.name in checked or verdict.result in ("flag", "wrong"):
            print(f"  {verdict}", flush=True)
