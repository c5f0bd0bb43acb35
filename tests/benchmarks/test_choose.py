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
    (one,) = chosen(
        row("attend sdpa", 6.0),
        row("attend triton", 5.0),
        row("ours", 1.0),
        row("flash-attn 3", 1.0),
    )
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


def test_packed_rows_have_a_choice_of_their_own():
    """A dense win says nothing of documents: there torch's own attention goes from one to the next."""
    few, many = ({"shape": f"B1 H32 G32 T8192 K128 N{documents}"} for documents in (1, 64))
    packed = [row("attend sdpa", 6.0, **few), row("attend sdpa", 60.0, **many)]
    packed += [row("attend triton", 7.0, **few), row("attend triton", 4.0, **many)]
    dense = [row("attend sdpa", 6.0), row("attend triton", 7.0)]
    rows = choose.choose({"attention_h100.jsonl": dense, "packed_h100.jsonl": packed})
    found = [(each["packed"], each["backend"], each["source"].split(",")[0]) for each in rows]
    assert found == [(False, "sdpa", "attention_h100.jsonl"), (True, "triton", "packed_h100.jsonl")]


def test_a_document_may_fill_a_packed_sequence():
    rows = [
        row("attend varlen", 2.0, shape="B1 H32 G32 T8192 K128 N16"),
        row("attend varlen", 13.0),
    ]
    rows += [
        row("attend triton", 2.1, shape="B1 H32 G32 T8192 K128 N16"),
        row("attend triton", 7.0),
    ]
    assert [(each["packed"], each["backend"]) for each in chosen(*rows)] == [
        (False, "triton"),
        (True, "triton"),
    ]


def test_shapes_of_one_length_are_weighed_together():
    grouped = {"shape": "B1 H32 G8 T8192 K128"}
    first = [row("attend sdpa", 6.0), row("attend triton", 3.0), row("attend flex", 1.0)]
    second = [row("attend sdpa", 4.0, **grouped), row("attend triton", 5.0, **grouped)]
    (one,) = chosen(*first, *second)
    assert one["backend"] == "triton"


def test_lengths_do_not_overlap():
    rows = []
    for tokens, fastest in ((1024, "sdpa"), (2048, "triton"), (16384, "flash")):
        shape = f"B1 H32 G32 T{tokens} K128"
        rows += [
            row(f"attend {name}", 1.0 if name == fastest else 2.0, shape=shape)
            for name in attention.available()
        ]
    found = [(each["min_tokens"], each["max_tokens"], each["backend"]) for each in chosen(*rows)]
    assert found == [(512, 1024, "sdpa"), (1025, 4096, "triton"), (8192, 32768, "flash")]


def test_a_campaign_is_taken_in_and_the_table_is_written_as_auto_reads_it(tmp_path):
    results, stored, written = tmp_path / "results", tmp_path / "stored", tmp_path / "table.json"
    rows = [
        row("attend sdpa", 6.0),
        row("attend triton", 5.0),
        row("attend auto", 3.0, group="recipe"),
    ]
    rows += [row("attend sdpa", 6.0, chip="cpu")]
    for one in rows:
        table.append(dataclasses.asdict(one), results / "campaign_1.jsonl")
    assert (
        main(
            ["choose", "--results", str(results), "--stored", str(stored), "--table", str(written)]
        )
        == 0
    )
    (one,) = [StoredChoice(**each) for each in json.loads(written.read_text())]
    assert (one.device, one.backend) == ("sm_90", "triton")
    names = {f"{group}_nvidia_h100_80gb_hbm3" for group in ("attention", "recipe")} | {
        "attention_cpu"
    }
    assert {path.name for path in stored.iterdir()} == {
        f"{name}.{end}" for name in names for end in ("jsonl", "md")
    }


def test_a_step_of_decoding_has_a_row_of_its_own():
    step = row("attend triton", 0.1, shape="B1 H32 G32 T1 S8192 K128")
    rows = choose.choose(
        {"decode_h100.jsonl": [step], "attention_h100.jsonl": [row("attend sdpa", 6.0)]}
    )
    assert [(each["min_tokens"], each["max_tokens"], each["backend"]) for each in rows] == [
        (1, 16, "triton"),
        (4096, 16384, "sdpa"),
    ]
    assert [each["source"].split(",")[0] for each in rows] == [
        "decode_h100.jsonl",
        "attention_h100.jsonl",
    ]
