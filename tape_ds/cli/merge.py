"""Merge the trained weights of a run with their base model into a whole model folder.

    tape-ds merge runs/demo OUT [--dtype bfloat16]

The first argument is a run's folder, its folder ``trained`` or one of its checkpoints: position updates, norms and
embeddings are loaded into the base model that the folder names, adapters are merged. This is done in fp32, and the
merged model's logits are compared with the adapter model's before anything is written. After ``tape_ds.register()``,
OUT loads with ``AutoModelForCausalLM.from_pretrained(OUT)``; ``tape-ds export`` makes a folder that needs no
``tape_ds``.
"""

from pathlib import Path

from tape_ds import building, checkpoint, paths, run_folder
from tape_ds.arguments import Parser, add_new_folder
from tape_ds.errors import command, raise_if_any


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds merge", description=__doc__)
    add_new_folder(parser, "trained")
    options = parser.parse_args(argv)
    out, folder = Path(options.out), run_folder.trained_of(Path(options.trained))
    raise_if_any(paths.check_new("out", out) or checkpoint.check_outside("out", out))
    import torch

    from tape_ds.checkpoint import merging, trained
    from tape_ds.data import tokenizer as tokenizers
    from tape_ds.models import saving
    from tape_ds.models.library_messages import quieten_libraries

    quieten_libraries()
    record = trained.read_record(folder)
    tokenizer = tokenizers.load_tokenizer(str(folder), "trained")
    original = merging.original_dtype(folder, base_anyway=options.base_anyway)
    model = merging.merge(folder, base_anyway=options.base_anyway)
    dtype = original if options.dtype == "auto" else getattr(torch, options.dtype)
    model.to(dtype).config.use_cache = True
    tokenizer.model_max_length = model.config.max_position_embeddings

    def write(folder: Path) -> None:
        saving.save(model, folder)
        tokenizers.save(tokenizer, folder)

    building.build_aside(out, write, "out")
    origin = record.base or "from scratch"
    print(f"{options.out}: {origin} + {record.method}, {model.num_parameters() / 1e6:,.2f} M parameters")
    return 0
