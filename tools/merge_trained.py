"""Turn what a run trained into a whole model folder.

    python tools/merge_trained.py runs/demo/trained OUT [--dtype bfloat16]

The first argument is the folder ``trained`` of a run or one of its checkpoints: position updates, norms and embeddings
are put onto the base model that the folder names, adapters are merged in. OUT then loads with
``AutoModelForCausalLM.from_pretrained(OUT)`` wherever ``import tape_ds`` has run.
"""

import argparse
import sys
from pathlib import Path

from tape_ds.errors import Problem, UserError, command


@command
def main(argv: list[str] | None = None) -> int:
    """Load, merge, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained")
    parser.add_argument("out")
    parser.add_argument("--dtype", default="auto", choices=["auto", "float32", "bfloat16", "float16"])
    options = parser.parse_args(argv)
    if Path(options.out).exists():
        raise UserError(Problem("out", options.out, "exists", "name a new folder"))
    from transformers import AutoTokenizer

    from tape_ds.training import checkpoint

    record = checkpoint.read_record(options.trained)
    tokenizer = AutoTokenizer.from_pretrained(options.trained)
    model = checkpoint.merge(options.trained, dtype=options.dtype)
    model.config.use_cache = True
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    origin = record.base or "from scratch"
    print(f"{options.out}: {origin} + {record.method}, {model.num_parameters() / 1e6:,.2f} M parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
