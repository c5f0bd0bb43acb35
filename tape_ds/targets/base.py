"""The pretrained model that a run starts from: what small files say of it, and its folder.

The only place where a base's name becomes a configuration, and a folder.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from tape_ds import paths
from tape_ds.config.method import LLAMAS_MAPS
from tape_ds.encodings import trained_rope
from tape_ds.errors import raise_if_any
from tape_ds.models import hybrids
from tape_ds.models.files import config_file, hub
from tape_ds.models.files.config_file import CONFIG, SMOLLM2, TAPE
from tape_ds.models.flops import DecoderShape, decoder_shape
from tape_ds.models.loading import extendable, model_folder
from tape_ds.models.loading.extendable import Config
from tape_ds.targets import published

PLAIN = "rope"
"""The encoding of a plain Llama."""


@dataclass(frozen=True)
class BaseModel:
    name: str
    """A hub id, ``smollm2`` or an absolute path."""
    folder: str
    """Empty where a run is only planned, and of a ``.gguf`` file before :meth:`unpacked`. A hub id's has no weights
    before :meth:`fetched`, and a model with pictures is the whole one."""
    config: PreTrainedConfig

    def __post_init__(self) -> None:
        raise_if_any(extendable.check(self.config))

    @cached_property
    def rope(self) -> trained_rope.TrainedRope:
        rope = trained_rope.read(self.config.to_dict(), self.name)
        return replace(rope, is_used=hybrids.rotates(self.config))

    @property
    def shape(self) -> DecoderShape:
        return decoder_shape(self.config)

    @property
    def length(self) -> int:
        """Tokens of its native context."""
        return int(self.config.max_position_embeddings)

    @property
    def family(self) -> str:
        """Its model type, as messages name it."""
        if self.config.model_type == TAPE:
            return "llama"
        return str(self.config.model_type).removeprefix("tape_")

    @property
    def is_foreign(self) -> bool:
        """Whether transformers' own class is trained, which has fewer features than this project's."""
        return extendable.by_own_class(self.config)

    @property
    def position_encoding(self) -> str:
        return str(getattr(self.config, "position_encoding", PLAIN))

    @property
    def position_options(self) -> dict[str, Any]:
        return dict(getattr(self.config, "position_options", None) or {})

    @property
    def linear_maps(self) -> dict[str, bool]:
        """Names of the linear maps of its blocks -> whether attention has them."""
        if self.is_foreign:
            return dict(self.shape.linear_maps)
        return dict(LLAMAS_MAPS)

    def as_it_is(self, attention_backend: str, **changes: Any) -> Config:
        """Return its configuration with its own encoding; ``changes`` to other fields."""
        if self.config.model_type != TAPE:
            changes["position_encoding"] = PLAIN
        return extendable.configure(self.config, attention_backend=attention_backend, **changes)

    def unpacked(self) -> "BaseModel":
        """Return it with a folder that has its tokenizer: a ``.gguf`` file is unpacked, a Baichuan2-7B converted."""
        if self.folder and not model_folder.is_converted(self.folder):
            return self
        folder = model_folder.resolve(self.name)
        return BaseModel(self.name, folder, extendable.read(folder))

    def fetched(self) -> "BaseModel":
        """Return it with its weights on this machine: a hub id's are downloaded, of the commit that was read."""
        if not self.folder:
            return self
        repository, _ = hub.split(self.name)
        commit = hub.commit_of(self.folder)
        if commit is not None and hub.is_id(self.name) and not Path(self.name).exists():
            return replace(self, folder=model_folder.resolve(f"{repository}@{commit}"))
        # of a model with pictures, the text decoder's folder
        return replace(self, folder=model_folder.resolve(self.folder))


def find_base(name: str) -> BaseModel:
    """Read the configuration of a base from small files, downloaded where the name is a hub id. UserError for a model
    of a family that cannot be extended. A ``config.json`` may be given for the folder that it is in."""
    path = Path(name).expanduser()
    if name == SMOLLM2 or name.endswith(".gguf"):
        file = model_folder.gguf_file(name)
        if name != SMOLLM2:
            name = str(path.absolute())
        return BaseModel(name, "", extendable.read_gguf(file))
    if path.name == CONFIG and path.is_file():
        path = path.parent
    if path.exists():
        # trained.json names it, and is read from any folder
        name = str(path.absolute())
    folder = str(model_folder.find_folder(name, with_weights=False))
    return BaseModel(name, folder, extendable.read(folder))


def known_base(name: str, *, online: bool) -> BaseModel | None:
    """Return what is known of a base without a download: of a folder, a GGUF file or a published model; ``online``: of
    a hub id whose ``config.json`` is in the cache, or answered for by the hub within seconds. Else None."""
    file = config_file.find(name, online=online)
    if file is not None and config_file.is_on_hub(name):
        return BaseModel(name, "", extendable.read(file.parent))
    if file is not None or (name.endswith(".gguf") and paths.of(name).is_file()):
        return find_base(name)
    if published.known(name):
        return BaseModel(name, "", published.configuration(name))
    return None
