"""Messages that libraries print for every run and every model."""

import functools
import logging
import warnings

from transformers.utils import logging as transformers_logging


@functools.cache
def quieten_libraries() -> None:
    """Silence them in this process."""
    # of loading and saving: a log gets one line for each step of it
    transformers_logging.disable_progress_bar()
    # peft asks for it by the name that transformers 5 deprecates
    warnings.filterwarnings(
        "ignore", message=".*is_gradient_checkpointing.*is deprecated", category=FutureWarning
    )
    # transformers counts accumulation steps itself: it gives accelerate 1, and DeepSpeed their number
    noise = "Gradient accumulation steps mismatch"
    logging.getLogger("accelerate.accelerator").addFilter(
        lambda record: noise not in record.getMessage()
    )
    # RoPE parameters are checked here, keys that a type does not read too; a second extension has the sum of factors
    rope = ("Unrecognized keys in `rope_parameters`", "The explicitly set RoPE scaling factor")
    rope_logger = logging.getLogger("transformers.modeling_rope_utils")
    rope_logger.addFilter(lambda record: not record.getMessage().startswith(rope))
