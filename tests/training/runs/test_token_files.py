"""Training from token files: through the real trainer, streamed and stored, mixed by weight, resumed."""

import json

import numpy as np
import pytest

from tape_ds.errors import UserError
from tape_ds.training.run import build_trainer
from tests.data.conftest import build_tokenizer
from tests.data.sources import token_writers as write
from tests.training.runs.helpers import assemble, complete
from tests.training.runs.test_pretraining import recipe

DOCUMENTS = [
    [*np.random.default_rng(number).integers(5, 299, 20 + number % 50).tolist(), 1]
    for number in range(60)
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Token files of two formats, a text, and a tokenizer."""
    folder = tmp_path_factory.mktemp("tokens")
    build_tokenizer().save_pretrained(folder / "tokenizer")
    write.megatron(folder / "web", DOCUMENTS, "int32")
    write.bare(folder / "code.npy", DOCUMENTS[::-1], "uint32")
    (folder / "a.txt").write_text("def add(a, b):\n    return a + b\n" * 60)
    return folder


def changes(texts, output, **more):
    entries = [
        {"source": f"tokens:{texts}/web", "weight": 2},
        {"source": f"tokens:{texts}/code.npy#uint32&end=eos", "weight": 1},
        {"source": f"text:{texts}/a.txt", "weight": 1},
    ]
    given = {
        "train_data": json.dumps(entries),
        "eval_data": f"tokens:{texts}/web",
        "tokenizer": texts / "tokenizer",
    }
    given |= {
        "vocab_size": "null",
        "eval_lengths": "16",
        "output_dir": output,
        "logging_steps": 1,
        "window": 16,
    }
    return given | more


@pytest.mark.parametrize("streaming", [pytest.param("false", marks=pytest.mark.slow), "true"])
def test_a_run_trains_on_token_files_and_goes_on(texts, tmp_path, streaming):
    """Resumed at step 2 of 4 it has the losses of a run that was not stopped, to the last digit."""
    given = {"streaming": streaming, "eval_data": "", "max_steps": 4, "save_steps": 2}
    run = assemble(recipe(texts, **changes(texts, tmp_path / "whole", **given)))
    whole, stored = complete(run)
    given_tokens = run.sequences.tokens(16)
    assert (
        sum(given_tokens.values()) == 16 * 16
        and stored["figures"]["tokens_by_source"] == given_tokens
    )
    resumed = {**given, "resume_from_checkpoint": tmp_path / "whole" / "checkpoint-2"}
    run = assemble(recipe(texts, **changes(texts, tmp_path / "rest", **resumed)))
    rest = build_trainer(run)
    rest.train(resume_from_checkpoint=str(run.job.resumed.folder))
    mine, theirs = (
        [entry["loss"] for entry in one.state.log_history if "loss" in entry]
        for one in (rest, whole)
    )
    assert len(theirs) == 4 and mine[-2:] == theirs[-2:]


def test_documents_keep_their_borders_in_packed_sequences(texts, tmp_path):
    """A token after EOS begins another document: it is no target, and no EOS is doubled."""
    given = {"train_data": f"tokens:{texts}/web", "eval_data": "", "max_steps": 10}
    samples = assemble(recipe(texts, **changes(texts, tmp_path, **given))).sequences
    seen = 0
    for index in range(samples.samples):
        item = samples[index]
        ids = item["input_ids"].numpy()
        after = np.flatnonzero(ids[:-1] == 1) + 1
        seen += len(after)
        assert (item["labels"].numpy()[after] == -100).all()
        assert (np.diff(item["document_ids"].numpy())[after - 1] == 1).all()
        assert (ids[after] != 1).all()
    assert seen > 3


def test_another_file_is_not_resumed(texts, tmp_path):
    """The fingerprint is that of the ids, their borders and the options."""
    write.datatrove(tmp_path / "x.ds", DOCUMENTS)
    given = {
        "train_data": f"tokens:{tmp_path}/x.ds",
        "eval_data": "",
        "max_steps": 1,
        "save_steps": 1,
    }
    complete(assemble(recipe(texts, **changes(texts, tmp_path / "run", **given))))
    write.datatrove(tmp_path / "x.ds", [DOCUMENTS[0] + DOCUMENTS[1], *DOCUMENTS[2:]])
    given |= {"max_steps": 2, "resume_from_checkpoint": "auto"}
    with pytest.raises(UserError, match="restore the data"):
        assemble(recipe(texts, **changes(texts, tmp_path / "run", **given)))


def test_files_are_refused_before_anything_starts(texts, tmp_path):
    """All at once: an id width that is not said, an index that does not fit, and a source that is not streamed."""
    write.bare(tmp_path / "raw.bin", DOCUMENTS)
    write.megatron(tmp_path / "cut", DOCUMENTS)
    (tmp_path / "cut.bin").write_bytes((tmp_path / "cut.bin").read_bytes()[:-4])
    data = json.dumps(
        [f"tokens:{tmp_path}/raw.bin", f"tokens:{tmp_path}/cut", f"bin:{tmp_path}/raw.bin"]
    )
    given = {"train_data": data, "streaming": "true", "eval_data": ""}
    with pytest.raises(UserError) as caught:
        recipe(texts, **changes(texts, tmp_path / "run", **given))
    said = str(caught.value)
    assert (
        "nothing says how wide" in said
        and "where its index has" in said
        and "read from disk anyway" in said
    )
