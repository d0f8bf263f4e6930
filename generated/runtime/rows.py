"""The order in which a call processes its sequences: as given, or longest first."""

from __future__ import annotations

import torch


class Rows:
    """The sequences of a call, in the order in which its tiles take them.

    ordered: whether the order differs from that of the call. longest: the lengths are clamped to 0 ... ``longest`` on
    the device; None leaves them as they are.
    """

    def __init__(self, seq_lens: torch.Tensor, ordered: bool, longest: int | None = None) -> None:
        self.ordered, self._longest = ordered, longest
        self._seq_lens, self._clamped = seq_lens, longest is None
        self._index: torch.Tensor | None = None
        if ordered:
            self._seq_lens, self._index = torch.sort(self.seq_lens, stable=True, descending=True)

    @property
    def seq_lens(self) -> torch.Tensor:
        """[seqs] int32, the lengths in the order of the rows. Most calls with known lengths never read them here."""
        if not self._clamped:
            self._seq_lens, self._clamped = self._seq_lens.clamp(0, self._longest), True
        return self._seq_lens

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
