"""Chooses the kernel for a call from the package's dispatch table.

The choice depends only on values that the host knows, never on the contents of device tensors. A captured CUDA graph
therefore stays valid when these contents change. This module does not import torch, because the generator, which runs
without torch, uses it too.
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
    """The dispatch table of one operator of a package: chooses the kernel for a call.

    If two specs build kernels with the same key, the table uses only the rows of the spec that is first in alphabetical
    order.

    rows: the dispatch rows of all operators of the package. The table serves calls from the rows of ``operator``.
    tuned: results of tuning. files: maps the name of each spec to the path of its file, for messages.
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
        """The dispatch rows with the kernel key ``key``, sorted by partition size.

        Raises NoKernelError if no row has this key.
        """
        rows = self._by_key.get(key)
        if rows is None:
            raise NoKernelError(self._miss(key))
        return rows

    def _miss(self, key: AnyKey) -> str:
        """Return the message of the error that no kernel has the key ``key``.

        Messages are cached, because a vLLM fork may ask for the same key at every decode step.
        """
        if key not in self._missed:
            if len(self._missed) >= MOST_CHOICES:
                self._missed.clear()
            self._missed[key] = miss(key, self._every, self._files, self.operator)
        return self._missed[key]

    def of_backend(self, key: AnyKey, backend: str) -> list[Row]:
        """The dispatch rows with the kernel key ``key`` that have a kernel of ``backend`` ("torch" or "cuda").

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
        """Return the dispatch row for a call. The result is cached. ``_choose`` explains the arguments and the rule."""
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
        """Choose the dispatch row for a call of the decode operator.

        If ``partition_size`` is given, only rows with this size are considered; else, if the spec fixes a partition
        size, only rows with the fixed size. Among these rows, a result of tuning for this device and calls of this size
        decides, if there is one. Otherwise the wave model decides (``waves.cheapest``). Raises NoKernelError if no row
        has this key, backend and partition size, or if a CUDA grid can't hold the call's partitions.

        backend: "torch" or "cuda". max_seq_len: tokens. device: a name from ``op.device_name``. captured: whether a
        CUDA graph is being captured.
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
    """Describe the kernels in ``rows`` for a message.

    A decode kernel is described by its partition size and its backends, any other kernel by its name and its backends.
    """
    backends = {row: " and ".join(name for name in ("torch", "cuda") if getattr(row, name)) for row in rows}
    titles = {row: row.partition_size if row.operator == "decode" else row.symbol for row in backends}
    return ", ".join(f"{titles[row]} ({names})" for row, names in backends.items())
