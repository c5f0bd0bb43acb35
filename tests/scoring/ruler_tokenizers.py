"""Tokenizers that need no download: words, or letters; one may have more tokens around each text."""

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHAT = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}{% if not loop.last %}</s>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}</s><s>assistant:{% endif %}"
)


def tokenizer(split="words", room=0, begin=False):
    """Return a tokenizer; ``room`` tokens follow each text, and ``begin`` puts BOS before it."""
    plain = Tokenizer(models.WordLevel({"?": 0, "<s>": 1, "</s>": 2, "[R]": 3}, unk_token="?"))
    if split == "letters":
        plain.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    else:
        plain.pre_tokenizer = pre_tokenizers.Whitespace()
    form = "<s> " * begin + "$A" + " [R]" * room
    plain.post_processor = processors.TemplateProcessing(
        single=form, special_tokens=[("<s>", 1), ("[R]", 3)]
    )
    found = PreTrainedTokenizerFast(
        tokenizer_object=plain, unk_token="?", bos_token="<s>", eos_token="</s>"
    )
    found.chat_template = CHAT
    return found
