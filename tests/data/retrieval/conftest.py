"""A text, and what writes documents into it, with the tokenizer of ``tests/data/conftest.py``."""

import functools

import pytest

from tape_ds.data.pose import Pose, PoseSequences
from tape_ds.data.retrieval.sequences import RetrievalForm, RetrievalSequences, writer_of
from tape_ds.data.sources import parse_all
from tests.data.conftest import build_tokenizer

# no word of it is in a record or a question
TEXT = "".join(
    f"Line {number} wanders: {'on and on, ' * (number % 7)}and stops\n" for number in range(400)
)
PARAGRAPH = "The same without an end of a line, " * 200


build = functools.cache(build_tokenizer)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("retrieval")
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    (folder / "paragraph.txt").write_text(PARAGRAPH, encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def make(folder):
    """Make the sequences of a spec's options; ``text``: also put the records into the text."""

    def made(
        options="",
        *,
        text=True,
        window=2000,
        target=None,
        chunks=2,
        samples=500,
        seed=0,
        end=None,
        bos=True,
        tokenizer=None,
        **form,
    ):
        given = [options] * bool(options) + [f"text=text:{folder}/text.txt"] * text
        (source,) = parse_all(["generated:retrieval#" + "&".join(given)], "train_data")
        pose = None if target is None else PoseSequences(window, target, Pose(chunks=chunks))
        writer = writer_of(source, tokenizer or build(bos), folder / "cache", end=end)
        return RetrievalSequences(
            source, writer, RetrievalForm(window, pose, **form), samples=samples, seed=seed
        )

    return made
