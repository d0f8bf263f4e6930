"""The order in which a PyTorch kernel processes the sequences of a call: as given, or longest first."""

from __future__ import annotations

import threading

import torch


def part_of(tensor: torch.Tensor, dim: int, part: slice) -> torch.Tensor:
    """Return the entries ``part`` of dimension ``dim``: the tensor itself if these are all entries, else a view.

    ``part`` may end past the dimension, as a slice may. It has no step.
    """
    size = tensor.shape[dim]
    stop = min(part.stop, size)
    return tensor if part.start == 0 and stop == size else tensor.narrow(dim, part.start, stop - part.start)


class Rows:
    """The sequences of a call, in the order in which the kernel processes them. A "row" is a sequence in this order.

    ordered: True if the sequences are sorted, longest first; False if they stay in the call's order.
    longest: the number of tokens to which the device clamps greater lengths, or None if the lengths need no clamping.
    """

    def __init__(self, seq_lens: torch.Tensor, ordered: bool, longest: int | None = None) -> None:
        self.ordered, self._longest = ordered, longest
        self._seq_lens, self._clamped = seq_lens, longest is None
        self._index: torch.Tensor | None = None
        self._lock = threading.Lock()
        if ordered:
            self._seq_lens, self._index = torch.sort(self.seq_lens, stable=True, descending=True)

    @property
    def seq_lens(self) -> torch.Tensor:
        """The sequence lengths in the order of the rows, [seqs] int32. The first access clamps the lengths."""
        if not self._clamped:
            with self._lock:  # workers may share the rows
                if not self._clamped:
                    self._seq_lens = self._seq_lens.clamp(0, self._longest)
                    self._clamped = True
        return self._seq_lens

    def take(self, tensor: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return the given rows of ``tensor`` [seqs, ...], as a copy if the rows are sorted, else as ``part_of``."""
        return part_of(tensor, 0, rows) if self._index is None else torch.index_select(tensor, 0, self._index[rows])

    def put(self, target: torch.Tensor, rows: slice, values: torch.Tensor) -> None:
        """Store ``values`` into the given rows of ``target`` [seqs, ...], converted to the dtype of ``target``."""
        if self._index is None:
            part_of(target, 0, rows).copy_(values)
        else:
            target.index_copy_(0, self._index[rows], values.to(target.dtype))

    def put_quotient(self, target: torch.Tensor, rows: slice, values: torch.Tensor, divisor: torch.Tensor) -> None:
        """Store ``values / divisor`` into the given rows of ``target`` [seqs, ...].

        The shape of ``divisor`` is that of ``values`` without the last dimension.
        """
        if self._index is None:
            torch.div(values, divisor.unsqueeze(-1), out=part_of(target, 0, rows))
        else:
            self.put(target, rows, torch.div(values, divisor.unsqueeze(-1)))
