"""A tokenizer as llama.cpp reads it from a GGUF file: byte-level BPE (``gpt2``) or SentencePiece's BPE (``llama``).

llama.cpp splits text before BPE by code of its own, one for each published family, and a file names it. The name is
found as llama.cpp's converter finds it, by a digest of the ids of a known text; an unknown digest is refused, since
another family's split gives other ids without a word.
"""

import hashlib
import json
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from gguf import GGUFWriter, TokenType

from tape_ds.errors import Problem, UserError

AUTO = "auto"
NONE = "none"
OPTION = "--gguf_tokenizer"
_TABLE = Path(__file__).with_name("pre_tokenizers.json")
_BYTE_LEVEL = "gpt2"
_SENTENCEPIECE = "llama"
_UNUSED_SCORE = -10_000.0
_ADDED_SCORE = -1000.0
_SPACE = "\u2581"
_LEAVE_OUT = (
    f"{OPTION} {NONE}, which leaves the tokenizer out of the file: programs then give llama.cpp ids"
)
_ID_KEYS = ("bos", "eos", "unk", "sep", "pad", "mask")


@dataclass
class GgufTokenizer:
    """Keys ``tokenizer.*`` of a file; lists have an entry for each row of the model's embeddings."""

    model: str
    pre: str = ""
    tokens: list[str] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    special_ids: dict[str, int] = field(default_factory=dict)
    """By the name that ``GGUFWriter.add_..._token_id`` has: bos, eos, eot, ..."""
    adds: dict[str, bool] = field(default_factory=dict)
    """Whether ``bos`` and ``eos`` are put around every text."""
    space_prefix: bool | None = None
    chat_template: Any = None

    def write(self, writer: GGUFWriter) -> None:
        writer.add_tokenizer_model(self.model)
        for name, number in self.special_ids.items():
            getattr(writer, f"add_{name}_token_id")(number)
        if self.model == NONE:
            return
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        if self.scores:
            writer.add_token_scores(self.scores)
        writer.add_token_types(self.types)
        if self.merges:
            writer.add_token_merges(self.merges)
        for name, is_added in self.adds.items():
            getattr(writer, f"add_add_{name}_token")(is_added)
        if self.space_prefix is not None:
            writer.add_add_space_prefix(self.space_prefix)
        if self.chat_template is not None:
            writer.add_chat_template(self.chat_template)


@cache
def _table() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(_TABLE.read_text(encoding="utf-8"))
    return content


def pre_tokenizers() -> list[str]:
    return sorted(set(_table()["names"].values()))


def check_choice(choice: str) -> list[Problem]:
    known = [AUTO, NONE, *pre_tokenizers()]
    if choice in known:
        return []
    wrong = "neither auto nor none nor a pre-tokenizer of llama.cpp"
    return [Problem(OPTION, choice, wrong, f"give one of {', '.join(known)}")]


def read(tokenizer: Any, config: Any, choice: str, end_ids: list[int]) -> GgufTokenizer:
    """Return a tokenizer's keys.

    Args:
        tokenizer: of transformers, with a backend of ``tokenizers``; None: a file without one.
        config: the model's.
        choice: ``auto``, ``none`` or the name of a pre-tokenizer.
        end_ids: tokens that end an answer, by the model's settings of generation.

    Raises:
        UserError: llama.cpp has no such tokenizer, or its pre-tokenizer is not known.
    """
    rows = config.vocab_size
    if tokenizer is None or choice == NONE:
        return GgufTokenizer(NONE, special_ids=_special_ids(None, config, end_ids))
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise _refused(
            type(tokenizer).__name__, "a tokenizer in Python alone, of which llama.cpp has none"
        )
    content = json.loads(backend.to_str())
    keys = GgufTokenizer(_SENTENCEPIECE, pre="default")
    kind = content["model"].get("type")
    if kind != "BPE":
        raise _refused(
            kind,
            "llama.cpp's models of this architecture have byte-level or SentencePiece's BPE alone",
        )
    is_byte_level = _has(content, "pre_tokenizer", "ByteLevel")
    if is_byte_level:
        keys = GgufTokenizer(_BYTE_LEVEL, pre=_pre_tokenizer(tokenizer, choice))
    elif not content["model"].get("byte_fallback"):
        raise _refused(kind, "BPE of letters without bytes, which llama.cpp does not have")

    tokens = {number: token for token, number in tokenizer.get_vocab().items()}
    if max(tokens) >= rows:
        wrong = f"{rows:,} rows for a tokenizer of {max(tokens) + 1:,} tokens"
        raise UserError(
            Problem("source", rows, wrong, "use the tokenizer that was saved with this model")
        )
    _add_tokens(keys, tokens, rows, tokenizer.added_tokens_decoder)
    if is_byte_level:
        keys.merges = list(map(_merge, content["model"]["merges"]))
    else:
        _type_pieces(keys, content["model"].get("unk_token"))
        keys.scores = _scores(
            keys, tokens, content["model"]["merges"], tokenizer.added_tokens_decoder
        )
        keys.space_prefix = _has_space_prefix(content)
    keys.special_ids = _special_ids(tokenizer, config, end_ids)
    ids = tokenizer("")["input_ids"]
    keys.adds["bos"] = ids[:1] == [keys.special_ids.get("bos")]
    keys.adds["eos"] = len(ids) > int(keys.adds["bos"]) and ids[-1:] == [
        keys.special_ids.get("eos")
    ]
    keys.chat_template = _template(tokenizer.chat_template)
    return keys


def _refused(kind: Any, wrong: str) -> UserError:
    return UserError(Problem("tokenizer", kind, wrong, _LEAVE_OUT))


def _pre_tokenizer(tokenizer: Any, choice: str) -> str:
    if choice != AUTO:
        return choice
    ids = tokenizer.encode(_table()["text"])
    digest = hashlib.sha256(str(ids).encode()).hexdigest()
    name = _table()["names"].get(digest)
    if name is None:
        wrong = "llama.cpp knows no pre-tokenizer of this tokenizer: the digest of its ids of a known text is none of "
        wrong += f"the {len(_table()['names'])} of llama.cpp's converter"
        remedy = f"{OPTION} NAME, if you know which of llama.cpp's pre-tokenizers splits text as it does; "
        raise UserError(Problem("tokenizer", digest, wrong, f"{remedy}or {_LEAVE_OUT}"))
    return str(name)


def _steps(content: Any) -> list[dict[str, Any]]:
    """Return the steps of a part of ``tokenizer.json``, sequences unfolded."""
    if not content:
        return []
    for name in ("pretokenizers", "normalizers", "decoders"):
        if name in content:
            return list(chain.from_iterable(map(_steps, content[name])))
    return [content]


def _has(content: Any, part: str, kind: str) -> bool:
    return any(step.get("type") == kind for step in _steps(content.get(part)))


def _has_space_prefix(content: Any) -> bool:
    """Return whether a text begins with a space of SentencePiece's."""
    if _has(content, "normalizer", "Prepend"):
        return True
    for step in _steps(content.get("pre_tokenizer")):
        # the default of the package tokenizers
        if step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never":
            return True
    return False


def _add_tokens(
    keys: GgufTokenizer, tokens: dict[int, str], rows: int, added: dict[int, Any]
) -> None:
    for number in range(rows):
        token = tokens.get(number)
        # a row that no token has
        if token is None:
            keys.tokens.append(f"[PAD{number}]")
            keys.types.append(TokenType.UNUSED)
            continue
        kind = TokenType.NORMAL
        if number in added and added[number].special:
            kind = TokenType.CONTROL
        elif number in added:
            kind = TokenType.USER_DEFINED
            # llama.cpp looks for it in the text as it is
            token = token.replace(_SPACE, " ")
        keys.tokens.append(token)
        keys.types.append(kind)


def _type_pieces(keys: GgufTokenizer, unknown: str | None) -> None:
    """Set the types of SentencePiece's bytes and of its unknown token."""
    for number, token in enumerate(keys.tokens):
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            keys.types[number] = TokenType.BYTE
        elif token == unknown:
            keys.types[number] = TokenType.UNKNOWN


def _scores(
    keys: GgufTokenizer, tokens: dict[int, str], merges: list[Any], added: dict[int, Any]
) -> list[float]:
    """Return scores in the order of the merges: llama.cpp joins the two pieces whose whole has the best score, where
    BPE joins the first pair of its list. ``tokenizer.json`` keeps the list alone.

    Raises:
        UserError: no scores give that order.
    """
    ranks: dict[str, int] = {}
    last = ""
    for rank, pair in enumerate(merges):
        # older files have a pair as one text
        if isinstance(pair, str):
            pair = pair.split(" ", 1)
        whole = "".join(pair)
        if whole in ranks and whole != last:
            wrong = f"its merges make {whole!r} at two places of their order: they are not SentencePiece's"
            raise _refused("BPE", wrong)
        ranks.setdefault(whole, rank)
        last = whole
    scores = []
    for number in range(len(keys.tokens)):
        token = tokens.get(number)
        if token is None:
            scores.append(_UNUSED_SCORE)
        elif number in added:
            scores.append(_ADDED_SCORE)
        else:
            scores.append(-float(ranks.get(token, len(merges))))
    return scores


def _merge(pair: Any) -> str:
    if isinstance(pair, str):
        return pair
    return " ".join(part.replace(" ", "\u0120") for part in pair)


def _special_ids(tokenizer: Any, config: Any, end_ids: list[int]) -> dict[str, int]:
    """Return the ids of special tokens: the tokenizer's, else the model's."""
    special_ids = {}
    for name in _ID_KEYS:
        number = getattr(tokenizer, f"{name}_token_id", None)
        if number is None:
            number = getattr(config, f"{name}_token_id", None)
        if isinstance(number, int):
            special_ids[name] = number
    others = [number for number in end_ids if number != special_ids.get("eos")]
    if "eos" not in special_ids and others:
        special_ids["eos"] = others.pop(0)
    # llama.cpp ends an answer at any of the three
    for name, number in zip(("eot", "eom"), others, strict=False):
        special_ids[name] = number
    return special_ids


def _template(template: Any) -> Any:
    if not isinstance(template, dict):
        return template
    return [{"name": name, "template": text} for name, text in template.items()]
