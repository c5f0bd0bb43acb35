"""LongPPL is that of the package of its authors, on the same text, models and lengths of context."""

import string
import subprocess
import sys

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tape_ds.scoring import long_ppl
from tests.models.helpers import VOCABULARY
from tests.scoring.test_long_ppl import SHORT, STRIDE, copying, known_text

PACKAGE = "longppl==0.3.0"
LETTERS = (string.ascii_letters + string.digits)[:VOCABULARY]
"""Each is a token: the package takes a text and finds tokens by their places in it."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("longppl")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "download",
        "--no-deps",
        PACKAGE,
        "--dest",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"pip could not download {PACKAGE}: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    sys.path.insert(0, str(wheel))
    try:
        from longppl.longppl import compute_longppl  # its __init__ is empty
    finally:
        sys.path.remove(str(wheel))
    return compute_longppl


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True])
def test_key_tokens_and_their_loss_are_the_packages(theirs, other):
    model = copying(1)
    judge = copying(2) if other else model
    ids_1T = known_text(judge)
    words = Tokenizer(
        models.WordLevel({letter: at for at, letter in enumerate(LETTERS)}, unk_token=LETTERS[0])
    )
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    text = "".join(LETTERS[token] for token in ids_1T[0].tolist())
    assert tokenizer(text)["input_ids"] == ids_1T[0].tolist()

    expected = theirs(
        text, model, judge, tokenizer, tokenizer, trunc_len=SHORT, sliding_window=STRIDE
    )
    found = long_ppl.pooled(
        [long_ppl.score(model, judge, ids_1T, short=SHORT, stride=STRIDE, chunk=7)]
    )
    assert found["key_tokens"] == expected["n_key_token"] >= 5
    assert found["key_nll"] == pytest.approx(np.log(expected["longppl"]), rel=1e-5)
