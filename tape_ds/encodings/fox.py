"""``fox``: the forgetting transformer's gates (Lin et al. 2025, arXiv:2503.02130).

Each query head has a gate ``f_l = sigmoid(w x_l + b)`` on every token, x being attention's input. The score of query i
and key j gets ``log f_(j+1) + ... + log f_i`` added: a bias that depends on what is between the two. With
``c_i = log f_1 + ... + log f_i`` it is ``c_i - c_j``, and a softmax takes no notice of c_i, which all scores of a query
share. So what remains is a number of the key: one more column, and attention by any kernel.

With bf16 keys the sum is kept as three bf16 numbers, which together have 24 bits: differences of c matter, and c grows
with the text. A column's unit is such that fp16 holds sums down to -370,000 at heads of 128. The gradient of a gate is
a sum of the columns' gradients that cancel, and a kernel in 16 bits rounds each of them: it is exact only in fp32.

Shape letters: B batch, T tokens of this call, S keys, cached ones included, H query heads, G key/value heads, R query
heads of a group, K head size, X columns of a key, E columns of the sums, D hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tape_ds.attention.call import ALIGNED
from tape_ds.encodings import base
from tape_ds.encodings.catalogue import FoxOptions
from tape_ds.encodings.documents import last_cached, running_sums
from tape_ds.encodings.options import ModelConfig
from tape_ds.kernels.reference import upcast

UNIT = 64.0
"""Value in a query's columns: a power of two, so that every dtype has it exactly."""
_TERMS = {torch.bfloat16: 3, torch.float16: 3}


class Gates(base.Parameters):
    """``w x + b`` for every query head."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.num_attention_heads, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.num_attention_heads))

    def forward(self, x_BTD: Tensor, heads: slice) -> Tensor:
        return F.linear(x_BTD, self.weight[heads], self.bias[heads])

    def initialise(self, normal: base.Normal, constant: base.Fill) -> None:
        normal(self.weight)
        constant(self.bias, 0.0)


class FoxLayer(base.PositionLayer):
    """Adds columns of sums to keys, and columns that read them to queries."""

    def __init__(self, config: ModelConfig, options: FoxOptions, layer_idx: int):
        super().__init__()
        self.gates = Gates(config)
        self.head_dim = config.head_dim
        self.heads_per_group = config.num_attention_heads // config.num_key_value_heads
        columns = self.heads_per_group * _TERMS[torch.bfloat16]
        self.added_columns = columns + -(self.head_dim + columns) % ALIGNED

    def observe(self, x_BTD: Tensor, heads: slice = base.EVERY_HEAD) -> Tensor:
        """``log f``, at least fp32 [B, H, T]."""
        return F.logsigmoid(upcast(self.gates(x_BTD, heads))).transpose(1, 2)

    def rotate(
        self,
        q_BHTK: Tensor,
        k_BGTK: Tensor,
        start: None,
        state: None,
        observed: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Add columns: each query reads those of its head, each key holds ``log f`` of the heads of its group."""
        assert observed is not None
        heads_per_group = q_BHTK.shape[1] // k_BGTK.shape[1]
        log_f_BGTR = observed.unflatten(1, (-1, heads_per_group)).transpose(2, 3)
        columns = self._columns(log_f_BGTR * (-(self.head_dim**0.5) / UNIT), k_BGTK.dtype)
        reads_HE = self._reads(q_BHTK, heads_per_group, _TERMS.get(k_BGTK.dtype, 1)).repeat(
            k_BGTK.shape[1], 1
        )
        reads_BHTE = reads_HE[None, :, None].expand(len(q_BHTK), -1, q_BHTK.shape[2], -1)
        return torch.cat((q_BHTK, reads_BHTE), dim=-1), torch.cat((k_BGTK, columns), dim=-1)

    def _reads(self, like: Tensor, heads_per_group: int, terms: int) -> Tensor:
        """Return the columns [R, E] that a query of each head of a group has."""
        used = heads_per_group * terms
        columns = used + -(self.head_dim + used) % ALIGNED
        if terms == 1:
            return torch.eye(heads_per_group, columns, dtype=like.dtype, device=like.device) * UNIT
        heads = torch.eye(heads_per_group, dtype=like.dtype, device=like.device) * UNIT
        return self._padded(heads.repeat_interleave(terms, dim=1))

    def scaled(self, q_BHTX: Tensor, factors_B1T1: Tensor) -> Tensor:
        q_BHTK, reads_BHTE = q_BHTX.split((self.head_dim, q_BHTX.shape[-1] - self.head_dim), dim=-1)
        return torch.cat((super().scaled(q_BHTK, factors_B1T1), reads_BHTE), dim=-1)

    def accumulate(
        self,
        k_BGTX: Tensor,
        past_keys: base.PastKeys,
        documents_BS: Tensor | None,
        offset: int | Tensor,
    ) -> Tensor:
        """Put the sums of ``-log f`` over the document in place of ``log f``."""
        k_BGTK, columns_BGTE = k_BGTX.split(
            (self.head_dim, k_BGTX.shape[-1] - self.head_dim), dim=-1
        )
        tokens = k_BGTX.shape[2]
        device = k_BGTX.device
        new_BT = None
        if documents_BS is not None:
            new_BT = documents_BS.index_select(1, torch.arange(tokens, device=device) + offset)
        sums_BGTR = _sums(self._numbers(columns_BGTE), new_BT)
        past_BGSX = past_keys()
        if past_BGSX is not None:
            if documents_BS is None:
                last_BT = torch.full((1, 1), -1, device=device) + offset
                known_BT = last_BT >= 0
                last_BT = last_BT.clamp(min=0)
            else:
                last_BT, known_BT = last_cached(documents_BS, offset, tokens)
            past_BGSE = past_BGSX[..., self.head_dim : k_BGTX.shape[-1]]
            last_BGTE = last_BT[:, None, :, None].expand(
                *past_BGSE.shape[:2], -1, past_BGSE.shape[-1]
            )
            before_BGTR = self._numbers(past_BGSE.gather(2, last_BGTE))
            sums_BGTR = sums_BGTR + before_BGTR.masked_fill(~known_BT[:, None, :, None], 0)
        elif not isinstance(offset, Tensor) and offset:
            raise ValueError(
                "this cache does not keep keys as they are, and sums of gates are among them: use another"
            )
        return torch.cat((k_BGTK, self._columns(sums_BGTR, k_BGTX.dtype)), dim=-1)

    def _columns(self, numbers_BGTR: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the columns [B, G, T, E] of a key that hold these numbers, whose products with a query's columns are
        added to its scores."""
        if dtype not in _TERMS:
            return self._padded(numbers_BGTR.to(dtype))
        rest = numbers_BGTR
        terms = []
        for _ in range(_TERMS[dtype]):
            # the first has the gradient of all, which is the same for each
            terms.append(rest.to(dtype))
            rest = rest.detach() - terms[-1].detach()
        return self._padded(torch.stack(terms, dim=-1).flatten(-2))

    def _numbers(self, columns_BGTE: Tensor) -> Tensor:
        """Return what :meth:`_columns` was given, fp64 [B, G, T, R], as sums over long texts need the digits; padding
        columns count as further heads."""
        terms = _TERMS.get(columns_BGTE.dtype, 1)
        if terms == 1:
            return columns_BGTE.double()
        used = columns_BGTE.shape[-1] // terms * terms
        return columns_BGTE[..., :used].double().unflatten(-1, (-1, terms)).sum(dim=-1)

    def _padded(self, columns: Tensor) -> Tensor:
        missing = -(self.head_dim + columns.shape[-1]) % ALIGNED
        return F.pad(columns, (0, missing)) if missing else columns

    def multiplications_per_token(self, keys: float) -> float:
        heads, hidden = self.gates.weight.shape
        columns = self.heads_per_group + -(self.head_dim + self.heads_per_group) % ALIGNED
        return heads * hidden + heads * keys * columns


def _sums(numbers_BGTR: Tensor, documents_BT: Tensor | None) -> Tensor:
    """Return the running sums over each token's document."""
    if documents_BT is None:
        return numbers_BGTR.cumsum(2)
    numbers_BGRT = numbers_BGTR.transpose(2, 3)
    return (
        running_sums(numbers_BGRT.flatten(1, 2), documents_BT).view_as(numbers_BGRT).transpose(2, 3)
    )
