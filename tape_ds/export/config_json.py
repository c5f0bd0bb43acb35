"""The ``config.json`` of a plain folder, in the form that most engines read; transformers computes the same of it.

Three things are said more than once, for readers that know only one way (which of them, says
:mod:`tape_ds.engines`):

* base and scaling as ``rope_parameters`` (transformers 5) and as ``rope_theta`` and ``rope_scaling`` (before);
* a factor on attention of YaRN's own as ``attention_factor``, which transformers and vLLM take, and as the ratio of
  ``mscale`` and ``mscale_all_dim``, which mlx-lm, SGLang and onnxruntime-genai's Qwen take;
* YaRN's bounds by number where its ramp is not rounded, since onnxruntime-genai has no defaults for them.
"""

import copy
from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from tape_ds import encodings
from tape_ds.encodings import trained_rope
from tape_ds.encodings.scaling import yarn_attention
from tape_ds.engines import table
from tape_ds.engines.forms import own_attention_factor
from tape_ds.mappings import without
from tape_ds.models.files.config_file import SHAPES, plain_type
from tape_ds.models.loading import extendable, wrapper
from tape_ds.models.loading.wrapper import Wrapper
from tape_ds.registration import TYPES

_PARTIAL = trained_rope.PARTIAL


def described(config: Any, base: str) -> str:
    """Return which engines compute the export of an extended model right, in one line.

    ``base``: the folder of the model that it starts from, empty where that is not known. Into one with pictures the
    decoder is put back, unless its positions are not transformers' own.
    """
    content = planned(config)
    whole = wrapper.find(base) if base else None
    into = ""
    if whole is not None and "rope_parameters" in content:
        content = put_back(content, whole)
        into = f" (a {whole.class_name} with the decoder put back)"
    elif whole is not None:
        into = " --text_only"
    return f"after tape-ds export{into}: {table.summary(content)}"


def put_back(content: Mapping[str, Any], whole: Wrapper) -> dict[str, Any]:
    """Return a decoder's :func:`planned` fields inside the model with pictures that it is put back into."""
    return {**content, "model_type": whole.whole.model_type}


def planned(config: Any) -> dict[str, Any]:
    """Return what of the exported ``config.json`` engines differ by, for an extended model that is not exported yet:
    model type, length and RoPE."""
    if extendable.by_own_class(config):
        content = {**config.to_dict(), "model_type": config.model_type}
        if config.model_type in TYPES:
            return content
        return for_engines(content, type(config))
    rope_parameters = encodings.llama_rope_parameters(config)
    # the folder has its own code
    if rope_parameters is None:
        return {
            "model_type": config.model_type,
            "max_position_embeddings": config.max_position_embeddings,
        }
    content = {
        "model_type": plain_type(config),
        "max_position_embeddings": config.max_position_embeddings,
        "rope_parameters": rope_parameters,
    }
    return _spelled_twice(content, _said_twice(rope_parameters))


def for_engines(written: Mapping[str, Any], kind: type[PreTrainedConfig]) -> dict[str, Any]:
    """Return a ``config.json`` as transformers wrote it, in the form that most engines read.

    A family whose class ``kind`` would read something else from the older keys, or that has RoPE parameters for each
    kind of layer, keeps the form of transformers.
    """
    rope = written.get("rope_parameters")
    if not rope or any(isinstance(value, Mapping) for value in rope.values()):
        return dict(written)
    # other classes may compute something from mscale
    if written["model_type"] in SHAPES:
        rope = _said_twice(rope)
    one_spelling = {**written, "rope_parameters": rope}
    made = _spelled_twice(one_spelling, rope)
    if _read(kind, made) == _read(kind, one_spelling):
        return made
    return one_spelling


def _said_twice(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return YaRN's parameters with the same factor on attention, and the same bounds, in other words as well."""
    said = dict(rope)
    if rope.get("rope_type") != "yarn":
        return said
    multiple = own_attention_factor(rope)
    log = yarn_attention(float(rope["factor"])) - 1.0
    if multiple is not None and log > 0:
        # (log + 1) / (all_dim log + 1) is the factor, attention_factor = multiple (log + 1)
        said["mscale"] = 1.0
        said["mscale_all_dim"] = (1.0 / multiple - 1.0) / log
    if not rope.get("truncate", True):
        said["beta_fast"] = rope.get("beta_fast") or 32.0
        said["beta_slow"] = rope.get("beta_slow") or 1.0
    return said


def _spelled_twice(content: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``config.json`` with the RoPE parameters under their newer and their older keys."""
    older = {key: value for key, value in rope.items() if key not in ("rope_theta", _PARTIAL)}
    made = {**content, "rope_parameters": dict(rope), "rope_theta": rope["rope_theta"]}
    made["rope_scaling"] = None if rope["rope_type"] == "default" else older
    if _PARTIAL in rope:
        made[_PARTIAL] = rope[_PARTIAL]
    return made


def _read(kind: type[PreTrainedConfig], content: Mapping[str, Any]) -> dict[str, Any]:
    # which adds to what it is given
    fields = kind.from_dict(copy.deepcopy(dict(content))).to_dict()
    # a field that the class does not know is kept as an attribute, and read by nothing
    return without(fields, ("rope_theta", "rope_scaling", _PARTIAL))
