"""CTranslate2, by its converter for transformers' folders."""

import shutil
import tempfile
from pathlib import Path

import common
import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter


def load(folder: Path, flags: str) -> tuple[common.Compute, None]:
    out = Path(tempfile.mkdtemp())
    try:
        TransformersConverter(str(folder)).convert(str(out), force=True)
        generator = ctranslate2.Generator(
            str(out), device="cpu", compute_type="float32", intra_threads=1
        )
    finally:
        shutil.rmtree(out)

    def compute(ids: list[int]) -> np.ndarray:
        words = [f"w{token}" for token in ids]
        return np.array(generator.forward_batch([words]))[0]

    return compute, None


if __name__ == "__main__":
    common.main("ctranslate2", load)
