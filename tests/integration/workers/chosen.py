"""``extend_llama.py`` whose plan chooses for an A100, while a CPU computes."""

import sys

from tape_ds.cli import train
from tape_ds.planning import hardware, recipe_job


def main() -> int:
    """The launcher's."""

    def settle_here(recipe, config_of):
        return recipe_job.settle(recipe, config_of(recipe), hardware.find("a100-80"))

    recipe_job.settle_here = settle_here
    return train.main("extend_llama")


if __name__ == "__main__":
    sys.exit(main())
