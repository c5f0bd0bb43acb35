"""The flash backend with a stand-in for the package.

It computes flash-attn's own definition (bottom-right causal mask, one width for q, k and v) in plain matrices; on a GPU
with the package the last test runs the real one.
"""

import contextlib
import importlib
import importlib.util
import sys
from importlib.metadata import PackageNotFoundError
from types import ModuleType

import pytest
import torch

from tape_ds.attention import backends, flash
from tape_ds.attention.call import complete
from tape_ds.attention.document_layout import layout_of_ids
from tests.attention import varlen_on_cpu
from tests.attention.by_ids import attend
from tests.attention.test_attend import DOCUMENTS, MASKS, PLACES, check, inputs, needs_of


class Package(ModuleType):
    """flash_attn, as far as it is used here."""

    def __init__(self):
        super().__init__("flash_attn")
        self.__spec__, self.with_lse, self.calls = object(), False, []

    @staticmethod
    def attention(q, k, v, softmax_scale, causal, window_size=(-1, -1), softcap=0.0):
        return varlen_on_cpu.attention(
            q, k, v, softmax_scale, (window_size[0], 0 if causal else -1), softcap
        )

    def flash_attn_func(self, q, k, v, **options):
        self.calls.append("dense")
        self.options = options
        out = torch.stack([self.attention(*row, **options) for row in zip(q, k, v, strict=True)])
        return (out, None) if self.with_lse else out

    def flash_attn_varlen_func(
        self, q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, **options
    ):
        self.calls.append("varlen")
        self.options = options
        borders = varlen_on_cpu.documents_of(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        )
        return torch.cat(
            [self.attention(q[a:b], k[c:d], v[c:d], **options) for (a, b), (c, d) in borders]
        )


@pytest.fixture
def package(monkeypatch):
    """An installed flash-attn, on what is taken for a GPU and for bf16."""
    installed = Package()
    monkeypatch.setattr(backends, "chip_of", lambda device: backends.Chip("cuda", "sm_90"))
    monkeypatch.setattr(backends, "_why_not", lambda name, call: None)
    with releases(monkeypatch, (9, 0), {"flash_attn": installed}, {"flash-attn": "2.8.3"}):
        yield installed


@contextlib.contextmanager
def releases(monkeypatch, capability, modules, versions):
    """These modules and distributions installed and no others, on a GPU of this capability."""

    def version(name):
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    for release in flash.RELEASES:
        monkeypatch.setitem(sys.modules, release.module, modules.get(release.module))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: modules.get(name))
    monkeypatch.setattr(flash, "version", version)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    flash.flash_functions.cache_clear()
    yield
    flash.flash_functions.cache_clear()


@pytest.mark.parametrize("documents, places", MASKS)
def test_masks_and_places(package, documents, places):
    """Documents without a query, queries without a document, scattered ones: gathered, computed, and put back."""
    queries, offset = PLACES[places]
    check("flash", *inputs(queries=queries), DOCUMENTS[documents], offset)
    ids = (
        None
        if DOCUMENTS[documents] is None
        else torch.tensor(DOCUMENTS[documents])[:, : offset + queries]
    )
    assert set(package.calls) == {
        "dense" if ids is None or layout_of_ids(ids, queries) is None else "varlen"
    }


@pytest.mark.parametrize(
    "needs", [("window",), ("softcap",), ("window", "softcap")], ids=" and ".join
)
@pytest.mark.parametrize(
    "documents, places", [("none", "chunk"), ("packed", "full"), ("left", "chunk")]
)
def test_windows_and_soft_caps_reach_the_kernel(package, documents, places, needs):
    queries, offset = PLACES[places]
    check(
        "flash",
        *inputs(queries=queries, value_width=4),
        DOCUMENTS[documents],
        offset,
        **needs_of(*needs),
    )
    assert package.options.get("window_size") == ((3, 0) if "window" in needs else None)


@pytest.mark.parametrize(
    "value_width, calls, documents", [(6, 1, None), (12, 2, "packed"), (15, 3, None)]
)
def test_one_call_per_width_of_the_key(package, value_width, calls, documents):
    check("flash", *inputs(value_width=value_width), DOCUMENTS.get(documents))
    assert len(package.calls) == calls


def test_a_release_may_return_the_log_sum_exp_too(package):
    package.with_lse = True
    check("flash", *inputs(value_width=12))


def fake(name):
    module = ModuleType(name)
    module.flash_attn_func, module.flash_attn_varlen_func = f"{name} dense", f"{name} varlen"
    return module


@pytest.mark.parametrize(
    "capability, distributions, taken",
    [
        ((9, 0), {"flash-attn": "2.8.3"}, "flash_attn_interface"),
        ((8, 0), {"flash-attn": "2.8.3", "flash-attn-4": "4.0.0"}, "flash_attn"),
        ((10, 0), {"flash-attn": "2.8.3", "flash-attn-4": "4.0.0"}, "flash_attn.cute"),
        ((10, 0), {"flash-attn": "2.8.3"}, "flash_attn"),
        ((7, 5), {"flash-attn": "2.8.3", "flash-attn-4": "4.0.0"}, None),
    ],
)
def test_capability_and_version_choose_the_release(monkeypatch, capability, distributions, taken):
    """flash-attn 2.8.3 carries flash_attn.cute, which has no backward for packed sequences and asserts Hopper or newer:
    an A100 with it crashed. All three modules import here; only a distribution of its own makes the folder a version
    4. The backward of flash-attn 4 began without windows and soft caps."""
    modules = {release.module: fake(release.module) for release in flash.RELEASES}
    with releases(monkeypatch, capability, modules, distributions):
        if taken is None:
            assert flash.missing_flash() is not None
        else:
            assert flash.missing_flash() is None
            assert flash.flash_functions()[:2] == (f"{taken} dense", f"{taken} varlen")
            q = torch.zeros(1, 2, 40, 8, dtype=torch.bfloat16)
            assert flash.why_not_flash(complete(q, q, (q,), None, None, None, None)) is None
            refused = flash.why_not_flash(complete(q, q, (q,), None, None, None, None, window=4))
            assert (refused is not None) == (taken == "flash_attn.cute")


def test_a_broken_release_is_left_out_with_a_warning(monkeypatch, caplog):
    """Built for another torch, an extension raises ImportError (an undefined symbol), not ModuleNotFoundError."""
    modules = {name: fake(name) for name in ("flash_attn_interface", "flash_attn")}

    def imported(name):
        if name == "flash_attn_interface":
            raise ImportError("undefined symbol: _ZN3c10")
        return modules[name]

    with releases(monkeypatch, (9, 0), modules, {"flash-attn": "2.8.3"}):
        monkeypatch.setattr(importlib, "import_module", imported)
        assert flash.flash_functions()[0] == "flash_attn dense"
    assert "undefined symbol" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("documents", ["none", "packed"])
@pytest.mark.parametrize("needs", [(), ("window",), ("softcap",)], ids=str)
def test_the_real_package_on_a_gpu(documents, needs):
    pytest.importorskip("flash_attn")
    q, k, v = (x.detach().cuda().bfloat16() for x in inputs(key_width=64, value_width=128))
    ids = None if DOCUMENTS[documents] is None else torch.tensor(DOCUMENTS[documents]).cuda()
    given = needs_of(*needs)
    mine, expected = (
        attend(q, k, v, document_ids=ids, backend=name, **given) for name in ("flash", "reference")
    )
    torch.testing.assert_close(mine, expected, rtol=0, atol=0.03)
