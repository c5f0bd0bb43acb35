"""What a launcher does without a step, and chat tuning, of which no losses are frozen."""

import json

import pytest

from tape_ds.checkpoint import trained
from tests.data.chat.chatml import conversation, write
from tests.integration.conftest import forked, launch

EXTEND = "launchers/extend_llama.py"


def extension(tiny, output, **changes):
    """The demo recipe with a tiny model and text: 64 positions become 128; a change to None leaves a field out."""
    flags = {
        "model": tiny / "model",
        "method": "tape",
        "target_length": 128,
        "rope_parameters.original_max_position_embeddings": 64,
        "train_data": f"text:{tiny}/text.txt",
        "eval_data": f"text:{tiny}/held_out.txt",
        "eval_length": 128,
        "eval_span": 32,
        "data_cache": tiny / "cache",
        "window": 32,
        "passkey_lengths": 500,
        "passkey_trials": 3,
        "max_steps": 6,
        "deepspeed": "zero3",
        "bf16": "false",
        "global_batch_size": 8,
        "output_dir": output,
    }
    return words(flags | changes)


def words(flags):
    return [
        part
        for name, value in flags.items()
        if value is not None
        for part in (f"--{name}", str(value))
    ]


def test_a_mistake_is_one_message_on_two_ranks(tiny, tmp_path):
    """Once, whatever the number of ranks; exit code 2; no traceback; nothing written."""
    output = tmp_path / "never"
    ended = launch(
        EXTEND, *extension(tiny, output, learning_rat=1, window="wide", global_batch_size=7)
    )
    assert ended.code == 2 and not output.exists()
    assert ended.output.count("problems found") == 1 and "learning_rat" in ended.output, (
        ended.output[-3000:]
    )
    assert "Traceback" not in ended.output


def test_angles_alone_are_scored_by_two_ranks_and_nothing_is_trained(tiny, tmp_path):
    ended = forked(EXTEND, *extension(tiny, tmp_path, method="yarn", eval_before="false"))
    assert ended.code == 0, ended.output[-4000:]
    figures = json.loads((tmp_path / "results" / "run.json").read_text())["figures"]
    assert figures["steps"] == 0 and list(figures["loss_by_position"]) == ["yarn x2, untrained"]
    (asked,) = figures["passkey"]
    assert len(asked["replies"]) == 3
    assert trained.read_record(tmp_path / "trained").names == () and not list(
        tmp_path.glob("checkpoint-*")
    )


@pytest.mark.slow
def test_a_chat_is_learnt_by_two_ranks_as_by_one(tiny, tmp_path):
    """ZeRO-2, and one process without an engine."""
    turns = [
        conversation(f"function_{n % 8}?", "return value", "and?", "def function")
        for n in range(60)
    ]
    talks = [turn[: 2 + n % 2 * 2] for n, turn in enumerate(turns)]
    write(tmp_path / "chat.jsonl", talks)
    (tmp_path / "mine.jinja").write_text(
        "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
    )
    flags = {
        "model": tiny / "model",
        "train_data": f"jsonl:{tmp_path}/chat.jsonl",
        "chat_template": tmp_path / "mine.jinja",
        "data_cache": tmp_path / "cache",
        "eval_share": 0.1,
        "max_tokens": 96,
        "global_batch_size": 4,
        "per_device_train_batch_size": 2,
        "max_steps": 2,
        "logging_steps": 1,
        "bf16": "false",
    }
    lines = []
    for stage, processes in (("zero2", 2), ("null", 1)):
        output = tmp_path / stage
        given = words(flags | {"deepspeed": stage, "output_dir": output})
        ended = forked("launchers/finetune.py", *given, processes=processes)
        assert ended.code == 0, ended.output[-4000:]
        lines.append(json.loads((output / "metrics.jsonl").read_text().splitlines()[0]))
    assert lines[0]["loss"] == pytest.approx(lines[1]["loss"], rel=1e-5)
    assert lines[0]["grad_norm"] == pytest.approx(lines[1]["grad_norm"], rel=1e-4)
