"""Chooses the kernel for a call from the package's dispatch table.

The choice depends only on values that the host knows, never on the contents of device tensors. A captured CUDA graph
therefore stays valid if these contents change. This module does not import torch, because the generator runs without
torch and also uses this module.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from .dispatch_row import Row, Tuned
from .key import AnyKey, Key, order_of
from .miss import NoKernelError, miss
from .waves import cheapest

logger = logging.getLogger("pav2")

#: The largest size of a CUDA grid in y and in z. In the kernels' grids, y is the number of sequences and z is the
#: number of partitions.
MOST_BLOCKS = 65535

#: A dispatch table caches the chosen rows for up to this many different calls. A full cache is cleared.
MOST_CHOICES = 4096


class Table:
    """The dispatch table of one operator, which chooses a kernel for each call of the operator.

    If two specs (YAML files) build kernels with the same key, the table uses only the spec that is first in
    alphabetical order.

    rows: the dispatch rows of all operators of the package, although the table chooses only rows of ``operator``.
    tuned: the tuning results.
    files: the path of the YAML file of each spec, by the spec's name, for messages.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        tuned: Iterable[Tuned] = (),
        files: Mapping[str, str] | None = None,
        operator: str = "decode",
    ) -> None:
        self.operator = operator
        self._every = tuple(rows)
        self.rows = tuple(row for row in self._every if row.operator == operator)
        self._files = files or {}
        #: Maps the name of each modification to its definition.
        self.modifications = {row.key.modification: row.modification for row in self.rows if row.modification}
        self._chosen: dict[tuple[object, ...], Row] = {}
        self._missed: dict[AnyKey, str] = {}
        self._by_key: dict[AnyKey, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: (row.spec, order_of(row.key), row.partition_size)):
            served = self._by_key.setdefault(row.key, [])
            if not served or served[0].spec == row.spec:
                served.append(row)
        serving = {row.symbol: row for rows in self._by_key.values() for row in rows}
        self._tuned: dict[tuple[Key, str, str, int], list[Tuned]] = {}
        for entry in sorted(tuned, key=lambda entry: (entry.max_seq_len, entry.num_seqs)):
            if entry.symbol in serving:
                measured = (serving[entry.symbol].key, entry.backend, entry.device, entry.kv_heads)
                self._tuned.setdefault(measured, []).append(entry)

    def serving(self, key: AnyKey) -> Sequence[Row]:
        """Return the dispatch rows with the kernel key ``key``, sorted by partition size.

        Raises NoKernelError if no row has this key.
        """
        rows = self._by_key.get(key)
        if rows is None:
            raise NoKernelError(self._miss(key))
        return rows

    def _miss(self, key: AnyKey) -> str:
        """Return the error message for a call with the kernel key ``key`` if no kernel has this key.

        Messages are cached, because a vLLM fork may use the same key at every decode step.
        """
        if key not in self._missed:
            if len(self._missed) >= MOST_CHOICES:
                self._missed.clear()
            self._missed[key] = miss(key, self._every, self._files, self.operator)
        return self._missed[key]

    def of_backend(self, key: AnyKey, backend: str) -> list[Row]:
        """Return the dispatch rows with the kernel key ``key`` that have a kernel of ``backend`` ("torch" or "cuda").

        Raises NoKernelError if no row has this key and this backend.
        """
        rows = [row for row in self.serving(key) if getattr(row, backend)]
        if not rows:
            raise NoKernelError(f"no {backend} kernel for {key}; built: {_built(self.serving(key))}")
        return rows

    def choose(
        self,
        key: Key,
        backend: str,
        num_seqs: int,
        max_seq_len: int,
        kv_heads: int,
        partition_size: int | None = None,
        device: str = "",
        captured: bool = False,
    ) -> Row:
        """Return the dispatch row of the kernel that a decode call should use. The result is cached.

        ``_choose`` explains the arguments and the rule.
        """
        asked = (key, backend, num_seqs, max_seq_len, kv_heads, partition_size, device, captured)
        row = self._chosen.get(asked)
        if row is None:
            row = self._choose(*asked)
            if len(self._chosen) >= MOST_CHOICES:
                self._chosen.clear()
            self._chosen[asked] = row
        return row

    def _choose(
        self,
        key: Key,
        backend: str,
        num_seqs: int,
        max_seq_len: int,
        kv_heads: int,
        partition_size: int | None,
        device: str,
        captured: bool,
    ) -> Row:
        """Return the dispatch row of the kernel that a decode call should use.

        If ``partition_size`` is not None, the method considers only rows with this partition size. If
        ``partition_size`` is None and the spec prescribes a partition size, the method considers only rows with the
        prescribed size. If a tuning result applies to the call, the method chooses the kernel that was the fastest in
        the tuning. If no tuning result applies, the method chooses the row with the shortest estimated time (see
        ``waves.cheapest``).

        Raises NoKernelError if no row has this key, backend and partition size. Raises NoKernelError if the call has
        more partitions than a CUDA grid can hold.

        backend: "torch" or "cuda".
        max_seq_len: the upper bound of the sequence lengths in tokens.
        partition_size: the number of tokens in a partition, or None.
        device: a name from ``op.device_name``.
        captured: whether a CUDA graph is being captured.
        """
        rows = self.of_backend(key, backend)
        wanted = partition_size or (rows[0].fixed_partition if rows else 0)
        if wanted:
            rows = [row for row in rows if row.partition_size == wanted]
        if not rows:
            built = _built(self.serving(key))
            raise NoKernelError(f"no {backend} kernel for {key} with partition_size={wanted}; built: {built}")
        if backend == "cuda":
            largest = max(row.partition_size for row in rows)
            rows = [row for row in rows if max_seq_len <= MOST_BLOCKS * row.partition_size]
            if not rows:
                raise NoKernelError(
                    f"no CUDA kernel of {key} takes max_seq_len {max_seq_len}: a CUDA grid can have at "
                    f"most {MOST_BLOCKS} partitions, and the largest partitions that are built have {largest} tokens"
                )
        for entry in self._tuned.get((key, backend, device, kv_heads), ()):
            if entry.covers(num_seqs, max_seq_len):
                rows = [row for row in rows if row.symbol == entry.symbol] or rows
                break  # the first is the nearest in size
        return cheapest(rows, num_seqs, max_seq_len, kv_heads, backend, captured)


def _built(rows: Iterable[Row]) -> str:
    """Return a list of the kernels in ``rows`` as text for an error message.

    The text has the backends of each kernel, and the partition size of a decode kernel or the name of any other kernel.
    """
    backends = {row: " and ".join(name for name in ("torch", "cuda") if getattr(row, name)) for row in rows}
    titles = {row: row.partition_size if row.operator == "decode" else row.symbol for row in backends}
    return ", ".join(f"{titles[row]} ({names})" for row, names in backends.items())
