"""Layers that carry a state from token to token, in classes of transformers: recurrences and short convolutions.

Such a layer reads its tokens from the left to the right, so a document in a row would begin with the state of the one
before it, and a text with that of its padding. Here the documents of all rows are gathered instead, those of about the
same length are computed together, each from its first column on, and the results go back to their places. All other
layers see the rows as they are. Where the packages that compute the layer on a GPU know documents, one long row and its
borders go to them.

Shape letters: B rows, T tokens of a row, N documents that are computed together, L tokens of the longest of them, P
tokens of all documents, without padding.
"""

import functools
import importlib.util
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache

from tape_ds.attention.document_layout import DocumentLayout

_Function = TypeVar("_Function", bound=Callable[..., Any])

_STATE = re.compile(r"\.update_(recurrent|conv)_state\(")
"""How a forward of transformers keeps a layer's state for the next token."""
_KERNEL = re.compile(r'use_kernel_func_from_hub_with_fallback\(\s*"(\w+)",\s*"(\w+)"')
_OF_DOCUMENTS = {
    "causal_conv1d_fn": "seq_idx",
    "chunk_gated_delta_rule": "cu_seqlens",
    "chunk_kda": "cu_seqlens",
    "mamba_chunk_scan_combined": "seq_idx",
    "mamba_split_conv1d_scan_combined": "seq_idx",
}
"""Functions that compute whole rows, and the argument by which those of packages know documents."""
_OF_ONE_TOKEN = re.compile("update$|^fused_recurrent")
DISTRIBUTIONS = {
    "fla": "flash-linear-attention",
    "mamba_ssm": "mamba-ssm",
    "causal_conv1d": "causal-conv1d",
}
SHORTER = 8
"""Documents are computed together with one that is longer by an eighth, or by ``FEW`` tokens."""
FEW = 32

expected: ContextVar[bool] = ContextVar("expected", default=False)
"""Whether the call that is computed has several documents, or padding, and keeps no cache."""

PREFIX = "recurrent."
"""Of the names of linear maps inside carriers, for adapters."""


class DocumentGroup(NamedTuple):
    """Documents that are computed together, each from column 0 on."""

    places: Tensor
    """int64 [N, L] in [0, B * T); where a document has ended, any."""
    real: Tensor | None
    """bool [N, L], False where a document has ended; None: all have L tokens."""


def _cached(function: _Function) -> _Function:
    """Return ``functools.cache(function)``, whose type knows no class as a key."""
    return cast(_Function, functools.cache(function))


@_cached
def _keeps_state(kind: type[nn.Module]) -> bool:
    # the class itself: torch's own modules and wrappers have no such state
    source = (
        inspect.getsource(kind.forward)
        if kind.__module__.startswith("transformers.models.")
        else ""
    )
    return bool(_STATE.search(source))


def native(carrier: nn.Module) -> type[nn.Module]:
    return carrier.native if isinstance(carrier, ByDocument) else type(carrier)


def carriers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that carry a state from token to token, by path."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, ByDocument) or _keeps_state(type(module))
    }


def linear_maps(model: nn.Module) -> dict[str, str]:
    """Return the linear maps of a model by path, with the name that recipes have for each: its own, after ``PREFIX``
    inside a carrier. Maps whose weight a carrier reads itself, for kernels, are left out: an adapter would have no
    effect there."""
    inside: dict[str, bool] = {}
    for path, carrier in carriers(model).items():
        source = inspect.getsource(native(carrier).forward)
        for below, module in carrier.named_modules():
            if isinstance(module, nn.Linear):
                inside[f"{path}.{below}"] = f"self.{below}.weight" in source
    names = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and not inside.get(path):
            names[path] = (PREFIX if path in inside else "") + path.rpartition(".")[2]
    return names


def rates_and_convolutions(model: nn.Module) -> set[str]:
    """Return the names of parameters inside carriers that are no linear maps: rates of decay, short convolutions and
    norms, of any shape. The model may be wrapped by peft."""
    found = set()
    for path, carrier in carriers(model).items():
        for below, module in carrier.named_modules():
            if not isinstance(module, nn.Linear):
                names = [name for name, _ in module.named_parameters(recurse=False)]
                found |= {".".join(filter(None, (path, below, name))) for name in names}
    return found


def separate_documents(model: nn.Module) -> list[nn.Module]:
    """Make the carriers of ``model`` compute each document alone; return them."""
    found = list(carriers(model).values())
    for module in found:
        if not isinstance(module, ByDocument):
            module.__class__ = _by_document(type(module))
    return found


def numbered(layout: DocumentLayout) -> Tensor:
    """Return a mask int64 [B, T] for classes of transformers, which pass it to their carriers: 0 is padding, numbers
    from 2 on are those of documents (a mask of ones would be left out)."""
    return torch.where(layout.ids_BS < 0, 0, layout.ids_BS.long() + 2)


def keeps_cache(
    layout: DocumentLayout, cache: Cache | None, asked: bool | None, config: PreTrainedConfig
) -> bool:
    """Return whether a call with documents or padding keeps a cache, whose state is that of a row's last token.

    Raises:
        ValueError: a cache is asked for, and a row has several documents.
    """
    keeps = cache is not None or (getattr(config, "use_cache", True) if asked is None else asked)
    if not keeps or layout.queries == 1:
        return bool(keeps)
    if len(layout.packed.cu_keys) - 1 <= len(layout.ids_BS):
        return True
    if cache is not None or asked:
        raise ValueError(
            "a cache keeps one state a row, and a row has several documents: give use_cache=False"
        )
    return False


def _functions(kind: type[nn.Module]) -> dict[str, str]:
    """Return the functions that compute whole rows for a carrier -> the package that has a kernel for each."""
    found = _KERNEL.findall(inspect.getsource(sys.modules[kind.__module__]))
    return {function: package for function, package in found if not _OF_ONE_TOKEN.search(function)}


def without_documents(kind: type[nn.Module]) -> list[str]:
    """Return the functions of a carrier that take neither documents nor the state of earlier tokens: those of Mamba's
    first form."""
    return sorted(_functions(kind).keys() - _OF_DOCUMENTS.keys())


@_cached
def missing_packages(kind: type[nn.Module]) -> list[str]:
    """Return the packages, as pip names them, that are missing for a carrier to know documents on a GPU."""
    packages = set(_functions(kind).values())
    missing = [
        DISTRIBUTIONS.get(package, package)
        for package in packages
        if importlib.util.find_spec(package) is None
    ]
    return sorted(missing) if packages else ["a kernel for it"]


def described(kinds: Iterable[type[nn.Module]]) -> str:
    """Return how documents reach carriers of these classes, for a run's output."""
    missing = sorted({each for kind in kinds for each in missing_packages(kind)})
    if missing:
        return f"rows are split at documents' borders, by torch alone ({', '.join(missing)} not installed)"
    return "the installed kernels get documents' borders on a GPU; on a CPU rows are split there, by torch alone"


class ByDocument(nn.Module):
    """A carrier whose rows may hold padding and several documents; :func:`_by_document` joins it to a class."""

    native: type[nn.Module]
    """The class of transformers."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        # by position: of a module that ZeRO-3 gathers as one, DeepSpeed sees no gradient of an input with a name
        first = list(_signature(self.native).parameters)[1]
        if first in named:
            arguments = (named.pop(first), *arguments)
        return super().__call__(*arguments, **named)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        bound = _signature(self.native).bind(self, *arguments, **named)
        given = bound.arguments
        hidden_BTD, *others = list(given.values())[1:]
        mask_name = next((name for name in given if name.endswith("mask")), "")
        layout = _layout(given.get(mask_name), hidden_BTD)
        if layout is None:
            return self.native.forward(*bound.args, **bound.kwargs)
        if any(isinstance(value, Cache) for value in others):
            return self.native.forward(*bound.args, **bound.kwargs)
        given[mask_name] = None

        def run(read: Callable[[Tensor], Tensor], **borders: Any) -> Any:
            rows = hidden_BTD.shape[:2]
            of_group: Any = {name: _of_tokens(value, rows, read) for name, value in given.items()}
            call = inspect.BoundArguments(bound.signature, of_group)
            return self.native.forward(*call.args, **(call.kwargs | borders))

        if hidden_BTD.is_cuda and not missing_packages(self.native):
            return _in_one_row(run, layout)
        return _in_groups(run, layout)


@_cached
def _by_document(native: type[nn.Module]) -> type[nn.Module]:
    return type(
        native.__name__, (ByDocument, native), {"native": native, "__module__": native.__module__}
    )


@_cached
def _signature(native: type[nn.Module]) -> inspect.Signature:
    return inspect.signature(native.forward)


_layouts: Any = WeakTensorKeyDictionary()
"""Of a numbered mask: its layout. All carriers of a forward, and their recomputation, get the same tensor."""


def _layout(mask: Tensor | None, hidden_BTD: Tensor) -> DocumentLayout | None:
    """Return the documents of a call by the mask that its carrier gets; None without padding and a second one."""
    tokens = hidden_BTD.shape[1]
    if mask is None:
        if expected.get():
            raise RuntimeError("a layer that carries a state was not given the documents")
        return None
    if mask not in _layouts:
        ids_BT = mask[:, -tokens:].long() - 1
        _layouts[mask] = DocumentLayout(ids_BT.expand(len(hidden_BTD), -1), ids_BT.shape[1])
    found: DocumentLayout = _layouts[mask]
    return found


def _of_tokens(value: Any, wanted: torch.Size, read: Callable[[Tensor], Tensor]) -> Any:
    """Return an argument with everything in it that belongs to tokens, [B or 1, T, ...], replaced by what is read."""
    if isinstance(value, Tensor):
        of_tokens = (
            value.dim() > 1 and value.shape[1] == wanted[1] and value.shape[0] in (1, wanted[0])
        )
        return read(value.expand(wanted[0], *value.shape[1:]).flatten(0, 1)) if of_tokens else value
    if isinstance(value, tuple):
        return tuple(_of_tokens(each, wanted, read) for each in value)
    if isinstance(value, dict):
        return {name: _of_tokens(each, wanted, read) for name, each in value.items()}
    return value


def _groups(layout: DocumentLayout) -> list[DocumentGroup]:
    """Return the documents of all rows, the longest first."""
    packed = layout.packed
    device = layout.ids_BS.device
    borders = packed.cu_keys.tolist()
    documents = [(end - start, start) for start, end in itertools.pairwise(borders)]
    documents.sort(key=lambda document: -document[0])
    gathered: list[list[tuple[int, int]]] = []
    for length, start in documents:
        if length == 0:
            break
        if not gathered or length < gathered[-1][0][0] - max(gathered[-1][0][0] // SHORTER, FEW):
            gathered.append([])
        gathered[-1].append((length, start))
    groups = []
    for together in gathered:
        longest = together[0][0]
        shortest = together[-1][0]
        columns_L = torch.arange(longest, device=device)
        lengths_N1 = torch.tensor([[length] for length, _ in together], device=device)
        starts_N1 = torch.tensor([[start] for _, start in together], device=device)
        places = starts_N1 + columns_L.clamp_max(lengths_N1 - 1)
        if packed.key_order is not None:
            places = packed.key_order[places]
        groups.append(
            DocumentGroup(places, None if shortest == longest else columns_L < lengths_N1)
        )
    return groups


def _in_groups(run: Callable[..., Any], layout: DocumentLayout) -> Any:
    """Return a carrier's results [B, T, ...], computed a group at a time; those of padding are 0."""
    places = []
    results = []
    for group in layout.cached("groups", _groups):

        def read(flat: Tensor, group: DocumentGroup = group) -> Tensor:
            read_NL = flat[group.places]
            if group.real is None:
                return read_NL
            return read_NL.masked_fill(
                ~group.real.view(*group.real.shape, *[1] * (flat.dim() - 1)), 0
            )

        result = run(read)
        kept = slice(None) if group.real is None else group.real.flatten()
        places.append(group.places.flatten()[kept])

        def real(rows: Tensor, kept: Any = kept) -> Tensor:
            return rows.flatten(0, 1)[kept]

        results.append(_results(result, group.places.shape, real))
    return _put_back(results, torch.cat(places), layout.ids_BS.shape)


def _in_one_row(run: Callable[..., Any], layout: DocumentLayout) -> Any:
    """Return the same of one row of all documents, whose borders the kernels of packages take."""
    packed = layout.packed
    order_P = packed.key_order
    if order_P is None:
        order_P = torch.arange(layout.ids_BS.numel(), device=layout.ids_BS.device)
    places_P = torch.arange(len(order_P), device=order_P.device)
    documents_1P = torch.bucketize(places_P, packed.cu_keys[1:], right=True, out_int32=True)[None]
    borders = {
        "cu_seq_lens_q": packed.cu_keys,
        "cu_seq_lens_k": packed.cu_keys,
        "seq_idx": documents_1P,
    }
    result = run(lambda flat: flat[order_P][None], **borders)
    return _put_back(
        [_results(result, (1, len(order_P)), lambda each: each[0])], order_P, layout.ids_BS.shape
    )


def _results(result: Any, wanted: Any, read: Callable[[Tensor], Tensor]) -> Any:
    """Return what of a result belongs to tokens, flat; None in the place of anything else, such as a state."""
    if isinstance(result, tuple):
        return tuple(_results(each, wanted, read) for each in result)
    if isinstance(result, Tensor) and result.shape[:2] == torch.Size(wanted):
        return read(result)
    return None


def _put_back(results: list[Any], places: Tensor, wanted: torch.Size) -> Any:
    if isinstance(results[0], tuple):
        return tuple(_put_back(list(each), places, wanted) for each in zip(*results, strict=True))
    if results[0] is None:
        return None
    values = torch.cat(results)
    whole = values.new_zeros(wanted.numel(), *values.shape[1:]).index_copy(0, places, values)
    return whole.unflatten(0, wanted)
