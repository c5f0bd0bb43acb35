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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tape_ds import building, checkpoint, paths
from tape_ds.arguments import Parser, values_of
from tape_ds.errors import Problem, UserError, collecting, command, raise_if_any

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds convert", description=__doc__)
    parser.add_argument("kind", choices=["llama-to-tape", "tape-to-llama", "reference-to-tape"])
    parser.add_argument("source")
    parser.add_argument("out")
    parser.add_argument("--position_encoding", default="tape")
    parser.add_argument(
        "--position_options", type=json.loads, help="options of the encoding, as JSON"
    )
    parser.add_argument(
        "--variant", help="for reference-to-tape: that code's model file, such as adape"
    )
    parser.add_argument(
        "--rows", type=int, help="keep this many rows of the vocabulary, the first ones"
    )
    parser.add_argument(
        "--tokenizer", help="folder or hub id of the tokenizer; default: the source's"
    )
    options = parser.parse_args(argv)
    from tape_ds import encodings
    from tape_ds.run_folder import check_whole

    out = Path(options.out)
    problems = paths.check_new("out", out) or checkpoint.check_outside("out", out)
    problems += check_whole("source", options.source, options.source)
    problems += paths.check_fetched("source", options.source)
    if options.kind == "reference-to-tape" and options.variant is None:
        problems.append(
            Problem("--variant", None, "missing", "name the published model file, such as adape")
        )
    if not isinstance(options.position_options, dict | None):
        wrong = "not a mapping"
        remedy = 'give a mapping, such as {"rank": 64}'
        problems.append(Problem("--position_options", options.position_options, wrong, remedy))
    elif options.kind == "llama-to-tape":
        with collecting(problems), parser.as_typed():
            raise_if_any(
                encodings.check_options(options.position_encoding, options.position_options or {})
            )
    if options.rows is not None and options.rows < 1:
        problems.append(
            Problem("--rows", options.rows, "no vocabulary", "give the number of rows to keep")
        )
    raise_if_any(problems)

    from tape_ds.data import tokenizer as tokenizers
    from tape_ds.models.library_messages import quieten_libraries

    quieten_libraries()
    with parser.as_typed():
        converted, tokenizer = convert_source(options)
    model: Any = None

    def write_folder(folder: Path) -> None:
        nonlocal model
        model = converted(folder)
        if tokenizer is not None:
            tokenizers.save(tokenizer, folder)

    with parser.as_typed():
        building.build_aside(Path(options.out), write_folder, "out")
    print(
        f"{options.out}: {type(model).__name__}, {model.num_parameters() / 1e6:,.2f} M parameters"
    )
    return 0


def convert_source(options: argparse.Namespace) -> tuple[Callable[[Path], Any], Any]:
    """Return what writes the converted model into a folder and returns it, and its tokenizer (None: a reference
    checkpoint without one), rows compared. Raises UserError: a source that cannot be converted, or rows that cannot be
    dropped."""
    from tape_ds.checkpoint import merging
    from tape_ds.models import convert, saving
    from tape_ds.models.files import exact
    from tape_ds.models.loading import extendable, model_folder

    source = options.source
    if options.kind == "reference-to-tape":
        reference = _from_reference(source, options.variant)
        config: Any = reference.config
        exact.require_finite(reference, "source", source)
    else:
        source = model_folder.resolve(source)
        changes: dict[str, Any] = {}
        if options.kind == "llama-to-tape":
            changes = values_of(options, ("position_encoding", "position_options"))
        native = extendable.read(source)
        config = convert.tape_config(native, **changes)
        # before memory is taken for what config.json says
        extendable.check_weights(source, config)
    tokenizer = _tokenizer(options, source)
    if tokenizer is not None:
        raise_if_any(convert.check_rows(config, tokenizer))
        if options.rows is not None:
            print(f"rows of the vocabulary: {config.vocab_size:,} -> {options.rows:,}")
    elif options.rows is not None:
        remedy = "name the tokenizer that goes with the model: its tokens keep their rows"
        raise UserError(Problem("--tokenizer", None, "missing: the source has none", remedy))

    def change(model: Any) -> Any:
        if options.rows is not None:
            model = convert.cut_rows(model, options.rows, tokenizer)
        if options.kind == "tape-to-llama":
            return convert.to_plain(model)
        return model

    if options.kind == "reference-to-tape":
        changed = change(reference)
        _note(changed.config, tokenizer)

        def save(folder: Path) -> Any:
            saving.save(changed, folder)
            return changed

        return save, tokenizer

    load = partial(convert.load, source, config)
    whole = merging.of_folder(Path(source), load, config, "source", options.source)

    def write_whole(folder: Path) -> Any:
        model = whole.write(folder, exact.stored_dtype(source, native), change)
        _note(model.config, tokenizer)
        return model

    return write_whole, tokenizer


def _from_reference(source: str, variant: str) -> Any:
    from tape_ds.models.files import json_file, library_errors, weight_files
    from tape_ds.models.loading.reference_checkpoint import from_reference

    folder = Path(source)
    files = sorted(folder.glob("*.safetensors"))
    if not files or not (folder / "config.json").is_file():
        remedy = "give a folder with config.json and *.safetensors (no pickles are read)"
        raise UserError(Problem("source", source, "no reference checkpoint", remedy))
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= weight_files.read(file, "source")
    config = json_file.read(folder / "config.json", "source", source)
    with library_errors.as_message(
        "it could not be converted", "source", source, "give the folder as published"
    ):
        return from_reference(tensors, config, variant)


def _tokenizer(options: argparse.Namespace, source: str) -> Any:
    """Return the tokenizer that was asked for, or the source's; None: it has none."""
    from tape_ds.data import tokenizer as tokenizers

    if options.tokenizer is not None:
        return tokenizers.load_tokenizer(options.tokenizer, "--tokenizer")
    # any other source was found by name, and has one
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None
    return tokenizers.load_tokenizer(source, "source")


def _note(config: Any, tokenizer: Any) -> None:
    from tape_ds.models import convert

    if tokenizer is not None and (note := convert.rows_note(config, tokenizer)):
        print(note)
