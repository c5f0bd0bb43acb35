"""Tokenizers trained, loaded and saved; trained ones are byte-pair encodings of sentencepiece with Llama's settings.

Training from scratch trains one unless one is given. The same documents and settings give the same files, byte for
byte, so that comparisons of encodings are fair.

**Pieces** (:data:`SETTINGS`, those in Llama's published ``tokenizer.model``): a space is the letter ``▁``, with one
more at a text's beginning; digits are separate; runs of spaces may be a piece; and everything without a piece (such as
a newline) is written in bytes, ``<0x0A>``. Ids 0, 1, 2 are ``<unk>``, ``<s>``, ``</s>``.

**The folder** is read by ``AutoTokenizer``, and its ``tokenizer.model`` by sentencepiece. The class is transformers'
general ``TokenizersBackend``: its ``LlamaTokenizer`` (5.23) loses a space at a text's beginning. Every text is encoded
with BOS before it and nothing after it, and decodes to itself, except that the letter ``▁`` (U+2581) becomes a space.
Special tokens written in a text are text: a page that shows ``</s>`` does not end a document.
"""

import io
import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sentencepiece import SentencePieceTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tape_ds import building, paths
from tape_ds.data import cache
from tape_ds.data.bad_rows import BadRows
from tape_ds.data.prompting import around
from tape_ds.data.sources import Source, parse_all
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.mappings import without
from tape_ds.models.files.library_errors import as_message
from tape_ds.models.loading import model_folder, sentencepiece_tokenizer
from tape_ds.registration import register

# Part of every key: raise it when the code below gives another tokenizer for the same documents.
FORMAT = 1

# the settings of Llama's tokenizer that differ from sentencepiece's defaults
SETTINGS: dict[str, Any] = {
    "model_type": "bpe",
    "character_coverage": 0.99995,
    "byte_fallback": True,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": True,
}
# of text for training; more changes the pieces little
MAX_CHARACTERS = 100_000_000

# Classes that in transformers 4 rebuild the beginning and end of a text from ``add_bos_token`` and ``add_eos_token``.
_REBUILDING = (
    "LlamaTokenizer",
    "CodeLlamaTokenizer",
    "CohereTokenizer",
    "GemmaTokenizer",
    "GPTNeoXTokenizer",
)
# sentencepiece drops lines above 4,192 bytes, and a letter has at most 4
_LINE = 1024
# while the sample is drawn
_OPEN_SHARDS = 16


def train(
    specs: Sequence[str],
    vocab_size: int,
    folder: str | Path,
    *,
    max_characters: int = MAX_CHARACTERS,
    field: str = "train_data",
) -> PreTrainedTokenizerBase:
    """Train on the training documents of ``specs``, save in ``folder`` and load from there.

    Args:
        vocab_size: tokens, including special ones and 256 bytes.
        max_characters: the most text, drawn by :func:`sample`.
        field: of the specs, for messages.
    """
    folder = Path(folder)
    raise_if_any(paths.check_new("output", folder))
    building.build_aside(
        folder, partial(_build, _text_sources(specs, field), vocab_size, max_characters)
    )
    return AutoTokenizer.from_pretrained(folder)


def cached(
    specs: Sequence[str], vocab_size: int, cache_dir: str | Path, skip_bad_rows: int | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of :func:`train` from ``cache_dir``; one process trains it where it is missing."""
    sources = _text_sources(specs, "train_data", BadRows(skip_bad_rows))
    settings = {"vocab_size": vocab_size, "max_characters": MAX_CHARACTERS, **SETTINGS}
    fingerprints = [source.fingerprint() for source in sources]
    key = cache.key("tokenizer", format=FORMAT, sources=fingerprints, settings=settings)

    build = partial(_build, sources, vocab_size, MAX_CHARACTERS)
    return AutoTokenizer.from_pretrained(building.folder(cache_dir, key, build))


def load_tokenizer(
    name_or_path: str, field: str = "tokenizer", *, trust_remote_code: bool | None = None
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder, a hub id, a ``.gguf`` file or ``smollm2``.

    Args:
        field: of the recipe, or an option, for messages.
        trust_remote_code: run a class that comes with it (transformers itself would stop and ask); None: do not, and
            the command has no such option.
    """
    try:
        folder = model_folder.resolve(name_or_path, with_weights=False)
    except UserError as error:
        raise UserError([replace(problem, field=field) for problem in error.problems]) from error
    # AutoTokenizer reads the configuration of the folder too
    register()
    remedy = "give a folder with tokenizer.json or tokenizer.model, or a hub id"
    wrong = "no tokenizer could be read"
    with as_message(wrong, field, name_or_path, remedy, trust_remote_code=trust_remote_code):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=bool(trust_remote_code)
        )
        # a setting of a wrong type is met in use only
        tokenizer.decode(tokenizer("")["input_ids"])
    return tokenizer


def begins(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the BOS that a tokenizer puts before every text, or None."""
    begin: int | None = tokenizer.bos_token_id
    if begin is not None and tokenizer("")["input_ids"][:1] == [begin]:
        return begin
    return None


def bos_note(tokenizer: PreTrainedTokenizerBase, config: Any) -> dict[str, str]:
    """Return a line for a run's outline if a Llama's tokenizer does not add the model's BOS to texts.

    transformers 5 reads a ``tokenizer.model`` that way unless tokenizer_config.json has ``add_bos_token``. A
    tokenizer.json settles it, and tokenizers of other families add none.
    """
    if not type(tokenizer).__name__.startswith(("LlamaTokenizer", "CodeLlamaTokenizer")):
        return {}
    settings = tokenizer.init_kwargs
    undecided = settings.get("vocab_file") is not None and "add_bos_token" not in settings
    known = tokenizer.bos_token_id is not None and tokenizer.bos_token_id == config.bos_token_id
    if not (undecided and known) or begins(tokenizer) is not None:
        return {}
    remedy = (
        "if the model was trained with it, write add_bos_token: true into its tokenizer_config.json"
    )
    return {"BOS": f"the tokenizer puts no {tokenizer.bos_token} before a text; {remedy}"}


def save(tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> None:
    """Save a tokenizer so that transformers 4.45 and later read it too (earlier ones cannot read its
    ``tokenizer.json``)."""
    tokenizer.save_pretrained(folder)
    path = Path(folder) / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config = without(config, ("backend", "is_local", "local_files_only"))
    if config["tokenizer_class"] == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        # else token_type_ids too, which generate refuses
        config["model_input_names"] = tokenizer.model_input_names
    # a mapping there
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    # which 4.45 does not read from its own file
    template = tokenizer.chat_template
    if isinstance(template, dict):
        config["chat_template"] = [
            {"name": name, "template": text} for name, text in template.items()
        ]
    elif template is not None:
        config["chat_template"] = template
    if config["tokenizer_class"].removesuffix("Fast") in _REBUILDING:
        begin, end = around(tokenizer)
        config |= {"add_bos_token": begin > 0, "add_eos_token": end > 0}
    path.write_text(
        json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def sample(sources: Sequence[Source], max_characters: int) -> Iterator[str]:
    """Yield texts from all over the data, at most ``max_characters`` together, always the same.

    The shards of all sources (files, mostly) are shuffled in an order that depends on their number alone, and read from
    their beginnings, sixteen at a time, a document of each in turn.
    """
    shards = [shard for source in sources for shard in source.shards("train")]
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(shards))
    left = max_characters
    for start in range(0, len(order), _OPEN_SHARDS):
        reading = deque(shards[index].documents() for index in order[start : start + _OPEN_SHARDS])
        while reading:
            documents = reading.popleft()
            document = next(documents, None)
            if document is None:
                continue
            reading.append(documents)
            yield document.text[:left]
            left -= len(document.text)
            if left <= 0:
                return


def _text_sources(
    specs: Sequence[str], field: str, bad_rows: BadRows | None = None
) -> list[Source]:
    sources = parse_all(specs, field, bad_rows)
    remedy = "train the tokenizer on text, or give the one that made these ids"
    raise_if_any(
        [source.problem("token ids, not text", remedy) for source in sources if source.tokenised]
    )
    return sources


def _build(sources: Sequence[Source], vocab_size: int, max_characters: int, folder: Path) -> None:
    # a list, because sentencepiece would replace an error of the data by another
    lines = []
    for text in sample(sources, max_characters):
        for line in text.split("\n"):
            lines += [line[start : start + _LINE] for start in range(0, len(line), _LINE)]
    if not lines:
        specs = [source.spec for source in sources]
        raise UserError(
            Problem(sources[0].field, specs, "no document has any text", "name data that hold text")
        )
    model = io.BytesIO()
    try:
        # one thread: the same result on every machine; 2: only errors are logged, and they are raised too
        SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocab_size,
            num_threads=1,
            minloglevel=2,
            **SETTINGS,
        )
    except RuntimeError as error:
        # a vocabulary that the text is too small or too varied for, and the nearest size
        wrong = str(error).rpartition("] ")[2]
        raise UserError(
            Problem("vocab_size", vocab_size, wrong, "give that size, or name other data")
        ) from error
    folder.mkdir()
    file = folder / "tokenizer.model"
    file.write_bytes(model.getvalue())
    save(sentencepiece_tokenizer.load(file, add_bos_token=True, split_special_tokens=True), folder)
