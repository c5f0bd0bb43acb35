"""The pretrained model that a run starts from, opened once: the only place where its name becomes a folder."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from transformers import PreTrainedConfig

from tape_ds.encodings import trained_rope
from tape_ds.errors import raise_if_any
from tape_ds.models import hybrids
from tape_ds.models.files import hub
from tape_ds.models.files.config_file import SMOLLM2
from tape_ds.models.flops import DecoderShape, decoder_shape
from tape_ds.models.loading import extendable, model_folder


@dataclass(frozen=True)
class BaseModel:
    name: str
    """A hub id, ``smollm2`` or an absolute path."""
    folder: str
    """Empty where a run is only planned. Before :meth:`fetched` a hub id's has no weights, and a model with pictures is
    the whole one."""
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
    def is_foreign(self) -> bool:
        """Whether transformers' own class is trained, which has fewer features than this project's."""
        return extendable.by_own_class(self.config)

    def fetched(self) -> "BaseModel":
        """Return it with its weights on this machine: a hub id's are downloaded, of the commit that was read."""
        if not self.folder:
            return self
        repository, _ = hub.split(self.name)
        commit = hub.commit_of(self.folder)
        if commit is not None and hub.is_id(self.name) and not Path(self.name).exists():
            return replace(self, folder=model_folder.resolve(f"{repository}@{commit}"))
        return replace(self, folder=model_folder.resolve(self.folder))


def open_base(name: str) -> BaseModel:
    """Read the configuration of a base from small files: no weights of a hub id are downloaded, a ``.gguf`` file is
    unpacked. UserError for a model of a family that cannot be extended."""
    path = Path(name).expanduser()
    if name != SMOLLM2 and path.exists():
        # trained.json names it, and is read from any folder
        name = str(path.absolute())
    folder = model_folder.resolve(name, with_weights=False)
    return BaseModel(name, folder, extendable.read(folder))
