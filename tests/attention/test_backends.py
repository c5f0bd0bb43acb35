"""The choice of a backend: the one asked for, the one the environment names, or the one a measurement prefers."""

import json

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tape_ds.attention import BACKENDS, available, backends, check_backend, missing, sdpa
from tape_ds.attention.backends import Chip, StoredChoice, choose
from tape_ds.attention.call import complete
from tape_ds.attention.document_layout import layout_of_ids
from tape_ds.attention.score_bias import ScoreBias
from tests.models.helpers import tiny_model, tokens

ELEMENTWISE = ScoreBias(
    torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1), lambda q, k: q, element=lambda q, k, h: q
)
BY_BLOCKS = ELEMENTWISE._replace(element=None)
ROW = StoredChoice(
    "sm_90", "bfloat16", 8, 16, False, 4, 64, "triton", "attention_h100.csv, 2026-11-21"
)


def named(case):
    """The id of a case: a bias's own text has addresses, which differ between workers."""
    return ", ".join(case) if isinstance(case, dict) else str(case)


def call(
    queries=9,
    value_width=16,
    dtype=torch.bfloat16,
    bias=None,
    offset=None,
    documents=1,
    keys=9,
    width=8,
    **needs,
):
    shapes = ((4, queries, width), (2, keys, width), (2, keys, value_width))
    q, k, v = (torch.zeros(1, *shape, dtype=dtype) for shape in shapes)
    ids = torch.arange(keys)[None] * documents // keys
    return complete(
        q, k, (v,), layout_of_ids(ids, queries, keys - queries), offset, None, bias, **needs
    )


@pytest.fixture
def on_a_gpu(monkeypatch):
    """The choice as it is made there; nothing is computed."""
    monkeypatch.setattr(backends, "chip_of", lambda device: Chip("cuda", "sm_90"))
    monkeypatch.setattr(backends, "why_not_triton", lambda call: None)
    monkeypatch.setattr(backends.jit, "no_compiler", lambda: None)


def test_without_a_measurement_of_this_chip_torch_s_own_is_chosen(on_a_gpu, monkeypatch):
    monkeypatch.setattr(backends, "ROWS", (ROW._replace(device="sm_80"),))
    assert choose("auto", call()) == "sdpa"


@pytest.mark.parametrize(
    "changes, chosen",
    [
        ({}, "varlen"),
        ({"documents": 1}, "sdpa"),
        ({"dtype": torch.float32}, "sdpa"),
        ({"window": 4, "documents": 1}, "varlen"),
        ({"window": 40, "documents": 1}, "sdpa"),
        ({"softcap": 1.0}, "sdpa"),
    ],
    ids=named,
)
def test_packed_rows_in_16_bit_take_varlen_on_a_gpu(on_a_gpu, changes, chosen):
    """Document by document they cost a call for each, forward and backward, in every layer."""
    assert choose("auto", call(**{"queries": 40, "keys": 40, "documents": 3, **changes})) == chosen


def test_a_window_is_not_counted_over_padding_inside_a_document(on_a_gpu):
    """Kernels for packed tokens see the document alone, and would reach one key too far for each token left out."""
    q = torch.zeros(1, 2, 40, 8, dtype=torch.bfloat16)
    for hole, chosen in ((0, "varlen"), (39, "varlen"), (20, "sdpa")):
        ids = torch.zeros(1, 40, dtype=torch.int32).index_fill(1, torch.tensor(hole), -1)
        made = complete(q, q, (q,), layout_of_ids(ids, 40), None, None, None, window=4)
        assert choose("auto", made) == chosen


def test_what_cannot_be_worked_out_in_a_compiled_graph_is_left_to_masks(on_a_gpu, monkeypatch):
    made = call(queries=40, keys=40, documents=3)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert choose("auto", made) == "sdpa"
    assert made.layout.packed is not None  # as a collator says it
    assert choose("auto", made) == "varlen"


@pytest.mark.parametrize(
    "changes, chosen",
    [
        ({}, "triton"),
        ({"queries": 3}, "sdpa"),
        ({"dtype": torch.float16}, "sdpa"),
        ({"value_width": 8}, "sdpa"),
        ({"window": 4}, "sdpa"),
        ({"queries": 40, "keys": 40, "documents": 3}, "flex"),
    ],
    ids=named,
)
def test_a_stored_measurement_decides_for_its_own_shapes(on_a_gpu, monkeypatch, changes, chosen):
    monkeypatch.setattr(backends, "ROWS", (ROW, ROW._replace(packed=True, backend="flex")))
    assert choose("auto", call(**changes)) == chosen


def test_the_row_for_the_longest_fitting_text_decides_where_its_backend_is_there(
    on_a_gpu, monkeypatch
):
    monkeypatch.setattr(backends, "ROWS", (ROW, ROW._replace(min_tokens=8, backend="flash")))
    for lacking, chosen in ((None, "flash"), ("needs the package flash-attn", "sdpa")):
        monkeypatch.setattr(backends, "missing_flash", lambda lacking=lacking: lacking)
        monkeypatch.setattr(backends, "why_not_flash", lambda call: None)
        assert choose("auto", call(queries=7)) == "triton"
        assert choose("auto", call(queries=8)) == chosen


def test_texts_with_a_bias_take_flex_on_a_gpu(on_a_gpu, monkeypatch):
    """A step of decoding has one key more than the last: each would compile the kernel anew. The gradient of a learned
    bias would be an atomic addition for every score; ``flex`` by name is taken all the same."""
    monkeypatch.setattr(backends, "FLEX_QUERIES", 4)
    assert choose("auto", call(bias=ELEMENTWISE)) == choose("auto", call(softcap=1.0)) == "flex"
    assert choose("auto", call(sinks=torch.zeros(4), window=3)) == "flex"
    assert choose("auto", call(sinks=torch.zeros(4), queries=1)) == "sdpa"
    assert choose("auto", call(bias=BY_BLOCKS)) == "sdpa"
    learned = ELEMENTWISE._replace(learned=True)
    assert (
        choose("auto", call(bias=learned)) == "sdpa"
        and choose("flex", call(bias=learned)) == "flex"
    )
    with torch.no_grad():
        assert choose("auto", call(bias=learned)) == "flex"


def test_without_a_compiler_auto_chooses_what_needs_none(on_a_gpu, monkeypatch):
    long = {"queries": backends.FLEX_QUERIES, "keys": backends.FLEX_QUERIES}
    monkeypatch.setattr(backends.jit, "no_compiler", lambda: "Triton needs a C compiler")
    for name in ("triton", "flex"):
        with pytest.raises(ValueError, match="Triton needs a C compiler"):
            choose(name, call(**long))
    assert missing("sdpa", "cuda") is missing("varlen", "cuda") is None
    assert choose("auto", call(bias=ELEMENTWISE, **long)) == "sdpa"


def test_the_environment_overrides_the_configuration(monkeypatch):
    """For one run, whatever the checkpoint names; the model's own weights-returning route follows it too."""
    monkeypatch.setenv("TAPE_DS_ATTENTION", "reference")
    assert choose("sdpa", call()) == "reference"
    model, weights = tiny_model(), []
    model.model.layers[0].self_attn.register_forward_hook(
        lambda module, given, out: weights.append(out[1])
    )
    model(tokens(1, 5))
    assert weights[0].shape == (1, 4, 5, 5)
    monkeypatch.setenv("TAPE_DS_ATTENTION", "")
    assert choose("sdpa", call()) == "sdpa"


def test_unknown_names_are_refused(monkeypatch):
    assert check_backend("auto") == check_backend("sdpa") == []
    assert [(each.field, each.value) for each in check_backend("spda")] == [
        ("attention_backend", "spda")
    ]
    monkeypatch.setenv("TAPE_DS_ATTENTION", "tirton")
    assert [(each.field, each.value) for each in check_backend("sdpa")] == [
        ("TAPE_DS_ATTENTION", "tirton")
    ]
    with pytest.raises(ValueError, match=r"'tirton' is unknown; did you mean 'triton'"):
        choose("sdpa", call())


@pytest.mark.parametrize(
    "backend, changes, reason",
    [
        ("flash", {"offset": torch.tensor(0)}, "offset that is a tensor"),
        ("flash", {"dtype": torch.float32}, "is for fp16 and bf16, not float32"),
        ("varlen", {"width": 12}, "takes heads of a multiple of 8 up to 256, not 12"),
        ("flex", {"bias": BY_BLOCKS}, "cannot compute this encoding's bias"),
        ("triton", {"bias": ELEMENTWISE}, "cannot compute a bias on scores"),
    ],
    ids=named,
)
def test_a_backend_that_cannot_compute_the_call_refuses_it(
    on_a_gpu, monkeypatch, backend, changes, reason
):
    monkeypatch.setattr(backends, "missing_flash", lambda: None)
    with pytest.raises(
        ValueError, match=f"attention backend '{backend}' .*{reason}.*; choose auto or sdpa"
    ):
        choose(backend, call(**changes))


@pytest.mark.parametrize("needs", [("window",), ("softcap",), ("sinks",)], ids=" and ".join)
@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
def test_a_configuration_is_refused_for_what_its_calls_would_be(
    on_a_gpu, monkeypatch, backend, needs
):
    monkeypatch.setattr(backends, "missing_flash", lambda: None)
    monkeypatch.setattr(backends, "why_not_flash", lambda call: None)
    given = {"window": 4, "softcap": 1.0, "sinks": torch.zeros(4)}
    found = check_backend(backend, needs)
    assert check_backend(backend) == []
    made = call(**{name: given[name] for name in needs})
    if found:
        with pytest.raises(ValueError, match=found[0].wrong):
            choose(backend, made)
        monkeypatch.setenv("TAPE_DS_ATTENTION", backend)
        assert [each.field for each in check_backend("auto", needs)] == ["TAPE_DS_ATTENTION"]
    else:
        choose(backend, made)


def test_the_stored_table_is_readable_and_names_its_measurements():
    rows = [StoredChoice(**row) for row in json.loads(backends.TABLE.read_text())]
    assert all(row.backend in available() and ".jsonl" in row.source for row in rows)
    assert all(row.min_tokens <= row.max_tokens for row in rows)


class FusedKernels:
    """torch.backends.cuda on a machine where some of the fused kernels take an input."""

    SDPAParams = staticmethod(lambda *arguments: arguments)

    def __init__(self, *able):
        for name in ("flash", "cudnn", "efficient"):
            setattr(self, f"can_use_{name}_attention", lambda asked, name=name: name in able)


def test_a_long_input_is_never_left_to_torch_s_matrices_unasked(monkeypatch):
    """On CUDA torch falls back to a [B, H, T, S] matrix without a word: 32 heads of 32,768 tokens are 128 GiB."""
    q, k, v = (torch.zeros(1, 2, 9, 8) for _ in range(3))
    for able in ("flash", "cudnn", "efficient"):
        monkeypatch.setattr(sdpa.torch.backends, "cuda", FusedKernels(able))
        sdpa.refuse_unfused(q, k, v, None, True, False)
    monkeypatch.setattr(sdpa.torch.backends, "cuda", FusedKernels())
    with pytest.raises(ValueError, match="none of torch's fused kernels takes float32"):
        sdpa.refuse_unfused(q, k, v, None, True, False)


@pytest.fixture
def calls(monkeypatch):
    """Dtype of the queries, heads and whether torch was asked to group, of every call of torch's attention; the answer
    is of the right shape."""
    made = []

    def answer(q, k, v, mask, causal, scale, grouped=False):
        made.append((q.dtype, q.shape[1], grouped))
        return torch.zeros(*q.shape[:3], v.shape[-1])

    monkeypatch.setattr(sdpa, "_sdpa", answer)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    return made


def test_a_gpu_before_ampere_is_asked_for_no_flash_attention(calls, monkeypatch):
    """On a V100 packed fp16 ended in torch's "FlashAttention only supports Ampere GPUs or newer", and grouped queries
    fell to matrices, since its other fused kernel takes none."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    packed = call(queries=40, keys=40, documents=3)
    with FakeTensorMode():
        q, k = (
            torch.empty(1, heads, 40, 8, device="cuda", dtype=torch.float16) for heads in (4, 2)
        )
        assert choose("auto", packed._replace(q=q)) == "sdpa"
        with pytest.raises(ValueError, match=r"'varlen' needs a GPU of compute capability 8\.0"):
            choose("varlen", packed._replace(q=q))
        sdpa.fused(q, k, k, None, True, 1.0)
    assert calls == [(torch.float16, 2, False)] * 2


def test_autocast_comes_before_the_choice_among_torch_s_kernels(calls):
    """Torch's function would cast, but which kernel takes a dtype is asked, and chosen by, before it is called."""
    q = torch.randn(1, 4, 40, 8)
    with torch.autocast("cpu", torch.bfloat16):
        sdpa.fused(q, q, q.bfloat16(), None, True, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        sdpa.fused(q.double(), q.double(), q.double(), None, True, 1.0)
    assert calls == [(torch.bfloat16, 4, False), (torch.float64, 4, False)]


@pytest.mark.parametrize(
    "dtype, queries, masked, expected",
    [
        (torch.bfloat16, 40, False, [(torch.bfloat16, 4, True)]),
        (torch.float32, 40, False, [(torch.float32, 2, False)] * 2),
        (torch.bfloat16, 1, True, [(torch.bfloat16, 2, False)] * 2),
    ],
    ids=["halves", "fp32", "a step of decoding"],
)
def test_grouped_queries_on_cuda_never_fall_to_torch_s_matrices(
    calls, dtype, queries, masked, expected
):
    """Of its fused kernels only those for halves know groups. A step of decoding reads the cache once for all heads of
    a group: two calls for the halves of TAPE's value, each over as many heads as the cache has."""
    with FakeTensorMode(), torch.no_grad():
        q, k = (
            torch.empty(1, *shape, 8, device="cuda", dtype=dtype)
            for shape in ((4, queries), (2, 40))
        )
        mask = torch.ones(1, 1, 1, 40, device="cuda", dtype=torch.bool) if masked else None
        v = torch.empty(1, 2, 40, 16, device="cuda", dtype=dtype)
        assert sdpa.fused(q, k, v, mask, not masked, 1.0).shape == (1, 4, queries, 16)
    assert calls == expected
