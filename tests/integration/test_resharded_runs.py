"""A run that goes on where it stopped with other processes, at another ZeRO stage: commands and files a user sees."""

import json

import pytest

from tests.integration.conftest import forked

SCRIPT = "launchers/pretrain_c4.py"


def flags(texts, output, stage, resumed=None):
    """A small pretraining run on streamed text."""
    model = "--hidden_size 48 --intermediate_size 96 --num_hidden_layers 2 --num_attention_heads 4 --vocab_size 330"
    data = f"--train_data text:{texts}/*.txt --data_cache {texts}/cache --streaming true --stream_workers 4 --window 32"
    learning = "--max_steps 12 --global_batch_size 8 --per_device_train_batch_size 2 --learning_rate 0.01 --bf16 false"
    outside = f"--save_steps 4 --save_total_limit 4 --logging_steps 3 --deepspeed {stage} --output_dir {output}"
    given = (
        f"{model} --position_encoding tape {data} {learning} --weight_decay 0.5 {outside}".split()
    )
    return [
        *given,
        "--eval_data",
        "",
        *([] if resumed is None else ["--resume_from_checkpoint", str(resumed)]),
    ]


def metrics(output):
    """(step, tokens, loss, learning rate) of each line of a run's metrics."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["tokens"], line["loss"], line["learning_rate"]) for line in lines]


def test_a_run_goes_on_with_fewer_ranks_and_with_more_at_another_stage(tmp_path):
    """Two ranks at ZeRO-1, one, two at ZeRO-3: as if nothing had happened.

    The checkpoints are between logging steps, so that sums of the ranks are on their way. The sequences of a step are
    the same whatever the ranks: a sample twice, or none, would be another loss.
    """
    for number in range(4):
        lines = (f"def function_{i}(value):\n    return value + {i * number}\n" for i in range(200))
        (tmp_path / f"{number}.txt").write_text("\n".join(lines))
    run, one, two = tmp_path / "run", tmp_path / "one", tmp_path / "two"
    end("two ranks", forked(SCRIPT, *flags(tmp_path, run, "zero1")))
    end(
        "one rank",
        forked(SCRIPT, *flags(tmp_path, one, "zero1", run / "checkpoint-4"), processes=1),
    )
    end("two again", forked(SCRIPT, *flags(tmp_path, two, "zero3", one / "checkpoint-8")))
    expected = metrics(run)
    assert [step for step, *_ in expected] == [1, 3, 6, 9, 12]
    for output, since in ((one, 2), (two, 3)):
        for found, wanted in zip(metrics(output), expected[since:], strict=True):
            assert found[:2] == wanted[:2] and found[3] == wanted[3]
            assert found[2] == pytest.approx(wanted[2], abs=1e-5)


def end(what, launched):
    """Hold a launch to a good end."""
    assert launched.code == 0, f"{what}: {launched.output[-4000:]}"
