"""What of staying alive contradicts itself is refused with the recipe."""

import pytest

from tape_ds.config import pretraining
from tape_ds.errors import UserError


@pytest.mark.parametrize("resume", ["auto", "true"])
def test_what_is_removed_cannot_be_gone_on_with(resume):
    with pytest.raises(UserError, match=r"start_anew.*would resume"):
        pretraining.load(["--recipe", "tiny", "--start_anew", "--resume", resume], world_size=1)
    assert pretraining.load(["--recipe", "tiny", "--start_anew", "--resume", "false"], world_size=1).safety.start_anew
