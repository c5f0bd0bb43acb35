"""A sentencepiece BPE model as a tokenizer that transformers loads, with the same ids.

transformers reads a bare ``tokenizer.model`` with a class that it chooses by the model's family, and replaces settings
recorded in the file by its own. Here the file alone decides whether a text begins with one more ``▁``, and which pieces
are taken out of a text first. Models that normalise texts are refused.
"""

from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import SentencePieceExtractor
from transformers.tokenization_utils_base import generate_merges

from tape_ds.errors import Problem, UserError

_SPACE = "▁"
# numbers of sentencepiece's own enumerations
_BPE = 2
_NORMAL = 1
_USER = 4
_BYTE = 6


def load(file: Path, **settings: Any) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a ``tokenizer.model``.

    ``settings`` are those of ``PreTrainedTokenizerFast``: special tokens, which default to those of the file, and
    ``add_bos_token`` and ``add_eos_token``, which default to False.

    Raises:
        UserError: no sentencepiece model, not BPE, or it normalises texts.
    """
    try:
        model = SentencePieceExtractor(str(file)).proto
    except (OSError, DecodeError) as error:
        remedy = "give the tokenizer.model that sentencepiece wrote"
        raise UserError(
            Problem("tokenizer", str(file), f"no sentencepiece model ({error})", remedy)
        ) from error
    trained = model.trainer_spec
    normaliser = model.normalizer_spec
    wrong = ""
    if trained.model_type != _BPE:
        wrong = "a sentencepiece model of another type than BPE"
    elif normaliser.precompiled_charsmap or normaliser.remove_extra_whitespaces:
        wrong = "a sentencepiece model that normalises texts"
    if wrong:
        raise UserError(Problem("tokenizer", str(file), wrong, "give a tokenizer.json of it"))

    vocabulary = {piece.piece: number for number, piece in enumerate(model.pieces)}
    # Letters must not merge into a special piece: "<s" and ">" would make the token <s> of a text.
    apart = [piece.piece for piece in model.pieces if piece.type != _NORMAL]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=generate_merges(vocabulary, skip_tokens=apart),
            unk_token=model.pieces[trained.unk_id].piece,
            fuse_unk=True,
            byte_fallback=any(piece.type == _BYTE for piece in model.pieces),
        )
    )
    prefix: list[Any] = [normalizers.Prepend(_SPACE)] if normaliser.add_dummy_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    decoding += [decoders.Strip(" ", 1, 0)] if normaliser.add_dummy_prefix else []
    tokenizer.decoder = decoders.Sequence(decoding)
    # A piece with spaces in it is found in the normalised text, where they are ▁.
    own = [piece.piece for piece in model.pieces if piece.type == _USER]
    tokenizer.add_tokens(
        [AddedToken(piece, normalized=_SPACE in piece, special=False) for piece in own]
    )

    ids = {"unk_token": trained.unk_id, "bos_token": trained.bos_id, "eos_token": trained.eos_id}
    special = {name: model.pieces[number].piece for name, number in ids.items() if number >= 0}
    chosen = {"add_bos_token": False, "add_eos_token": False, "clean_up_tokenization_spaces": False}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **{**chosen, **special, **settings})
