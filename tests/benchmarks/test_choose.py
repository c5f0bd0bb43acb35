"""``auto``'s table: the fastest right backend of each length, and nothing that was not measured."""

import dataclasses
import json

import pytest

from benchmarks import choose, table
from benchmarks.__main__ import main
from tape_ds import attention
from tape_ds.attention.backends import StoredChoice
from tests.benchmarks.helpers import row


def chosen(*rows):
    return choose.choose({"attention_h100.jsonl": rows})


def test_the_fastest_backend_of_attend_is_chosen():
    (one,) = chosen(row("attend sdpa", 6.0), row("attend triton", 5.0), row("ours", 1.0), row("flash-attn 3", 1.0))
    assert one == {
        "device": "sm_90",
        "dtype": "bfloat16",
        "key_width": 128,
        "value_width": 256,
        "packed": False,
        "min_tokens": 4096,
        "max_tokens": 16384,
        "backend": "triton",
        "source": "attention_h100.jsonl, 2026-11-21",
    }


@pytest.mark.parametrize("status", ["wrong", "refused"])
def test_a_backend_without_a_right_result_is_not_chosen(status):
    (one,) = chosen(row("attend sdpa", 6.0), row("attend triton", status=status))
    assert one["backend"] == "sdpa"


def test_auto_and_what_is_no_backend_any_more_are_not_chosen():
    (one,) = chosen(row("attend auto", 1.0), row("attend gone", 1.0), row("attend flex", 7.0))
    assert one["backend"] == "flex"


def test_rope_has_rows_of_its_own_width():
    rows = chosen(row("attend flash", 2.0, encoding="rope"), row("attend sdpa", 5.0))
    assert [(each["value_width"], each["backend"]) for each in rows] == [(128, "flash"), (256, "sdpa")]


def test_packed_rows_have_a_choice_of_their_own():
    """A dense win says nothing of documents: there torch's own attention goes from one to the next."""
    few, many = ({"shape": f"B1 H32 G32 T8192 K128 N{documents}"} for documents in (1, 64))
    packed = [row("attend sdpa", 6.0, **few), row("attend sdpa", 60.0, **many)]
    packed += [row("attend triton", 7.0, **few), row("attend triton", 4.0, **many)]
    dense = [row("attend sdpa", 6.0), row("attend triton", 7.0)]
    rows = choose.choose({"attention_h100.jsonl": dense, "packed_h100.jsonl": packed})
    found = [(each["packed"], each["backend"], each["source"].split(",")[0]) for each in rows]
    assert found == [(False, "sdpa", "attention_h100.jsonl"), (True, "triton", "packed_h100.jsonl")]


def test_shapes_of_one_length_are_weighed_together():
    """Triton is far ahead on one and a little behind on the other; flex is missing on the second."""
    grouped = {"shape": "B1 H32 G8 T8192 K128"}
    first = [row("attend sdpa", 6.0), row("attend triton", 3.0), row("attend flex", 1.0)]
    second = [row("attend sdpa", 4.0, **grouped), row("attend triton", 5.0, **grouped)]
    (one,) = chosen(*first, *second)
    assert one["backend"] == "triton"


def test_lengths_do_not_overlap():
    rows = []
    for tokens, fastest in ((1024, "sdpa"), (2048, "triton"), (16384, "flash")):
        shape = f"B1 H32 G32 T{tokens} K128"
        rows += [row(f"attend {name}", 1.0 if name == fastest else 2.0, shape=shape) for name in attention.available()]
    found = [(each["min_tokens"], each["max_tokens"], each["backend"]) for each in chosen(*rows)]
    assert found == [(512, 1024, "sdpa"), (1025, 4096, "triton"), (8192, 32768, "flash")]


def test_a_cpu_gets_no_row():
    assert chosen(row("attend sdpa", 1.0, chip="cpu")) == []


def taken_in(folder, stored, written):
    return main(["choose", "--results", str(folder), "--stored", str(stored), "--table", str(written)])


def test_a_campaign_is_taken_in_and_the_table_is_written_as_auto_reads_it(tmp_path, capsys):
    results, stored, written = tmp_path / "results", tmp_path / "stored", tmp_path / "table.json"
    rows = [row("attend sdpa", 6.0), row("attend triton", 5.0), row("attend auto", 3.0, group="recipe")]
    for part, each in (
        (1, rows),
        (
            2,
            [
                row("attend sdpa", 6.0, chip="cpu"),
                row("attend sdpa", 0.1, group="decode", shape="B1 H32 G32 T1 S8192 K128"),
            ],
        ),
    ):
        for one in each:
            table.append(dataclasses.asdict(one), results / f"campaign_{part}.jsonl")
    assert taken_in(results, stored, written) == 0
    (one,) = [StoredChoice(**each) for each in json.loads(written.read_text()) if each["min_tokens"] > 1][:1]
    assert (one.device, one.backend) == ("sm_90", "triton")
    names = {f"{group}_nvidia_h100_80gb_hbm3" for group in ("attention", "recipe", "decode")} | {"attention_cpu"}
    assert {path.name for path in stored.iterdir()} == {f"{name}.{end}" for name in names for end in ("jsonl", "md")}
    assert "rows from attention_cpu.jsonl, attention_nvidia" in capsys.readouterr().out


def test_with_nothing_stored_nothing_is_written(tmp_path, capsys):
    assert taken_in(tmp_path, tmp_path, tmp_path / "table.json") == 2
    assert "run python -m benchmarks attention decode first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_step_of_decoding_has_a_row_of_its_own():
    """Files of both groups together: one token speaks for a few, never for a text."""
    step = row("attend triton", 0.1, shape="B1 H32 G32 T1 S8192 K128")
    rows = choose.choose({"decode_h100.jsonl": [step], "attention_h100.jsonl": [row("attend sdpa", 6.0)]})
    assert [(each["min_tokens"], each["max_tokens"], each["backend"]) for each in rows] == [
        (1, 16, "triton"),
        (4096, 16384, "sdpa"),
    ]
    assert [each["source"].split(",")[0] for each in rows] == ["decode_h100.jsonl", "attention_h100.jsonl"]
