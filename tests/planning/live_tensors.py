"""Counts the bytes of the tensors that live while code runs, and the most there were at once.

A dispatch mode sees every tensor that an operator returns, and a storage's end ends its count. What an operator of ours
needs for a moment inside itself is not seen, as a kernel's own memory would not be on a GPU; but for the loss, whose
chunks of logits are ordinary tensors there too.

A product of bf16 is computed in fp32 below the mode: its bytes are the same, and a CPU without bf16 takes up to fifty
times as long for it.
"""

import weakref

import torch
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOOKED_INTO = ("tape_ds::linear_cross_entropy",)
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)


class LiveTensors(TorchDispatchMode):
    """Within the block, ``now`` and ``peak`` are the bytes of live storages that were made in it."""

    def __init__(self):
        super().__init__()
        self.now = 0
        self.peak = 0
        self._known = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.name().split(".")[0] if hasattr(function, "name") else ""
        if name in LOOKED_INTO:
            with self:
                found = OPDEFS[name]._init_fn(*args, **(kwargs or {}))
        elif function in PRODUCTS and args[0].dtype == torch.bfloat16:
            found = function(args[0].float(), args[1].float()).bfloat16()
        else:
            found = function(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, torch.Tensor) and each.device.type == "cpu":
                self._count(each.untyped_storage())
        return found

    def _count(self, storage):
        if storage in self._known:
            return
        size = storage.nbytes()
        self._known[storage] = size
        weakref.finalize(storage, self._end, size)
        self.now += size
        self.peak = max(self.peak, self.now)

    def _end(self, size):
        self.now -= size

    def begin_anew(self):
        self.peak = self.now
