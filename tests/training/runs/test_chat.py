"""What a run on conversations assembles, trains and scores, as far as no engine is needed."""

import json
import shutil
from datetime import date, timedelta

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from tape_ds import TapeForCausalLM
from tape_ds.checkpoint import trained
from tape_ds.data.chat import sequences
from tape_ds.data.chat.sequences import rendered
from tape_ds.data.order import IGNORED, collate
from tape_ds.scoring import answers
from tape_ds.scoring.generation import ends_of
from tape_ds.training.run import build_trainer
from tape_ds.training.runs import finetuning
from tape_ds.training.runs.finetuning import _ends
from tests import hub_cache
from tests.config.loads import chat
from tests.data.chat.chatml import CHATML, DATED, MARKED, conversation, tokenizer, write
from tests.models.helpers import tiny_config
from tests.training.runs.helpers import assemble, complete, flags, refusals

ENCODINGS = ("tape", "alibi", "sincos")
TALKS = [
    conversation(
        f"which {number % 3}?", "return " * (1 + number % 4), "and?", f"letter {number % 2}"
    )[: 2 + number % 3]
    for number in range(40)
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folder with conversations of one answer and of two (some end with a question), an empty recipe, and models."""
    folder = tmp_path_factory.mktemp("place")
    write(folder / "train.jsonl", TALKS)
    write(
        folder / "held_out.jsonl",
        [conversation("which 2?", "return letter", "and?", "letter 1")] * 3,
    )
    (folder / "empty.yaml").write_text("seed: 7\n")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 302,
        "max_position_embeddings": 128,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    llama = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, **sizes
    )
    save(LlamaForCausalLM(llama), folder / "llama")
    for name in ENCODINGS:
        save(TapeForCausalLM(tiny_config(position_encoding=name, **sizes)), folder / name)
    save(LlamaForCausalLM(llama), folder / "bare", template=None)
    return folder


def save(model, folder, template=CHATML):
    model.save_pretrained(folder)
    tokenizer(template).save_pretrained(folder)


def recipe(place, model="llama", **changes):
    fields = {
        "model": model if "/" in str(model) else place / model,
        "train_data": f"jsonl:{place}/train.jsonl",
        "data_cache": place / "cache",
        "max_tokens": 128,
        "global_batch_size": 4,
        "max_steps": 2,
        "learning_rate": 0.01,
        "deepspeed": "null",
        "output_dir": place / "run",
    }
    return chat(["--recipe", str(place / "empty.yaml"), *flags(fields | changes)])


def gradients(model, batches):
    """Mean loss over all targets of some batches, and its gradient by name."""
    model.zero_grad()
    targets = sum(int((batch["labels"][:, 1:] != IGNORED).sum()) for batch in batches)
    total = 0.0
    for batch in batches:
        logits = model(**batch, skip_logits=False).logits
        labels = batch["labels"][:, 1:].flatten()
        summed = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels, reduction="sum"
        )
        (summed / targets).backward()
        total += float(summed.detach()) / targets
    return total, {name: weight.grad.clone() for name, weight in model.named_parameters()}


def one_by_one(item):
    """The conversations of a packed sequence, each as a separate sequence."""
    for owner in item["document_ids"].unique():
        mine = {name: values[item["document_ids"] == owner] for name, values in item.items()}
        yield mine | {"document_ids": torch.zeros_like(mine["document_ids"])}


@pytest.mark.parametrize("model", ["llama", *ENCODINGS])
def test_packed_is_one_by_one(place, model):
    """Loss and gradients; under encodings of absolute positions as well, since each conversation begins with 0."""
    run = assemble(recipe(place, model, max_tokens=250))
    items = [run.sequences[index] for index in range(4)]
    alone = [each for item in items for each in one_by_one(item)]
    assert len(alone) > 2 * len(items), "sequences are shared"
    whole, of_whole = gradients(run.model.eval(), [collate(items)])
    parts, of_parts = gradients(run.model, [collate([each]) for each in alone])
    assert whole == pytest.approx(parts, rel=1e-6)
    for name, gradient in of_whole.items():
        torch.testing.assert_close(gradient, of_parts[name], atol=1e-6, rtol=1e-4, msg=name)


def test_held_out_answers_are_scored_as_they_are_learnt(place):
    """Each after its prompt gives the loss that the whole conversation's labels give."""
    run = assemble(recipe(place, eval_data=f"jsonl:{place}/held_out.jsonl", eval_examples=1))
    assert len(run.data.texts.asked) == 2
    found = answers.score(run.model, run.data.texts.asked)
    turns = json.loads((place / "held_out.jsonl").read_text().splitlines()[0])["messages"]
    write(place / "same.jsonl", [turns])
    same = assemble(recipe(place, train_data=f"jsonl:{place}/same.jsonl"))
    expected, _ = gradients(run.model.eval(), [collate([same.sequences[0]])])
    assert found.nll == pytest.approx(expected, rel=1e-6)
    assert found.targets == int((same.sequences[0]["labels"] != IGNORED).sum())


def test_a_share_is_held_out_of_the_sequences_and_columns_that_are_not_read_are_named(
    place, tmp_path
):
    run = assemble(
        recipe(place, eval_share=0.25, train_data=write(tmp_path / "x.jsonl", TALKS, source="web"))
    )
    assert (run.data.texts.cut["train"].read, run.data.texts.cut["held out"].read) == (30, 10)
    assert run.outline()["not read"] == "the columns source"


def test_a_run_from_end_to_end(place, tmp_path):
    """A model without a template learns with a given one, and is saved with it."""
    (tmp_path / "mine.jinja").write_text(MARKED)
    settings = {
        "output_dir": tmp_path / "run",
        "max_steps": 30,
        "eval_data": f"jsonl:{place}/held_out.jsonl",
    }
    settings |= {"sample_prompts": "which", "sample_steps": 30, "sample_tokens": 2}
    run = assemble(recipe(place, "bare", chat_template=tmp_path / "mine.jinja", **settings))
    _, stored = complete(run)
    before, after = stored["figures"]["answer_loss"]
    assert after["nll"] < before["nll"] - 2 and before["examples"] == 6
    assert stored["figures"]["cut"]["train"] == {
        "read": 40,
        "cut": 0,
        "cut_tokens": 0,
        "left_out": 0,
        "unanswered": 0,
    }
    assert set(stored["data"]) == {
        f"chat:jsonl:{place}/{each}" for each in ("train.jsonl/train", "held_out.jsonl/heldout")
    }
    again = AutoTokenizer.from_pretrained(tmp_path / "run" / "trained")
    assert again.chat_template == MARKED


PLAIN_ENDS = CHATML.replace("<|im_end|>", "|end|")


@pytest.mark.parametrize(("text", "ends"), [(CHATML, [1, 301]), (PLAIN_ENDS, [1])])
def test_generation_ends_where_the_template_ends_an_answer(place, tmp_path, text, ends):
    """The saved model went on after its answers: only the base's EOS, which no conversation has, was an end."""
    (tmp_path / "mine.jinja").write_text(text)
    run = assemble(
        recipe(place, "bare", chat_template=tmp_path / "mine.jinja", output_dir=tmp_path / "run")
    )
    trained.save_trained(tmp_path / "trained", run.model, run.record, run.tokenizer)
    assert ends_of(trained.load_trained(tmp_path / "trained"), run.tokenizer) == ends
    saved = GenerationConfig.from_pretrained(tmp_path / "trained").eos_token_id
    assert (saved if isinstance(saved, list) else [saved]) == ends


def test_a_word_that_was_added_to_the_vocabulary_is_the_end_of_no_answer(place, tmp_path):
    """Where a template puts no end."""
    of = tokenizer(CHATML.replace("<|im_end|>", ""))
    of.add_tokens(["letter 1"])
    stored = rendered([f"jsonl:{place}/train.jsonl"], of, "train", tmp_path, date.today())
    assert len(sequences.counted(stored, "ends")) == 2 and _ends(stored, of)[0] == ()


def test_generation_settings_that_contradict_themselves_are_saved_with_the_new_end(place, tmp_path):
    """Vicuna's have a temperature and no do_sample: transformers refuses them once they are changed, after training."""
    shutil.copytree(place / "bare", tmp_path / "vicuna")
    published = {"bos_token_id": 0, "eos_token_id": 1, "temperature": 0.9, "top_p": 0.6}
    (tmp_path / "vicuna" / "generation_config.json").write_text(json.dumps(published))
    (tmp_path / "mine.jinja").write_text(CHATML)
    settings = {"chat_template": tmp_path / "mine.jinja", "output_dir": tmp_path / "run"}
    run = assemble(recipe(place, tmp_path / "vicuna", **settings))
    trained.save_trained(tmp_path / "trained", run.model, run.record, run.tokenizer)
    saved = json.loads((tmp_path / "trained" / "generation_config.json").read_text())
    assert published | {"eos_token_id": [1, 301]} == {name: saved[name] for name in published}


class Tomorrow(date):
    """A clock that is a day ahead."""

    @classmethod
    def today(cls):
        """Return the day after."""
        return date.today() + timedelta(days=1)


def test_a_resumed_run_reads_the_date_of_its_first_start(place, tmp_path, monkeypatch):
    """A template that writes today's date gave other tokens once a run went on after midnight."""
    (tmp_path / "dated.jinja").write_text(DATED)
    settings = {
        "chat_template": tmp_path / "dated.jinja",
        "output_dir": tmp_path / "run",
        "save_steps": 2,
    }
    first = assemble(recipe(place, data_cache=tmp_path / "one", **settings))
    build_trainer(first).train()
    monkeypatch.setattr(finetuning, "date", Tomorrow)
    more = {"max_steps": 4, "resume_anyway": "true", "resume_from_checkpoint": "true"}
    rest = assemble(recipe(place, data_cache=tmp_path / "other", **settings | more))
    assert rest.identity["chat_date"] == first.identity["chat_date"] == date.today().isoformat()
    assert rest.outline()["date"] == first.outline()["date"]
    for index in range(len(first.sequences)):
        assert torch.equal(first.sequences[index]["input_ids"], rest.sequences[index]["input_ids"])
    anew = assemble(recipe(place, **settings | {"output_dir": tmp_path / "anew"}))
    assert not torch.equal(first.sequences[0]["input_ids"], anew.sequences[0]["input_ids"]), (
        "it starts a day later"
    )


def problems(place, **changes):
    return refusals(recipe(place, **changes))


def test_no_weights_are_fetched_for_a_model_without_a_chat_template(place, tmp_path, monkeypatch):
    name = hub_cache.without_weights(monkeypatch, tmp_path, place / "bare")
    (problem,) = problems(place, model=name).values()
    assert problem.field == "chat_template"


def test_what_only_the_tokens_can_tell(place, tmp_path):
    """Before any weight is loaded or a folder of the run is written."""
    (tmp_path / "strict.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    strict = problems(place, chat_template=tmp_path / "strict.jinja", output_dir=tmp_path / "never")
    assert "train.jsonl:1: the chat template does not render it" in strict["train_data"].wrong
    assert set(problems(place, max_tokens=8, output_dir=tmp_path / "never")) == {"max_tokens"}
    assert set(problems(place, eval_share=0.01, output_dir=tmp_path / "never")) == {"eval_share"}
    assert not [
        path
        for path in (tmp_path / "never").rglob("*")
        if path.is_file() and path.parent.name != "ranks"
    ]


def test_conversations_are_trained_with_longce_s_weights(place, tmp_path):
    """Packed, so the short context of an answer ends where its conversation begins."""
    same = {"max_steps": 1, "max_tokens": 250, "logging_steps": 1}
    _, plain = complete(assemble(recipe(place, output_dir=tmp_path / "plain", **same)))
    weights = {"target_weights": "longce", "longce_short": 8, "longce_stride": 4}
    trainer, stored = complete(
        assemble(recipe(place, output_dir=tmp_path / "weighted", **weights, **same))
    )
    (expected,) = [entry["loss"] for entry in plain["figures"]["train_loss"]]
    (logged,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logged["plain_loss"] == pytest.approx(expected, rel=1e-6)
    assert logged["mean_weight"] != pytest.approx(1.0, abs=1e-4) and logged[
        "loss"
    ] != pytest.approx(expected)
    assert stored["config"]["longce_short"] == 8


def test_what_a_long_model_may_lose_is_said_and_measured(place, tmp_path):
    """Conversations of 48 tokens at most, a model of 128 positions: RULER before training and after."""
    asked = {"ruler_lengths": "4k", "ruler_tasks": "niah_single_1", "ruler_samples": 1}
    run = assemble(recipe(place, output_dir=tmp_path, max_tokens=48, **asked))
    assert run.outline()["length"].startswith("no text is longer than ")
    assert "ruler_lengths" not in run.outline()["length"], "it is measured"
    _, stored = complete(run)
    rows = stored["figures"]["ruler"]
    assert [(row["variant"], row["task"], row["length"]) for row in rows] == [
        ("before", "niah_single_1", 4096),
        ("after", "niah_single_1", 4096),
    ]
    assert rows[0]["replies"][0]["answers"] == rows[1]["replies"][0]["answers"]


@pytest.mark.parametrize(("longest", "said"), [(63, True), (64, False)])
def test_texts_of_half_a_model_s_length_keep_it(place, longest, said):
    note = recipe(place).note_of_length(longest, 128)
    assert (note is not None) is said
    if said:
        assert note.endswith("ruler_lengths: [128] measures it before and after")
