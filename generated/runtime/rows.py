"""The order in which a call processes its sequences: as given, or longest first."""

from __future__ import annotations

import torch


class Rows:
    """The sequences of a call, in the order in which its tiles take them.

    seq_lens: [seqs] int32, the lengths in that order. ordered: whether the order differs from that of the call.
    """

    def __init__(self, seq_lens: torch.Tensor, ordered: bool) -> None:
        self.seq_lens, self.ordered = seq_lens, ordered
        self._index: torch.Tensor | None = None
        if ordered:
            self.seq_lens, self._index = torch.sort(seq_lens, stable=True, descending=True)

    def take(self, tensor: torch.Tensor, rows: slice) -> torch.Tensor:
        """The part ``rows`` of ``tensor`` [seqs, ...]. It is a view, or a copy if ``ordered``."""
        return tensor[rows] if self._index is None else torch.index_select(tensor, 0, self._index[rows])

    def put(self, target: torch.Tensor, rows: slice, values: torch.Tensor) -> None:
        """Assign ``target[rows] = values``, converted to the dtype of ``target`` [seqs, ...]."""
        if self._index is None:
            target[rows].copy_(values)
        else:
            target.index_copy_(0, self._index[rows], values.to(target.dtype))

    def put_quotient(self, target: torch.Tensor, rows: slice, values: torch.Tensor, divisor: torch.Tensor) -> None:
        """Assign ``target[rows] = values / divisor``. The divisor has all dimensions of ``values`` but the last."""
        if self._index is None:
            torch.div(values, divisor.unsqueeze(-1), out=target[rows])
        else:
            self.put(target, rows, torch.div(values, divisor.unsqueeze(-1)))
