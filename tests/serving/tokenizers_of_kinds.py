"""A small tokenizer for each kind of decoder that published models have."""

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ["the", "cat", "sat", "on", "mat", "and"]


def fast(tokenizer, **special):
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def byte_level():
    """As GPT-2's, Llama 3's and Qwen's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE({character: index for index, character in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return fast(tokenizer)


def _pieces():
    names = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"abcdefghijklmnopqrstuvwxyz",
    ]
    return names + [f"▁{word}" for word in WORDS]


def byte_fallback():
    """As Llama 2's: a character without a token is its bytes."""
    scored = [
        (name, -1.0 if name.startswith("▁") and len(name) > 1 else -9.0) for name in _pieces()
    ]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return fast(tokenizer, unk_token="<unk>")


def metaspace():
    """As T5's and Gemma's."""
    names = [name for name in _pieces() if not name.startswith("<0x")]
    scored = [(name, -1.0 if name.startswith("▁") and len(name) > 1 else -9.0) for name in names]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return fast(tokenizer, unk_token="<unk>")


def word_level():
    """Without a decoder: words with a space between them."""
    tokenizer = Tokenizer(
        models.WordLevel({"<unk>": 0, **{word: index for index, word in enumerate(WORDS, 1)}})
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return fast(tokenizer, unk_token="<unk>")


def word_piece():
    """As BERT's, whose decoder removes spaces before signs after the fact."""
    names = ["[UNK]", *WORDS, "##t", "##s", ".", ",", "'", "n", "n't", "do", "s", "!"]
    tokenizer = Tokenizer(
        models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return fast(tokenizer, unk_token="[UNK]", clean_up_tokenization_spaces=True)


def spelling():
    """A token for each character of ASCII that is seen; a text begins with <s>, as Llama's."""
    letters = [chr(code) for code in range(33, 127)]
    vocabulary = {name: index for index, name in enumerate(["<s>", "</s>", "Ġ", "Ċ", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return fast(tokenizer, bos_token="<s>", eos_token="</s>")
