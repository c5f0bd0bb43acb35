"""``tape-ds evaluate perplexity`` on tiny models: its numbers against whole logits, resuming, and refusals."""

import contextlib
import json
import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoTokenizer, LlamaForCausalLM

from tape_ds import results
from tape_ds.cli.evaluate import perplexity
from tape_ds.data.sources import token_file
from tape_ds.data.tokenized import tokenizer_fingerprint
from tape_ds.scoring import long_ppl, losses, models, window_jobs
from tests.data.sources import token_writers
from tests.models.helpers import VOCABULARY

SIZES = {"a": 70, "b": 131, "c": 33, "d": 7}
BOS = 1


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def documents():
    """Token ids by name, in the order in which they are read; no word that begins like a special one (w1, w2)."""
    words = [*range(3, 10), *range(30, VOCABULARY)]
    drawn = random.Random(0)
    return {name: drawn.choices(words, k=size) for name, size in SIZES.items()}


@pytest.fixture
def spec(tmp_path, documents):
    """Of the documents as text files, a token a word."""
    for name, ids in documents.items():
        (tmp_path / f"{name}.txt").write_text(" ".join(f"w{each}" for each in ids))
    return f"text:{tmp_path}/*.txt"


@pytest.fixture
def stream(tmp_path, documents, base):
    """Data spec of the documents as one file of ids."""
    write_bin(tmp_path / "all.bin", documents.values(), base)
    return f"bin:{tmp_path}/all.bin"


def write_bin(path, parts, base, vocabulary=VOCABULARY):
    return token_file.write(
        path,
        map(np.array, parts),
        tokenizer=tokenizer_fingerprint(AutoTokenizer.from_pretrained(base)),
        vocabulary=vocabulary,
        sources={},
        choice={},
    )


@pytest.fixture
def evaluate(tmp_path, base):
    """Calls the command and gives the stored figures; each call has its own folder by default."""
    calls = []

    def call(*arguments, output=None, model=base):
        calls.append(arguments)
        folder = output or tmp_path / f"out{len(calls)}"
        code = perplexity.main([str(model), "--output", str(folder), *map(str, arguments)])
        assert code == 0
        return results.load(folder / "perplexity.json").figures

    return call


@torch.no_grad()
def whole(base, sequences):
    """Mean loss and count over sequences of (ids, targets at the end), from whole logits in fp64."""
    model = LlamaForCausalLM.from_pretrained(base).eval()
    losses = []
    for ids, targets in sequences:
        logits_NV = model(torch.tensor([ids])).logits[0, -targets - 1 : -1].double()
        losses += nn.functional.cross_entropy(
            logits_NV, torch.tensor(ids[-targets:]), reduction="none"
        ).tolist()
    return math.fsum(losses) / len(losses), len(losses)


def test_blocks_of_each_document(evaluate, spec, documents, base):
    found = evaluate("--data", spec, "--lengths", 32, 16)
    assert [each["length"] for each in found["perplexity"]] == [16, 32] and found["documents"] == {
        spec: 4
    }
    for entry in found["perplexity"]:
        size = entry["length"]
        sequences = [
            (ids[s : s + size], size - 1)
            for ids in documents.values()
            for s in range(0, len(ids) - size + 1, size)
        ]
        nll, targets = whole(base, sequences)
        assert (entry["targets"], entry["windows"], entry["documents"]) == (
            targets,
            len(sequences),
            3,
        )
        assert entry["nll"] == pytest.approx(nll, abs=1e-5)
        assert entry["perplexity"] == pytest.approx(math.exp(nll), rel=1e-4)
        assert entry["left_out"] == {
            "documents": 1,
            "names": ["d.txt"],
            "tokens": sum(SIZES.values()) - len(sequences) * size,
        }


def test_all_tokens_of_one_file_of_ids(evaluate, stream, documents, base):
    """LongLoRA's loop over the stream; the text that ends exactly where a window would is left out."""
    (entry,) = evaluate(
        "--data", stream, "--lengths", 40, "--convention", "all_tokens", "--stride", 9
    )["perplexity"]
    ids = [each for part in documents.values() for each in part]
    sequences = [(ids[start : start + 40], 39) for start in range(0, len(ids) - 40, 9)]
    nll, targets = whole(base, sequences)
    assert (entry["targets"], entry["windows"], entry["stride"]) == (targets, len(sequences), 9)
    assert entry["nll"] == pytest.approx(nll, abs=1e-5)
    assert entry["standard_error"] is None, "one text has no spread"


def test_new_tokens_behind_bos(evaluate, spec, documents, base):
    """PoSE's loop: windows of BOS and 39 tokens, each token of a document scored once, short documents too."""
    arguments = (
        "--data",
        spec,
        "--lengths",
        40,
        "--convention",
        "new_tokens",
        "--stride",
        11,
        "--bos",
    )
    (entry,) = evaluate(*arguments)["perplexity"]
    sequences = []
    for ids in documents.values():
        known = 0
        for start in range(0, len(ids), 11):
            end = min(start + 39, len(ids))
            sequences.append(([BOS, *ids[start:end]], end - known))
            known = end
            if end == len(ids):
                break
    nll, targets = whole(base, sequences)
    assert entry["targets"] == targets == sum(SIZES.values())
    assert entry["nll"] == pytest.approx(nll, abs=1e-5)
    assert entry["left_out"] == {"documents": 0, "names": [], "tokens": 0}
    assert entry["shorter"] == {"documents": 2, "names": ["c.txt", "d.txt"]}
    assert 0 < entry["standard_error"] < 1


def test_first_windows_alone(evaluate, spec, documents, base):
    """PoSE's --truncate on documents that are long enough, cut to one length."""
    cut = ("--min_tokens", 33, "--max_tokens", 33, "--max_documents", 2, "--first_window")
    (entry,) = evaluate(
        "--data", spec, "--lengths", 20, "--convention", "new_tokens", "--stride", 3, *cut, "--bos"
    )["perplexity"]
    sequences = [([BOS, *documents[name][:19]], 19) for name in "ab"]
    nll, targets = whole(base, sequences)
    assert (entry["targets"], entry["windows"], entry["left_out"]["tokens"]) == (targets, 2, 28)
    assert entry["nll"] == pytest.approx(nll, abs=1e-5)


def test_joined_blocks_without_the_last(evaluate, spec, documents, base):
    """TAPE's eval.py: so many documents at a time, concatenated, and one block fewer than there is room for."""
    (entry,) = evaluate("--data", spec, "--lengths", 16, "--join", 3, "--drop_last")["perplexity"]
    joined = [[each for name in part for each in documents[name]] for part in ("abc", "d")]
    sequences = [
        (ids[16 * at : 16 * at + 16], 15) for ids in joined for at in range(len(ids) // 16 - 1)
    ]
    nll, targets = whole(base, sequences)
    assert (entry["targets"], entry["windows"]) == (targets, len(sequences))
    assert entry["nll"] == pytest.approx(nll, abs=1e-5)
    assert entry["left_out"]["names"] == ["d.txt"]


def test_angles_are_those_of_each_length(evaluate, spec, monkeypatch):
    used = []
    monkeypatch.setattr(
        window_jobs,
        "used_at",
        lambda model, length: used.append(length) or contextlib.nullcontext(),
    )
    evaluate("--data", spec, "--lengths", 16, 120)
    assert set(used) == {16, 120}


def test_loss_by_position_of_documents_and_streams(evaluate, spec, stream, documents, base):
    """Of a document its beginning; of a stream, which has none, every block of the longest length."""
    found = evaluate("--data", spec, stream, "--lengths", 16, 64, "--spans", 16)["loss_by_position"]
    model = LlamaForCausalLM.from_pretrained(base)

    def score(ids):
        return losses.score_spans(model, torch.tensor([ids]), 16)

    assert list(found[spec]) == ["a.txt", "b.txt", "c.txt", "d.txt"]
    for name, ids in documents.items():
        assert found[spec][f"{name}.txt"]["nll"] == pytest.approx(
            list(score(ids[:64]).nll), abs=1e-6
        )
    ids = [each for part in documents.values() for each in part]
    blocks = losses.SpanLosses.merge(score(ids[at : at + 64]) for at in (0, 64, 128))
    assert found[stream]["all.bin"]["counts"] == list(blocks.counts) == [45, 48, 48, 48]
    assert found[stream]["all.bin"]["nll"] == pytest.approx(list(blocks.nll), abs=1e-6)


def test_an_interrupted_evaluation_resumes_to_the_same_result(
    evaluate, spec, tmp_path, monkeypatch
):
    monkeypatch.setattr(window_jobs, "TOKENS_A_JOB", 40)
    arguments = ("--data", spec, "--lengths", 16, 32, "--spans", 8)
    undisturbed = evaluate(*arguments)
    real, done = window_jobs.work, []

    def killed(*given):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(given[-1])
        return real(*given)

    monkeypatch.setattr(window_jobs, "work", killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate(*arguments, output=tmp_path / "again")
    assert not (tmp_path / "again" / "perplexity.json").exists()
    again = []
    monkeypatch.setattr(window_jobs, "work", lambda *given: again.append(given[-1]) or real(*given))
    resumed = evaluate(*arguments, output=tmp_path / "again")
    assert len(again) > 3 and not set(again) & set(done)
    assert resumed.pop("cost") and undisturbed.pop("cost")
    assert json.dumps(resumed) == json.dumps(undisturbed)


@pytest.fixture
def refused(base, tmp_path, monkeypatch, capsys):
    """Calls the command, which must end with code 2 before a model is loaded or anything stored; gives the message."""
    monkeypatch.setattr(models.FoundModel, "load", lambda self: pytest.fail("the model was loaded"))

    def call(*arguments, model=base):
        folder = tmp_path / "refused"
        assert perplexity.main([str(model), "--output", str(folder), *map(str, arguments)]) == 2
        assert not folder.exists()
        return capsys.readouterr().err

    return call


def test_all_problems_are_in_one_message(refused, tmp_path):
    message = refused(
        *("--data", f"bin:{tmp_path}/none.bin", "--lengths", 16, 1, "--convention", "all_tokens"),
        *(
            "--stride",
            40,
            "--spans",
            1,
            "--batch_size",
            0,
            "--min_tokens",
            50,
            "--max_tokens",
            20,
            "--chunk",
            -1,
        ),
    )
    assert "7 problems found" in message
    for field in (
        "none.bin",
        "--lengths",
        "--stride",
        "--spans",
        "--batch_size",
        "--max_tokens",
        "--chunk",
    ):
        assert field in message


def test_a_length_that_no_text_fills_is_refused(refused, spec):
    message = refused(
        "--data", spec, "--lengths", 16, 1000, 131, "--convention", "all_tokens", "--stride", 4
    )
    assert (
        "2 problems" in message and "--lengths = 131" in message and "--lengths = 1000" in message
    )
    message = refused("--data", spec, "--lengths", 132, "--convention", "new_tokens", "--stride", 4)
    assert "--lengths = 132" in message
    assert "--data" in refused("--data", spec, "--lengths", 16, "--min_tokens", "1k")


def test_a_stride_needs_windows_that_overlap(refused, spec):
    assert "--stride = 4" in refused("--data", spec, "--lengths", 16, "--stride", 4)
    words = ("--lengths", 16, "--stride", 16, "--convention", "new_tokens", "--bos")
    assert "--stride = 16" in refused("--data", spec, *words)


def test_a_model_with_fewer_embeddings_than_the_tokenizer_is_refused(refused, spec, base, tmp_path):
    config = LlamaForCausalLM.from_pretrained(base).config
    config.vocab_size = 50
    LlamaForCausalLM(config).save_pretrained(tmp_path / "narrow")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "narrow")
    said = refused("--data", spec, "--lengths", 16, model=tmp_path / "narrow")
    assert "the model's vocabulary ends at 49" in said


def test_a_head_that_cannot_be_reproduced_is_refused(refused, spec, monkeypatch):
    monkeypatch.setattr(
        "tape_ds.scoring.losses.unscorable", lambda config: "softcapping of this model"
    )
    assert "softcapping of this model" in refused("--data", spec, "--lengths", 16)


def test_each_document_of_a_token_file_scores_as_its_text(
    evaluate, spec, documents, base, tmp_path
):
    """The borders come from the file: the same windows, the same sums as the texts of these ids."""
    (texts,) = evaluate("--data", spec, "--lengths", 32)["perplexity"]
    ids = list(documents.values())
    for path in (
        token_writers.megatron(tmp_path / "m", ids),
        token_writers.litdata(tmp_path / "l", ids, "uint16"),
    ):
        (found,) = evaluate("--data", f"tokens:{path}", "--lengths", 32)["perplexity"]
        for name in ("nll", "perplexity", "targets", "windows", "documents"):
            assert found[name] == texts[name], (path, name)


def test_a_header_is_not_scored(evaluate, documents, base, tmp_path, capsys):
    """numpy's and llm.c's headers were 64 and 512 ids of the first window, with exit code 0."""
    token_writers.numpy_file(tmp_path / "x.npy", documents.values())
    token_writers.llm_c(tmp_path / "x.bin", documents.values())
    for name in ("x.npy", "x.bin"):
        code = perplexity.main([str(base), "--data", f"bin:{tmp_path}/{name}", "--lengths", "32"])
        assert code == 2 and f"tokens:{tmp_path}/{name}" in capsys.readouterr().err


def test_long_ppl_of_the_windows(evaluate, spec, documents, base, tmp_path):
    """Key tokens are those of the windows that are longer than the short context, found by the model or by a judge."""
    asked = ("--data", spec, "--lengths", 16, 64, "--long_ppl", "--long_ppl_short", 24)
    (entry,) = evaluate(*asked)["long_ppl"]
    model = LlamaForCausalLM.from_pretrained(base).eval()
    parts = []
    for ids in documents.values():
        for start in range(0, len(ids) - 63, 64):
            ids_1T = torch.tensor([ids[start : start + 64]])
            parts.append(long_ppl.score(model, model, ids_1T, short=24))
    assert (entry["length"], entry["windows"], entry["targets"]) == (64, 3, 3 * 40)
    assert entry["nll"] == pytest.approx(long_ppl.pooled(parts)["nll"], abs=1e-5)
    assert entry["key_tokens"] == long_ppl.pooled(parts)["key_tokens"]
    assert evaluate(*asked, "--long_ppl_judge", base)["long_ppl"] == [entry]


def test_long_ppl_that_cannot_be_is_refused(base, spec, tmp_path, capsys):
    words = [str(base), "--data", spec, "--lengths", "16", "--output", str(tmp_path / "out")]
    assert perplexity.main([*words, "--long_ppl"]) == 2
    assert (
        "--long_ppl = True: no length is longer than the short context, 4,096 tokens"
        in capsys.readouterr().err
    )
    assert perplexity.main([*words, "--long_ppl_judge", str(base)]) == 2
    assert "--long_ppl is not given" in capsys.readouterr().err
