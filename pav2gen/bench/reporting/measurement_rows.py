"""Computes the values that a report shows for each measured problem in JSON documents of ``pav2gen bench``.

The "floor" of a problem is the least possible time of its call. In this time, a memory copy would move each byte of the
input and the output once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pav2gen.bench.reporting.line_chart import tokens
from pav2gen.family.axes import HEADS, title
from pav2gen.runtime.choice.key import Key


@dataclass(frozen=True)
class Measurement:
    """The results of one problem on ``device``.

    point: the entry of the problem in ``points`` of the JSON document.
    """

    device: str
    point: Mapping[str, Any]

    @property
    def seq_len(self) -> int:
        """The number of tokens in each sequence."""
        return int(self.point["seq_len"])

    @property
    def floor_ms(self) -> float:
        """The time, in ms, to move each byte of the input and output once, at the bandwidth of a memory copy.

        The copy was timed in the same rounds as the kernels and baselines.
        """
        return float(self.point["io_bytes"]) / float(self.point["copy_gbps"]) / 1e6

    @property
    def batch(self) -> str:
        """The number of sequences in words, such as ``8 sequences``."""
        return "1 sequence" if self.point["num_seqs"] == 1 else f"{self.point['num_seqs']} sequences"

    @property
    def title(self) -> str:
        """A short description of the kernel configuration and of the numbers of query heads and KV heads."""
        key = Key(**self.point["key"])
        heads = f"{self.point['num_heads']}/{self.point['kv_heads']} heads of {key.head_size}"
        return f"{heads}, {title(key._asdict(), leave_out=HEADS)}"

    @property
    def where(self) -> str:
        """A description of the problem: the configuration, the numbers of heads and sequences, and the length in
        tokens.
        """
        return f"{self.title}, {self.batch}, {tokens(self.seq_len)} tokens"

    def entry(self, name: str) -> Mapping[str, Any] | None:
        """Return the entry of the kernel or baseline called ``name`` in the JSON document.

        Returns None if this kernel or baseline was not measured.
        """
        return next((entry for entry in self.point["contestants"] if entry["name"] == name), None)

    def ratio(self, backend: str, peer: str) -> float | None:
        """Return the time of the baseline ``peer``, divided by the time of the chosen kernel (see ``chosen``) of
        ``backend``.

        Returns None if one of the two was not timed.
        """
        ours, theirs = (entry.get("median_ms") if entry else None for entry in (self.chosen(backend), self.entry(peer)))
        return theirs / ours if ours and theirs else None

    def chosen(self, backend: str) -> Mapping[str, Any] | None:
        """Return the entry of the kernel of ``backend`` that the dispatch table chose for the problem.

        Returns None if this kernel was not measured.
        """
        symbol = self.point["chosen"].get(backend)
        entries = (entry for entry in self.point["contestants"] if entry.get("backend") == backend)
        return next((entry for entry in entries if entry.get("symbol") == symbol), None)


def measurements(documents: Iterable[Mapping[str, Any]]) -> Sequence[Measurement]:
    """Return a ``Measurement`` for each measured problem in the JSON documents ``documents``, in their order."""
    return [Measurement(each["device"]["name"], point) for each in documents for point in each["points"]]
