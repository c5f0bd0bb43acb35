"""``extend_llama.py`` whose plan chooses for an A100, while a CPU computes."""

import sys

from tape_ds.cli import train
from tape_ds.planning import hardware, recipe_job


def main() -> int:
    """The launcher's."""

    from tape_ds.training.runs import assembly

    assembly.settle_here = lambda recipe, config: recipe_job.settle(
        recipe, config, hardware.find("a100-80")
    )
    return train.main("extend_llama")


if __name__ == "__main__":
    sys.exit(main())
