"""Convert a checkpoint between model families.

    python tools/convert_checkpoint.py llama-to-tape SOURCE OUT [--position_encoding tape] [--position_options JSON]
    python tools/convert_checkpoint.py tape-to-llama SOURCE OUT
    python tools/convert_checkpoint.py reference-to-tape SOURCE OUT --variant adape

SOURCE is a folder, a hub id, a ``.gguf`` file or ``smollm2``; for ``reference-to-tape`` a folder with the published
TAPE code's ``config.json`` and its weights as safetensors. A folder that is there is never written over.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tape_ds.errors import Problem, UserError, command, raise_if_any


@command
def main(argv: list[str] | None = None) -> int:
    """Parse, check, convert."""
    options = parse(argv)
    check(options)
    from transformers import AutoTokenizer

    from tape_ds.model import convert

    if options.kind == "reference-to-tape":
        model = from_reference_folder(Path(options.source), options.variant)
        tokenizer = None
    else:
        source = convert.resolve(options.source)
        changes: dict[str, Any] = {}
        if options.kind == "llama-to-tape":
            changes["position_encoding"] = options.position_encoding
            changes["position_options"] = options.position_options
        model = convert.load(source, convert.tape_config(convert.read_config(source), **changes), dtype="auto")
        if options.kind == "tape-to-llama":
            model = convert.to_llama(model)
        tokenizer = AutoTokenizer.from_pretrained(source)
    model.save_pretrained(options.out)
    if tokenizer is not None:
        tokenizer.save_pretrained(options.out)
    print(f"{options.out}: {type(model).__name__}, {model.num_parameters() / 1e6:,.2f} M parameters")
    return 0


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["llama-to-tape", "tape-to-llama", "reference-to-tape"])
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--position_encoding", default="tape")
    parser.add_argument("--position_options", type=json.loads, help="options of the encoding, as JSON")
    parser.add_argument("--variant", help="for reference-to-tape: that code's model file, such as adape")
    return parser.parse_args(argv)


def check(options: argparse.Namespace) -> None:
    """What can be known before anything loads.

    Raises:
        UserError: naming every problem.
    """
    from tape_ds.model import positions
    from tape_ds.training.checkpoint import check_whole

    problems = []
    if Path(options.out).exists():
        problems.append(Problem("out", options.out, "exists", "name a new folder"))
    problems += check_whole("source", options.source, options.source)
    if options.kind == "reference-to-tape" and options.variant is None:
        problems.append(Problem("--variant", None, "missing", "name the published model file, such as adape"))
    if options.kind == "llama-to-tape":
        problems += positions.check_options(options.position_encoding, options.position_options or {})
    raise_if_any(problems)


def from_reference_folder(folder: Path, variant: str) -> Any:
    """A reference checkpoint's safetensors and ``config.json``.

    Raises:
        UserError: one of them is not there.
    """
    from safetensors.torch import load_file

    from tape_ds.model.reference_checkpoint import from_reference

    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        remedy = "give a folder with config.json and *.safetensors (no pickles are read)"
        raise UserError(Problem("source", str(folder), "no reference checkpoint", remedy))
    tensors = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return from_reference(tensors, json.loads((folder / "config.json").read_text()), variant)


if __name__ == "__main__":
    sys.exit(main())
