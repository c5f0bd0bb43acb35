"""Whether generated documents have room in a recipe's sequences, for a dry run: a run refuses those that have none when
it makes its data (:func:`tape_ds.data.retrieval.sequences.require_room`), and here no text is read."""

from tape_ds.config.recipe import Recipe
from tape_ds.data.retrieval.documents import DocumentWriter
from tape_ds.data.retrieval.sequences import require_room
from tape_ds.data.sources import generated, weights
from tape_ds.errors import Problem, collecting
from tape_ds.training.context_preview import local_tokenizer


def check(recipe: Recipe) -> list[Problem]:
    """Return a problem for each generated source that the run would refuse; none where its tokenizer is not here."""
    problems: list[Problem] = []
    # of conversations and tasks, which are made otherwise, there is none
    reading = recipe.reading
    if reading is None or not recipe.trains:
        return problems
    specs = weights.specs_of(recipe.data.train_data)
    sources = [found for spec in specs if (found := generated.only_one([spec])) is not None]
    tokenizer = None
    if sources:
        tokenizer, _ = local_tokenizer(reading)
    if tokenizer is None or not tokenizer.is_fast:
        return problems
    for source in sources:
        writer = DocumentWriter(source.options, tokenizer, None)
        with collecting(problems):
            require_room(source, writer, recipe.window)
    return problems
