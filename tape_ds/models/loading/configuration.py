"""The configuration of a model folder or hub id, as transformers holds it. Code in the folder is never run unasked."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from tape_ds.encodings import trained_rope
from tape_ds.errors import UserError
from tape_ds.models import gptj
from tape_ds.models.loading import baichuan
from tape_ds.models.loading.config_file import unreadable
from tape_ds.models.loading.families import BAICHUAN, has_llamas_names
from tape_ds.registration import register


def read(source: str | Path, *, trust_remote_code: bool | None = None, **hub_arguments: Any) -> PreTrainedConfig:
    """Return the configuration of a folder or hub id; a Baichuan2-7B's is that of the Llama it becomes, a GPT-J's has
    the RoPE parameters that transformers' own lacks.

    A Llama-shaped model's has the length that its own RoPE scaling reaches as ``max_position_embeddings``, and complete
    ``rope_parameters``, from either published form. ``trust_remote_code``: whether code that comes with it may be run;
    None: no, and the command has no such option.
    """
    try:
        content, _ = PreTrainedConfig.get_config_dict(source, **hub_arguments)
        if not isinstance(content, dict):
            raise ValueError("it is no mapping")
        if content.get("model_type") == BAICHUAN:
            return baichuan.llama_config(content, str(source))
        register()  # AutoConfig reads folders of this package as well
        config = AutoConfig.from_pretrained(source, trust_remote_code=bool(trust_remote_code), **hub_arguments)
        config = gptj.with_rope(config)
    except UserError:
        raise  # of a TAPE folder or a Baichuan: it names the field
    except Exception as error:  # of a file of another form transformers raises anything
        remedy = "give a folder saved by save_pretrained, a hub id that can be reached, or a .gguf file"
        raise unreadable(error, "configuration", "model", str(source), remedy, trust_remote_code) from error
    if has_llamas_names(config):
        rope = trained_rope.read(content, str(source))
        config.rope_parameters, config.max_position_embeddings = rope.stated, rope.native_length
    return config
