"""OpenVINO, by the converter of optimum-intel (fp32, CPU)."""

from pathlib import Path

import common
import numpy as np
import torch
from optimum.intel import OVModelForCausalLM

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}


def load(folder: Path, flags: str) -> tuple[common.Compute, None]:
    model = OVModelForCausalLM.from_pretrained(
        str(folder), export=True, load_in_8bit=False, ov_config=EXACT
    )

    def compute(ids: list[int]) -> np.ndarray:
        asked = torch.tensor([ids])
        return np.array(model(input_ids=asked, attention_mask=torch.ones_like(asked)).logits[0])

    return compute, None


if __name__ == "__main__":
    common.main("openvino", load)
