"""The fields of transformers' TrainingArguments and the keys of DeepSpeed's JSON, from a file that is made of the
installed versions (``tools/library_fields.py``): importing the libraries costs more than all checks together."""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from tape_ds.fields import Section

FILE = Path(__file__).with_suffix(".json")
SCHEDULERS = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
"""What DeepSpeed's own schedulers do, in the trainer's words."""
_NAMES = {"Annotated": Annotated, "Any": Any, "Field": Field, "Literal": Literal}


@functools.cache
def read() -> dict[str, Any]:
    """Return the file."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def section(name: str, entries: Mapping[str, tuple[Any, Any]]) -> type[Section]:
    """A section of the fields ``entries``, name -> (type, or how the file spells it; default)."""
    made: type[Section] = create_model(name, __base__=Section, **dict(entries))  # type: ignore[call-overload]
    made.model_rebuild(_types_namespace=_NAMES)
    return made
