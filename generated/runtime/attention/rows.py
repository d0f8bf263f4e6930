"""PyTorch kernels process the sequences of a call either in the call's order or sorted by length, longest first."""

from __future__ import annotations

import threading

import torch


def part_of(tensor: torch.Tensor, dim: int, part: slice) -> torch.Tensor:
    """Return the entries ``part`` of dimension ``dim`` of a tensor.

    The result is a view of ``tensor``, or ``tensor`` itself if ``part`` covers the whole dimension.

    part: a slice without a step, whose end may exceed the size of the dimension.
    """
    size = tensor.shape[dim]
    stop = min(part.stop, size)
    return tensor if part.start == 0 and stop == size else tensor.narrow(dim, part.start, stop - part.start)


class Rows:
    """The sequences of a call, in the order in which the kernel processes the sequences.

    A row is one sequence. Row 0 is the sequence that the kernel processes first.

    seq_lens: the sequence lengths in tokens, in the call's order, [seqs] int32.
    ordered: True if the rows are sorted by length, longest first; False if the rows keep the call's order.
    longest: the largest allowed length in tokens. ``Rows.seq_lens`` clamps the lengths to the range from 0 to
    ``longest``, or does not clamp if ``longest`` is None.
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
        """The sequence lengths in tokens, in the order in which the kernel processes the sequences, [seqs] int32.

        The first access to this property clamps the lengths on the device.
        """
        if not self._clamped:
            with self._lock:  # workers may share the rows
                if not self._clamped:
                    self._seq_lens = self._seq_lens.clamp(0, self._longest)
                    self._clamped = True
        return self._seq_lens

    def take(self, tensor: torch.Tensor, rows: slice) -> torch.Tensor:
        """Return some rows of ``tensor`` [seqs, ...], whose first dimension has the call's order of sequences.

        The result is a copy if the rows are sorted by length. If the rows are not sorted, the result is a view of
        ``tensor`` or ``tensor`` itself.

        rows: the range of rows, where row 0 is the sequence that the kernel processes first.
        """
        return part_of(tensor, 0, rows) if self._index is None else torch.index_select(tensor, 0, self._index[rows])

    def put(self, target: torch.Tensor, rows: slice, values: torch.Tensor) -> None:
        """Store ``values`` into some rows of ``target`` [seqs, ...], whose first dimension has the call's order of
        sequences.

        The function converts ``values`` to the dtype of ``target``.

        rows: the range of rows, where row 0 is the sequence that the kernel processes first.
        """
        if self._index is None:
            part_of(target, 0, rows).copy_(values)
        else:
            target.index_copy_(0, self._index[rows], values.to(target.dtype))

    def put_quotient(self, target: torch.Tensor, rows: slice, values: torch.Tensor, divisor: torch.Tensor) -> None:
        """Store ``values / divisor`` into some rows of ``target`` [seqs, ...], in the same way as ``put`` stores
        values.

        divisor: a tensor with the shape of ``values`` without the last dimension.
        """
        if self._index is None:
            torch.div(values, divisor.unsqueeze(-1), out=part_of(target, 0, rows))
        else:
            self.put(target, rows, torch.div(values, divisor.unsqueeze(-1)))
