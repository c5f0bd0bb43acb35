"""Names of fields in other code and in older versions (docs/coming_from.md), for the message about an unknown field."""

import re
from collections.abc import Collection

RENAMED = {"stream_lanes": "stream_workers"}
"""Fields under the names that stored results and checkpoints may have them by."""
_NAMES: dict[str, tuple[str, ...]] = {
    "batch_size": ("global_batch_size",),
    "block_size": ("max_tokens", "window"),
    "config_name": ("hidden_size, and the other sizes", "nothing: the model's folder has its configuration"),
    "dataset": ("nothing: SCROLLS has recipes of its own, as scrolls/qasper",),
    "dataset_cache_dir": ("train_data",),
    "deepspeed_config": ("deepspeed",),
    "evaluation_strategy": ("eval_data",),
    "excess_length_strategy": ("too_long",),
    "inference_length": ("eval_length",),
    "low_rank_training": ("method",),
    "lr": ("learning_rate",),
    "method": ("nothing: every parameter is trained",),
    "model_max_length": ("target_length", "max_tokens", "window"),
    "model_max_position_embeddings": ("window",),
    "model_name_or_path": ("model", "nothing: the model is built new from its sizes"),
    "no_cuda": ("use_cpu",),
    "num_epochs": ("num_train_epochs",),
    "overwrite_output_dir": ("output_dir",),
    "peft_type": ("method",),
    "preprocessing_num_workers": ("nothing: sequences are tokenised once and kept",),
    "rope_scaling": ("rope_parameters",),
    "rope_scaling_factor": ("rope_parameters.factor",),
    "rope_scaling_type": ("rope_parameters.rope_type",),
    "rpe_type": ("position_encoding",),
    "sequence_len": ("max_tokens",),
    "tokenizer": ("model (the tokenizer comes with it)", "task, which has its own letters"),
    "tokenizer_name": ("tokenizer", "model (the tokenizer comes with it)"),
    "train_scale": ("window",),
    "trainable_params": ("train_position, train_norms and train_embeddings",),
    "use_flash_attention_2": ("attention_backend",),
    "use_flash_attn": ("attention_backend",),
    "use_full_attn": ("attention_backend",),
    "val_set_size": ("eval_share",),
    "test_data_file": ("eval_data",),
    "train_data_file": ("train_data",),
    "valid_data_file": ("eval_data",),
    "window": ("max_tokens",),
    "warmup_ratio": ("warmup_steps (a number below 1 is the share of all steps)",),
}
"""Old name -> names today, of which the first that a recipe of this kind has is meant."""


def today(name: str, known: Collection[str]) -> str | None:
    """Return what stands for a name today among the fields ``known``; None where it is no old name of theirs."""
    for each in _NAMES.get(name, ()):
        if re.split(r"[ .,:]", each)[0] in (*known, "nothing"):
            return each
    return None
