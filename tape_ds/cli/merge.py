"""Merge trained weights with their base model into a whole model folder.

    tape-ds merge runs/demo OUT [--dtype bfloat16]

The first argument is a run's folder, its folder ``trained`` or one of its checkpoints: position updates, norms and
embeddings are loaded into the base model that the folder names, adapters are merged. Or it is the folder of an adapter
that peft saved, with the base that its adapter_config.json names. Tensors are read, merged in fp32 and written one
after another, and every merged layer is compared with the layer and its adapter: a folder is written only if they
agree. After ``tape_ds.register()``, OUT loads with ``AutoModelForCausalLM.from_pretrained(OUT)``; ``tape-ds export``
makes a folder of a run that needs no ``tape_ds``.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tape_ds import building, checkpoint, paths, run_folder
from tape_ds.arguments import Parser, add_new_folder
from tape_ds.errors import command, raise_if_any
from tape_ds.models.files import config_file, json_file, weight_files

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from tape_ds.checkpoint.merging import WholeModel


@command
def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="tape-ds merge", description=__doc__)
    add_new_folder(parser, "trained")
    options = parser.parse_args(argv)
    out = Path(options.out)
    folder = run_folder.trained_of(Path(options.trained))
    raise_if_any(paths.check_new("out", out) or checkpoint.check_outside("out", out))
    # seconds: not for --help
    import torch

    from tape_ds.data import tokenizer as tokenizers
    from tape_ds.models.library_messages import quieten_libraries

    quieten_libraries()
    of_peft = weight_files.is_adapter(folder) and not (folder / run_folder.RECORD).is_file()
    read = _of_peft if of_peft else _of_run
    merged = read(folder, options.base_anyway, options.check_logits)
    dtype = merged.dtype if options.dtype == "auto" else getattr(torch, options.dtype)
    parameters = 0

    # training turns the key/value cache off, and a whole model is there to generate
    def with_cache(model: "PreTrainedModel") -> "PreTrainedModel":
        model.config.use_cache = True
        return model

    def write(folder: Path) -> None:
        nonlocal parameters
        model = merged.model.write(folder, dtype, with_cache)
        parameters = model.num_parameters()
        if merged.tokenizer is not None:
            # peft keeps the tokenizer as it was before training made the model's context longer
            length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
            if length is not None:
                merged.tokenizer.model_max_length = length
            tokenizers.save(merged.tokenizer, folder)

    building.build_aside(out, write, "out")
    print(f"{options.out}: {merged.origin}, {parameters / 1e6:,.2f} M parameters")
    if merged.tokenizer is None:
        print("no tokenizer: neither the adapter's folder nor its base's has one")
    return 0


class _Merged(NamedTuple):
    model: "WholeModel"
    tokenizer: Any
    dtype: "torch.dtype"
    """In which the base is stored."""
    origin: str
    """For people."""


def _of_run(folder: Path, base_anyway: bool, check_logits: bool) -> _Merged:
    from tape_ds.checkpoint import merging, trained
    from tape_ds.data import tokenizer as tokenizers

    record = trained.read_record(folder)
    tokenizer = tokenizers.load_tokenizer(str(folder), "trained")
    dtype = merging.original_dtype(folder, base_anyway=base_anyway)
    model = merging.of_run(folder, base_anyway=base_anyway, check_logits=check_logits)
    return _Merged(model, tokenizer, dtype, f"{record.base or 'from scratch'} + {record.method}")


def _of_peft(folder: Path, base_anyway: bool, check_logits: bool) -> _Merged:
    from tape_ds.scoring import models

    found = models.find_adapter(str(folder), base_anyway=base_anyway, check_logits=check_logits)
    has_tokenizer = config_file.has_tokenizer(found.tokenizer_name_or_path)
    tokenizer = found.tokenizer() if has_tokenizer else None
    base = json_file.read(folder / weight_files.ADAPTER_CONFIG, "trained", str(folder))[
        "base_model_name_or_path"
    ]
    assert found.whole is not None
    return _Merged(found.whole, tokenizer, found.dtype, f"{base} + the adapter {folder}")
