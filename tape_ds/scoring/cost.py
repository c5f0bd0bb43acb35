"""What an evaluation took since its model was loaded: seconds, and the memory of the process that needed most."""

import time
from typing import Any

import torch

from tape_ds.distributed.rank_sync import RankSync
from tape_ds.training import metrics


class Cost:
    """Begins to count where it is made."""

    def __init__(self, device: torch.device):
        self.device = device
        self.started = time.monotonic()
        metrics.reset_peak_memory(device)

    def taken(self, **counts: int) -> dict[str, Any]:
        """``seconds``, ``peak_memory_bytes`` and ``counts``, for a result's ``cost``; every process must call it."""
        peak = max(RankSync().objects(metrics.peak_memory_bytes(self.device)))
        return {"seconds": time.monotonic() - self.started, "peak_memory_bytes": peak, **counts}
