"""Each kind of recipe, loaded from a command line."""

from functools import partial

from tape_ds.config import kinds
from tape_ds.config.loading import load

extension, pretraining, chat, scrolls, generated = (
    partial(load, kind=kinds.KINDS[name])
    for name in ("extend_llama", "pretrain_c4", "finetune", "finetune_scrolls", "train_generated")
)
