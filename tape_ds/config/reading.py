"""How a recipe makes sequences of documents, whatever its kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tape_ds.data.pack import Packing
from tape_ds.data.pose import Pose


@dataclass(frozen=True)
class DocumentReading:
    """Documents to sequences; fields as those of :class:`tape_ds.config.extension_fields.ExtensionData`."""

    tokenizer: str | None
    """A name or path; None: one that is trained first."""
    pose: Pose = field(default_factory=Pose)
    packing: Packing = "cut"
    attend_across: bool = False
    min_document_tokens: int = 1
    upsample: Mapping[int, int] = field(default_factory=dict)

    @property
    def skips(self) -> bool:
        """Whether sequences are drawn from one document, with positions that skip ahead."""
        return self.pose.chunks > 1

    @property
    def has_borders(self) -> bool:
        """Whether documents in a sequence do not see each other."""
        return not self.skips and not self.attend_across and self.packing != "single"
