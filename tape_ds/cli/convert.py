"""Convert a checkpoint between model families.

    tape-ds convert llama-to-tape SOURCE OUT [--position_encoding tape] [--position_options JSON]
    tape-ds convert tape-to-llama SOURCE OUT
    tape-ds convert reference-to-tape SOURCE OUT --variant adape

SOURCE is a folder, a hub id, a ``.gguf`` file or ``smollm2``; for ``reference-to-tape`` a folder with the published
TAPE code's ``config.json`` and its weights as safetensors. ``tape-to-llama`` gives a Qwen2 where the model was one.
An existing folder is never overwritten.

``--rows 32000`` keeps the first 32,000 rows of the vocabulary (a checkpoint with a row for ``[PAD]`` then fits its
base), and never drops a row whose token the tokenizer has: ``--tokenizer NAME_OR_PATH`` gives the model another
tokenizer, such as its base's.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from tape_ds import building, checkpoint, paths
from tape_ds.arguments import Parser
from tape_ds.errors import Problem, UserError, command, raise_if_any

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds convert", description=__doc__)
    parser.add_argument("kind", choices=["llama-to-tape", "tape-to-llama", "reference-to-tape"])
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--position_encoding", default="tape")
    parser.add_argument("--position_options", type=json.loads, help="options of the encoding, as JSON")
    parser.add_argument("--variant", help="for reference-to-tape: that code's model file, such as adape")
    parser.add_argument("--rows", type=int, help="keep this many rows of the vocabulary, the first ones")
    parser.add_argument("--tokenizer", help="folder or hub id of the tokenizer; default: the source's")
    options = parser.parse_args(argv)
    from tape_ds import encodings
    from tape_ds.run_folder import check_whole

    out = Path(options.out)
    problems = paths.check_new("out", out) or checkpoint.check_outside("out", out)
    problems += check_whole("source", options.source, options.source)
    problems += paths.check_fetched("source", options.source)
    if options.kind == "reference-to-tape" and options.variant is None:
        problems.append(Problem("--variant", None, "missing", "name the published model file, such as adape"))
    if not isinstance(options.position_options, dict | None):
        wrong, remedy = "not a mapping", 'give a mapping, such as {"rank": 64}'
        problems.append(Problem("--position_options", options.position_options, wrong, remedy))
    elif options.kind == "llama-to-tape":
        problems += encodings.check_options(options.position_encoding, options.position_options or {})
    if options.rows is not None and options.rows < 1:
        problems.append(Problem("--rows", options.rows, "no vocabulary", "give the number of rows to keep"))
    raise_if_any(problems)

    from tape_ds.data import tokenizer as tokenizers
    from tape_ds.models import saving
    from tape_ds.models.library_messages import quieten_libraries

    quieten_libraries()
    model, tokenizer = convert_source(options)

    def write(folder: Path) -> None:
        saving.save(model, folder)
        if tokenizer is not None:
            tokenizers.save(tokenizer, folder)

    building.build_aside(Path(options.out), write, "out")
    print(f"{options.out}: {type(model).__name__}, {model.num_parameters() / 1e6:,.2f} M parameters")
    return 0


def convert_source(options: argparse.Namespace) -> tuple[Any, Any]:
    """Return the converted model and its tokenizer (None: a reference checkpoint without one), rows compared and cut.
    Raises UserError: a source that cannot be converted, or rows that cannot be dropped."""
    from tape_ds.data import tokenizer as tokenizers
    from tape_ds.models import convert
    from tape_ds.models.loading import exact, extendable, json_file, library_errors, model_folder, weight_files
    from tape_ds.models.loading.reference_checkpoint import from_reference

    source = options.source
    if options.kind == "reference-to-tape":
        folder = Path(source)
        files = sorted(folder.glob("*.safetensors"))
        if not files or not (folder / "config.json").is_file():
            remedy = "give a folder with config.json and *.safetensors (no pickles are read)"
            raise UserError(Problem("source", source, "no reference checkpoint", remedy))
        tensors = {name: tensor for file in files for name, tensor in weight_files.read(file, "source").items()}
        config = json_file.read(folder / "config.json", "source", source)
        with library_errors.as_message("it could not be converted", "source", source, "give the folder as published"):
            model = from_reference(tensors, config, options.variant)
    else:
        source = model_folder.resolve(source)
        changes: dict[str, Any] = {}
        if options.kind == "llama-to-tape":
            changes = {name: getattr(options, name) for name in ("position_encoding", "position_options")}
        native = extendable.read(source)
        config = convert.tape_config(native, **changes)
        extendable.check_weights(source, config)  # before memory is taken for what config.json says
        model = convert.load(source, config, dtype=exact.stored_dtype(source, native))
    exact.require_finite(model, "source", options.source)

    tokenizer = None
    if options.tokenizer is not None:
        tokenizer = tokenizers.load_tokenizer(options.tokenizer, "--tokenizer")
    elif not Path(source).is_dir() or any((Path(source) / name).is_file() for name in _TOKENIZER_FILES):
        tokenizer = tokenizers.load_tokenizer(source, "source")
    if tokenizer is not None:
        raise_if_any(convert.check_rows(model.config, tokenizer))
        if options.rows is not None:
            print(f"rows of the vocabulary: {model.config.vocab_size:,} -> {options.rows:,}")
            model = convert.cut_rows(model, options.rows, tokenizer)
        if note := convert.rows_note(model.config, tokenizer):
            print(note)
    elif options.rows is not None:
        remedy = "name the tokenizer that goes with the model: its tokens keep their rows"
        raise UserError(Problem("--tokenizer", None, "missing: the source has none", remedy))
    return (convert.to_plain(model) if options.kind == "tape-to-llama" else model), tokenizer
