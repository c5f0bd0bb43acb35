"""Attention of one value, with documents given by ids: as tests write it."""

from tape_ds.attention import attend as attention
from tape_ds.attention.document_layout import layout_of_ids


def attend(q_BHTK, k_BGSK, v_BGSV, *, document_ids=None, offset=None, **arguments):
    """``attend`` with integers [B, S] in place of borders: a query sees only keys of its own document; -1 is padding,
    which sees nothing and is seen by nobody, whatever it contains (NaN included). Returns [B, H, T, V]."""
    layout = None
    if document_ids is not None:
        queries, keys = q_BHTK.shape[2], k_BGSK.shape[2]
        offset = keys - queries if offset is None else offset
        if isinstance(offset, int):  # keys behind the last query play no part
            document_ids = document_ids[:, : offset + queries]
        layout = layout_of_ids(document_ids, queries, offset)
    arguments |= {"layout": layout, "offset": offset}
    return attention.attend(q_BHTK, k_BGSK, [v_BGSV], **arguments)[0]
