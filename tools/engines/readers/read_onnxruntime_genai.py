"""onnxruntime-genai, by its model builder (fp32, CPU)."""

import tempfile
from pathlib import Path

import common
import numpy as np
import onnxruntime_genai as og
from onnxruntime_genai.models import builder


def load(folder: Path, flags: str) -> tuple[common.Compute, None]:
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "model"
        asked = ("", str(folder), str(out), "fp32", "cpu", str(Path(temporary) / "cache"))
        builder.create_model(*asked, **builder.parse_extra_options(*asked, []))
        model = og.Model(str(out))

    def compute(ids: list[int]) -> np.ndarray:
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(max_length=len(ids) + 1)
        generator = og.Generator(model, parameters)
        generator.append_tokens(np.array([ids], dtype=np.int32))
        return np.array(generator.get_output("logits"))[0]

    return compute, None


if __name__ == "__main__":
    common.main("onnxruntime-genai", load)
