"""What a pretraining run assembles, trains and scores, as far as no engine is needed."""

import json
import os
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tape_ds import TapeForCausalLM, storage
from tape_ds.checkpoint import trained
from tape_ds.data.sources.file_identity import dated_identities
from tape_ds.errors import UserError
from tape_ds.models.changed_positions import evaluated_at
from tape_ds.scoring.losses import score_blocks
from tape_ds.training.held_out import perplexities
from tape_ds.training.run import build_trainer
from tape_ds.training.runs.pretraining import SCORES
from tests.config.loads import pretraining as load
from tests.training.runs.helpers import assemble, complete, flags

FUNCTION = "def function_{0}(value):\n    # adds {0}.\n    return value + {0}\n\n"


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Folder with four files to train on, two long ones and a short one held out, and a cache."""
    folder = tmp_path_factory.mktemp("texts")
    for name, functions in {
        "train": [range(100 * i, 100 * i + 100) for i in range(4)],
        "held": [range(400, 480)] * 2,
    }.items():
        (folder / name).mkdir()
        for number, part in enumerate(functions):
            (folder / name / f"{number}.txt").write_text("".join(FUNCTION.format(i) for i in part))
    (folder / "held" / "short.txt").write_text(FUNCTION.format(9))
    return folder


def recipe(texts, **changes):
    fields = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "position_encoding": "rope",
        "vocab_size": 300,
        "train_data": f"text:{texts}/train/*.txt",
        "eval_data": f"text:{texts}/held/*.txt",
        "eval_lengths": "32,64,128",
        "data_cache": texts / "cache",
        "window": 32,
        "global_batch_size": 4,
        "max_steps": 3,
        "learning_rate": 0.01,
        "deepspeed": "null",
        "output_dir": texts / "run",
    }
    (texts / "empty.yaml").write_text("seed: 7\n")
    return load(["--recipe", str(texts / "empty.yaml"), *flags(fields | changes)])


def test_a_tokenizer_is_trained_once_where_none_is_given(texts):
    first = assemble(recipe(texts))
    assert len(first.tokenizer) == first.config.vocab_size == 300
    assert (first.config.bos_token_id, first.config.eos_token_id, first.config.pad_token_id) == (
        1,
        2,
        None,
    )
    again = assemble(recipe(texts, position_encoding="alibi"))
    assert again.tokenizer.get_vocab() == first.tokenizer.get_vocab()
    assert len(list((texts / "cache").glob("tokenizer-*/"))) == 1


def test_a_given_tokenizer_has_its_own_number_of_entries(texts, tmp_path):
    assemble(recipe(texts)).tokenizer.save_pretrained(tmp_path)
    given = recipe(texts, tokenizer=tmp_path, vocab_size="null")
    assert assemble(given).config.vocab_size == 300
    with pytest.raises(UserError, match="has 300 entries") as caught:
        assemble(recipe(texts, tokenizer=tmp_path, vocab_size=301))
    assert caught.value.problems[0].field == "vocab_size"
    (tmp_path / "tokenizer.json").write_text("not JSON")
    with pytest.raises(UserError, match="no tokenizer could be read"):
        assemble(recipe(texts, tokenizer=tmp_path, vocab_size="null"))


def test_an_encoding_takes_what_it_needs_from_the_tokenizer(texts):
    run = assemble(recipe(texts, position_encoding="bipe_rope"))
    ends = {
        run.tokenizer.decode([index]).strip(" ")
        for index in run.config.position_options["separators"]
    }
    assert ends == {".", "\n"}


def test_held_out_documents_are_whole_blocks_of_the_longest_length(texts):
    run = assemble(recipe(texts))
    lengths = [document.input_ids_1T.shape[1] for document in run.data.held_out]
    assert [document.name for document in run.data.held_out] == [
        "0.txt",
        "1.txt",
    ] and run.data.left_out == 1
    assert lengths[0] == lengths[1] >= 512 and all(length % 128 == 0 for length in lengths)
    capped = assemble(recipe(texts, eval_tokens=lengths[0] + 300))
    assert [document.input_ids_1T.shape[1] for document in capped.data.held_out] == [
        lengths[0],
        256,
    ]
    with pytest.raises(UserError, match="no document has 100000 tokens") as caught:
        assemble(recipe(texts, eval_lengths="32,100000"))
    assert caught.value.problems[0].field == "eval_data"


def test_a_run_trains_scores_and_leaves_a_whole_model(texts, tmp_path):
    """Scores of an earlier attempt in its folder are not among its own."""
    run = assemble(recipe(texts, output_dir=tmp_path, position_encoding="tape"))
    (tmp_path / SCORES).parent.mkdir()
    (tmp_path / SCORES).write_text('{"9": {}}')
    trainer, stored = complete(run)
    figures = stored["figures"]
    assert list(figures["perplexity"]) == ["32", "64", "128"] and figures["steps"] == 3
    assert figures["perplexity"]["64"]["perplexity"] < 300
    assert trained.read_record(tmp_path / "trained").base is None
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "trained")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "trained")
    assert (
        isinstance(model, TapeForCausalLM)
        and model.config.use_cache
        and model.config.max_position_embeddings == 32
    )
    assert tokenizer("def f").input_ids == run.tokenizer("def f").input_ids
    documents = [document.input_ids_1T for document in run.data.held_out]
    assert score_blocks(model, documents, 64).nll == pytest.approx(
        figures["perplexity"]["64"]["nll"], abs=1e-6
    )
    for name, weight in trained.load_trained(tmp_path / "trained").named_parameters():
        assert torch.equal(weight, dict(trainer.model.named_parameters())[name]), name


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_run_stores_what_its_sources_gave(texts, tmp_path, streaming):
    specs = [f"text:{texts}/train/[0-2].txt", f"text:{texts}/train/3.txt"]
    entries = [
        {"source": spec, "weight": weight} for spec, weight in zip(specs, (3, 1), strict=True)
    ]
    changes = {
        "output_dir": tmp_path,
        "streaming": streaming,
        "max_steps": 5,
        "eval_data": "",
        "logging_steps": 2,
    }
    run = assemble(recipe(texts, train_data=json.dumps(entries), **changes))
    _, result = complete(run)
    given = run.sequences.tokens(20)
    assert sum(given.values()) == 20 * 32 and list(given) == specs
    assert result["figures"]["tokens_by_source"] == given and list(result["data"])[:2] == specs
    assert result["config"]["train_data"] == entries
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["tokens_by_source"] for line in lines] == [
        run.sequences.tokens(4 * line["step"]) for line in lines
    ]


def test_yarn_is_scaled_where_it_is_scored_and_not_where_it_is_trained(texts):
    """Scored with the trained angles at every length it would be plain rope."""
    rope_parameters = '{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 1.0, '
    rope_parameters += '"original_max_position_embeddings": 32}'
    run = assemble(recipe(texts, position_encoding="yarn", rope_parameters=rope_parameters))
    rope = assemble(recipe(texts))
    documents = [document.input_ids_1T for document in run.data.held_out]
    with torch.no_grad():
        for model in (run.model, rope.model):
            model.lm_head.weight.mul_(40)  # sharp enough for angles to tell
    found, plain = (
        perplexities(model, run.data.held_out, [32, 128]) for model in (run.model, rope.model)
    )
    assert found[32].nll == plain[32].nll
    with evaluated_at(run.model, 128):
        assert found[128].nll == score_blocks(run.model, documents, 128).nll
    assert found[128].nll != plain[128].nll


def test_a_run_goes_on_with_data_that_were_copied(texts, tmp_path, monkeypatch):
    """A large file was known by its date alone: a resume on another disk was refused."""
    monkeypatch.setattr(storage, "HASHED_WHOLE", 3)
    monkeypatch.setattr(storage, "BLOCK_BYTES", 1)
    data, cache = tmp_path / "data", tmp_path / "cache"
    shutil.copytree(texts / "train", data)
    given = {
        "train_data": f"text:{data}/*.txt",
        "data_cache": cache,
        "eval_data": "",
        "save_steps": 1,
    }
    given |= {"resume_from_checkpoint": "auto", "output_dir": tmp_path / "run"}

    def one_more(step):
        run = assemble(recipe(texts, max_steps=step, resume_anyway="true", **given))
        resumed = run.job.resumed
        build_trainer(run).train(
            resume_from_checkpoint=None if resumed is None else str(resumed.folder)
        )
        return None if resumed is None else resumed.manifest.step

    with dated_identities():
        assert one_more(1) is None
    assert one_more(2) == 1
    for path in data.iterdir():
        os.utime(path, ns=(1, 1))
    assert one_more(3) == 2
    (data / "0.txt").write_text("another text of no common length")
    with pytest.raises(UserError, match="restore the data"):
        one_more(4)


@pytest.mark.parametrize("encoding", ["randpe", "fire"])
def test_resumed_equals_uninterrupted_to_the_last_digit(texts, tmp_path, encoding):
    """Random positions are drawn from where the checkpoint left off, and packed sequences served from there on."""
    changes = {
        "position_encoding": encoding,
        "max_steps": 6,
        "save_steps": 3,
        "logging_steps": 1,
        "eval_data": "",
    }
    whole = build_trainer(assemble(recipe(texts, output_dir=tmp_path / "whole", **changes)))
    whole.train()
    changes["resume_from_checkpoint"] = tmp_path / "whole" / "checkpoint-3"
    run = assemble(recipe(texts, output_dir=tmp_path / "rest", **changes))
    rest = build_trainer(run)
    rest.train(resume_from_checkpoint=str(run.job.resumed.folder))
    mine, theirs = (
        [entry["loss"] for entry in one.state.log_history if "loss" in entry]
        for one in (rest, whole)
    )
    assert len(theirs) == 6 and mine[-3:] == theirs[-3:]
    for (name, a), b in zip(rest.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_a_run_on_generated_documents(texts, tmp_path):
    """Mixed with text, whose tokenizer both have: what a run stores, and what it would be resumed by."""
    spec = f"generated:retrieval#families=lookup&questions=1&rivals=1&text=text:{texts}/train/0.txt"
    entries = [{"source": spec, "weight": 1}, {"source": f"text:{texts}/train/*.txt", "weight": 1}]
    changes = {
        "output_dir": tmp_path,
        "window": 256,
        "eval_data": "",
        "max_steps": 4,
        "logging_steps": 1,
    }
    run = assemble(recipe(texts, train_data=json.dumps(entries), **changes))
    assert "1 rivals a document" in run.outline()["data"]
    targets = [int((run.sequences[index]["labels"] != -100).sum()) for index in range(16)]
    assert {count < 60 for count in targets} == {True, False}, "answers, and whole rows of text"
    _, result = complete(run)
    assert list(result["figures"]["tokens_by_source"]) == [entry["source"] for entry in entries]
    assert result["data"][spec] == run.identity[f"data.{spec}"]
    alone = assemble(
        recipe(texts, train_data=json.dumps([spec]), **changes | {"output_dir": tmp_path / "alone"})
    )
    assert alone.outline()["data"].startswith(f"{spec}: drawn for each sequence: 1 documents")
