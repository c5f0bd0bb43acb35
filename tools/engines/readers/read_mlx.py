"""mlx-lm on a CPU."""

from pathlib import Path

import common
import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model


def load(folder: Path, flags: str) -> tuple[common.Compute, None]:
    model, _ = load_model(folder)
    model.eval()

    def compute(ids: list[int]) -> np.ndarray:
        return np.array(model(mx.array([ids]))[0].astype(mx.float32))

    return compute, None


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    common.main("mlx-lm", load)
