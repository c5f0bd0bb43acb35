"""ChatML as SmolLM2 has it, a tokenizer that knows its marks, and conversations in pieces whose mask is plain."""

import json

import numpy as np

from tests.data.conftest import build_tokenizer

# SmolLM2-Instruct's, with another system prompt of its own
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are kind<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
    "{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML whose marks leave out the line break behind an answer, and without a system prompt of its own."""

TOOLED = (
    "{% if tools %}{{ '<|im_start|>tools\n' + tools | tojson + '<|im_end|>\n' }}{% endif %}"
    + CHATML
)
"""It begins with the tools, where there are any."""
DATED = "{{ '<|im_start|>system\n' + strftime_now('%d %b %Y') + '<|im_end|>\n' }}" + CHATML
"""It begins with the date."""
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"city": {"type": "string"}}},
}

FORGETFUL = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and not loop.last %}"
    "{{ m.content.split('THOUGHT')[-1] }}{% else %}{{ m.content }}{% endif %}|{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
"""It drops what an answer says before THOUGHT once more turns follow, as templates drop reasoning."""


def tokenizer(template=CHATML):
    """Byte-level BPE of 302 entries; ``<|im_start|>`` and ``<|im_end|>`` are tokens."""
    found = build_tokenizer(bos=False)
    found.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    found.chat_template = template
    return found


def conversation(*texts, system=None):
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(texts)
    ]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def by_hand(turns, of, prompt="You are kind"):
    """Token ids and mask of ChatML's rendering, put together piece by piece, without a template."""
    turns = (
        turns if turns[0]["role"] == "system" else [{"role": "system", "content": prompt}, *turns]
    )
    ids, mask = [], []
    for turn in turns:
        for text, learnt in (
            (f"<|im_start|>{turn['role']}\n", False),
            (f"{turn['content']}<|im_end|>\n", turn["role"] == "assistant"),
        ):
            piece = of(text, add_special_tokens=False)["input_ids"]
            ids += piece
            mask += [learnt] * len(piece)
    return np.array(ids), np.array(mask)


def write(path, conversations, **more):
    path.write_text("\n".join(json.dumps({"messages": each} | more) for each in conversations))
    return f"jsonl:{path}"
