"""The backend ``varlen``, whose kernels are CUDA's alone.

A stand-in computes their definition on a CPU (``varlen_on_cpu``); on a GPU the last test runs the real ones. The meta
device shows what no CPU can: whether a whole model, forward and backward, ever asks the device for a number.
"""

import importlib.util
import inspect

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.nn.attention import varlen as varlen_of_torch
from torch.utils._python_dispatch import TorchDispatchMode

from tape_ds import TapeForCausalLM
from tape_ds.attention import backends, flash
from tape_ds.attention.call import AttentionCall
from tape_ds.methods.recompute import use_recompute
from tests.attention import varlen_on_cpu
from tests.attention.by_ids import attend
from tests.attention.test_attend import DOCUMENTS, MASKS, PLACES, check, check_padding, inputs
from tests.models.helpers import tiny_config


@pytest.fixture
def on_a_gpu(monkeypatch):
    """CPU tensors are taken for a GPU's, and fp32 for what its kernels take."""
    monkeypatch.setattr(backends, "chip_of", lambda device: backends.Chip("cuda", "sm_90"))
    monkeypatch.setattr(backends, "_why_not", lambda name, call: None)
    varlen_on_cpu.CALLS.clear()


@pytest.mark.parametrize("documents, places", MASKS)
def test_masks_and_places(on_a_gpu, documents, places):
    """Documents without a query, queries without a document, scattered ones: gathered, computed, and put back."""
    queries, offset = PLACES[places]
    check(
        "varlen",
        *inputs(queries=queries, key_width=8, value_width=16),
        DOCUMENTS[documents],
        offset,
    )


@pytest.mark.parametrize(
    "documents, places, window, value_width",
    [
        ("none", "full", 1, 8),
        ("none", "chunk", 3, 16),
        ("packed", "full", 3, 5),
        ("packed", "chunk", 4, 8),
        ("left", "full", 3, 8),
    ],
)
def test_a_window_reaches_the_kernel(on_a_gpu, documents, places, window, value_width):
    queries, offset = PLACES[places]
    qkv = inputs(queries=queries, key_width=8, value_width=value_width)
    check("varlen", *qkv, DOCUMENTS[documents], offset, window=window)


@pytest.mark.parametrize(
    "value_width, calls, heads, groups", [(8, 1, 4, 4), (16, 2, 6, 2), (20, 3, 5, 1)]
)
def test_one_call_per_width_of_the_key(on_a_gpu, value_width, calls, heads, groups):
    check(
        "varlen",
        *inputs(key_width=8, value_width=value_width, heads=heads, groups=groups),
        DOCUMENTS["packed"],
    )
    assert [5] * calls == varlen_on_cpu.CALLS


def test_nothing_leaves_padding(on_a_gpu):
    check_padding("varlen", "holes", torch.nan, key_width=8, value_width=16)


def cu_seq_lens(documents: int, tokens: int, sequences: int = 1) -> dict:
    """What a collator says of sequences of so many documents, of uneven lengths from 1 up."""
    starts = [
        number * tokens + at
        for number in range(sequences)
        for at in sorted({0, *range(1, documents)})
    ]
    layout = torch.tensor([*starts, sequences * tokens], dtype=torch.int32)
    return {"cu_seq_lens_q": layout, "max_length_q": int(layout.diff().max())}


class Watch(TorchDispatchMode):
    """Calls of attention, and bytes that other operators allocate."""

    def __init__(self):
        super().__init__()
        self.calls, self.allocated = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        attention = func.name().startswith("torch_attn::_varlen_attn")
        self.calls += attention and not func.name().endswith("backward")
        if (
            not attention
            and isinstance(out, torch.Tensor)
            and not func._schema.is_mutable
            and out._base is None
        ):
            self.allocated += out.numel() * out.element_size()
        return out


def forward_and_backward(
    encoding: str, documents: int, tokens: int, sequences: int = 1, recompute: bool = True
):
    """Counts of a forward, and of a backward, of a whole model on the meta device."""
    config = tiny_config(
        "gqa", encoding, attention_backend="varlen", max_position_embeddings=tokens
    )
    layout = cu_seq_lens(documents, tokens, sequences)
    layout["cu_seq_lens_q"] = layout["cu_seq_lens_q"].to("meta")
    with torch.device("meta"):
        model = TapeForCausalLM(config).bfloat16().train()
        ids = torch.zeros(sequences, tokens, dtype=torch.int64)
    if recompute:
        use_recompute(model, 1)
    with Watch() as forward:
        loss = model(input_ids=ids, labels=ids, use_cache=False, **layout).loss
    with Watch() as backward:
        loss.backward()
    return forward, backward


@pytest.mark.parametrize(
    "encoding, documents, sequences", [("tape", 1, 1), ("tape", 64, 2), ("rope", 64, 1)]
)
def test_a_whole_model_never_asks_the_device(encoding, documents, sequences):
    """On the meta device every ``.item()``, ``.cpu()`` or ``nonzero`` is an error. Attention is called twice where it
    carries a state: in all layers but the last."""
    forward, backward = forward_and_backward(encoding, documents, 512, sequences)
    expected = {"rope": 3, "tape": 2 + 2 + 1}[encoding]
    # each block is computed again in its backward
    assert forward.calls == backward.calls == expected


def test_memory_beside_attention_does_not_grow_with_the_documents():
    """Document by document it did: 76 tensors of a state's size at 16 documents, 268 at 64, for 10 at one."""
    one, many = (
        forward_and_backward("tape", documents, 512, recompute=False) for documents in (2, 64)
    )
    for few_documents, many_documents in zip(one, many, strict=True):
        # The borders themselves: 4 bytes for each of 62 more, in as many tensors as they are held in.
        assert 0 <= many_documents.allocated - few_documents.allocated <= 64 * 4 * 8


@pytest.fixture
def activated(monkeypatch):
    """Starts on a Hopper GPU with the package; the versions that torch is asked to run."""
    versions = []

    def start(activate=versions.append):
        monkeypatch.setattr(
            importlib.util,
            "find_spec",
            lambda name: name if name == "flash_attn_interface" else None,
        )
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        monkeypatch.setattr(torch.nn.attention, "current_flash_attention_impl", lambda: None)
        monkeypatch.setattr(torch.nn.attention, "activate_flash_attention_impl", activate)
        return versions

    flash.use_flash_attention_3.cache_clear()
    yield start
    flash.use_flash_attention_3.cache_clear()


def test_hopper_s_calls_run_flash_attention_3_where_it_is_installed(activated, monkeypatch):
    versions = activated()
    monkeypatch.setattr(flash, "attention_by_documents", lambda *arguments, **named: ())
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, 16, 8, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        for _ in range(2):
            flash.attention_by_varlen(
                AttentionCall(q, k, (v,), layout=None, offset=0, scale=1.0, bias=None)
            )
    assert versions == ["FA3"]


def test_a_package_that_torch_cannot_use_is_left_out(activated, caplog):
    def activate(version):
        raise RuntimeError("does not expose FA3 backward")

    activated(activate=activate)
    flash.use_flash_attention_3()
    assert "does not expose FA3 backward" in caplog.text


def test_torch_has_version_3_to_activate():
    """By this name, with the operators that packed calls end in."""
    assert "FA3" in torch.nn.attention.list_flash_attention_impls()
    source = inspect.getsource(varlen_of_torch)
    assert "aten._flash_attention_forward" in source and "aten._flash_attention_backward" in source


@pytest.mark.gpu
@pytest.mark.parametrize(
    "documents, window", [*((name, None) for name in DOCUMENTS), ("none", 4), ("packed", 4)]
)
def test_the_real_kernels_on_a_gpu(documents, window):
    q, k, v = (
        x.detach().cuda().bfloat16()
        for x in inputs(key_width=64, value_width=128, heads=6, groups=2)
    )
    ids = None if DOCUMENTS[documents] is None else torch.tensor(DOCUMENTS[documents]).cuda()
    outcomes = []
    for backend in ("varlen", "reference"):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attend(*leaves, document_ids=ids, window=window, backend=backend)
        outcomes.append([out, *torch.autograd.grad(out.float().square().sum(), leaves)])
    for mine, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0.05, atol=0.05)
