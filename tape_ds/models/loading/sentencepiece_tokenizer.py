"""A sentencepiece BPE model as a tokenizer that transformers loads, the same id for id.

transformers reads a bare ``tokenizer.model`` with a class that is chosen by the model's family, and puts settings of
its own in place of those recorded in the file. Here the file alone decides: whether a text begins with one more ``▁``,
what is normalised, which pieces are taken out of a text first. The result is compared with sentencepiece itself.
"""

from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import SentencePieceExtractor
from transformers.tokenization_utils_base import generate_merges

from tape_ds.errors import Problem, UserError

_SPACE = "▁"
_BPE, _NORMAL, _USER, _BYTE = 2, 1, 4, 6  # numbers of sentencepiece's own enumerations

_PROBES = (
    "The quick brown fox; it's 1234567890 degrees, 3.14e-10.",
    "  two spaces first, then\ttabs,\n\n  lines    and a space last ",
    "def f(x: int) -> str:\n    return '<s>' if x else \"</s>\"\n",
    "<html><p>a<s b='c'></s></p></html>",
    "白日依山尽。黄河入海流。欲穷千里目。更上一层楼。",
    "naïve café, Ελλάδα, Привет, 日本語, 🦙, \u200b\u00a0",
)
"""Texts whose ids must be sentencepiece's: prose, spaces, code, marks that look like special tokens, other scripts."""


def load(file: str | Path, **settings: Any) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a ``tokenizer.model`` of type BPE.

    ``settings`` are those of ``PreTrainedTokenizerFast``: special tokens, which default to those of the file, and
    ``add_bos_token`` and ``add_eos_token``, which default to False.
    """
    try:
        processor = SentencePieceProcessor(model_file=str(file))
    except (OSError, RuntimeError) as error:
        remedy = "give the tokenizer.model that sentencepiece wrote"
        raise UserError(Problem("tokenizer", str(file), f"no sentencepiece model ({error})", remedy)) from error
    built = backend(file)
    for text in _PROBES:
        if built.encode(text, add_special_tokens=False).ids != processor.encode(text):
            remedy = "convert it to tokenizer.json with the program that made it, and put it into the model's folder"
            wrong = f"would give other ids than sentencepiece for {text[:40]!r}"
            raise UserError(Problem("tokenizer", str(file), wrong, remedy))
    ids = {"unk_token": processor.unk_id(), "bos_token": processor.bos_id(), "eos_token": processor.eos_id()}
    special = {name: processor.id_to_piece(number) for name, number in ids.items() if number >= 0}
    chosen = {"add_bos_token": False, "add_eos_token": False, "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=built, **{**chosen, **special, **settings})


def backend(file: str | Path) -> Tokenizer:
    """Return the same encoding for the ``tokenizers`` library, spelt out from what the file records."""
    model = SentencePieceExtractor(str(file)).proto
    if model.trainer_spec.model_type != _BPE:
        remedy = "give one of type BPE, or a tokenizer.json"
        raise UserError(Problem("tokenizer", str(file), "a sentencepiece model of another type than BPE", remedy))
    vocabulary = {piece.piece: number for number, piece in enumerate(model.pieces)}
    # Letters must not merge into what is no ordinary piece: "<s" and ">" would make the special token <s> of a text.
    apart = [piece.piece for piece in model.pieces if piece.type != _NORMAL]
    built = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=generate_merges(vocabulary, skip_tokens=apart),
            unk_token=model.pieces[model.trainer_spec.unk_id].piece,
            fuse_unk=True,
            byte_fallback=any(piece.type == _BYTE for piece in model.pieces),
        )
    )
    built.normalizer = _normalizer(model.normalizer_spec)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    decoding += [decoders.Strip(" ", 1, 0)] if model.normalizer_spec.add_dummy_prefix else []
    built.decoder = decoders.Sequence(decoding)
    # A piece with spaces in it is found in the normalised text, where they are ▁.
    own = [piece.piece for piece in model.pieces if piece.type == _USER]
    built.add_tokens([AddedToken(piece, normalized=_SPACE in piece, special=False) for piece in own])
    return built


def _normalizer(given: Any) -> Any:
    """Sentencepiece's ``NormalizerSpec``, in its order: characters, spaces, the prefix, the letter for a space."""
    steps: list[Any] = []
    if given.precompiled_charsmap:
        steps.append(normalizers.Precompiled(given.precompiled_charsmap))
    if given.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if given.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
