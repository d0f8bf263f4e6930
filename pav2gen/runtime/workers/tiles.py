"""Computes the tiles of a call and merges their softmax states, in the calling thread or in worker threads.

A tile is a group of partitions whose scores are in memory at the same time. Worker threads compute tiles in parallel,
and each worker has its own workspace for intermediate results. The softmax states are merged in the order of the tiles.
The result therefore does not depend on which worker computes which tile.
"""

from __future__ import annotations

from collections.abc import Callable

from ..attention.rows import Rows
from ..attention.state import State, merge, write_output
from ..attention.tiling import RowTile, Tile, Tiling
from ..attention.workspace import Workspace, workspace
from ..call import Call
from . import pool
from .shares import AHEAD

#: Computes a tile of a row tile in a workspace. Returns the state of its sequences, or None if their output is written.
Attend = Callable[[RowTile, Tile, Workspace], State | None]


def run_tiles(call: Call, rows: Rows, tiling: Tiling, num_bytes: int, attend: Attend) -> None:
    """Compute all tiles of ``tiling``, and write the attention output of all sequences.

    num_bytes: the size of the workspace of each thread.
    attend: a function that computes one tile.
    """
    if tiling.workers > 1:
        _run_on_workers(call, rows, tiling, num_bytes, attend)
        return
    with workspace(num_bytes, call.query.device) as memory:
        for row_tile in tiling.row_tiles:
            state = None
            for tile in row_tile.tiles:
                found = attend(row_tile, tile, memory)
                state = merge(state, found) if len(row_tile.tiles) > 1 and found is not None else found
            if state is not None:
                write_output(call, rows, row_tile.rows, state)


def _run_on_workers(call: Call, rows: Rows, tiling: Tiling, num_bytes: int, attend: Attend) -> None:
    state: State | None = None  # of the row tile that is being merged

    def compute(task: tuple[RowTile, Tile]) -> State | None:
        row_tile, tile = task
        with workspace(num_bytes, call.query.device) as memory:
            found = attend(row_tile, tile, memory)
            if found is None:
                return None
            if len(row_tile.tiles) > 1:
                return merge(None, found)  # a copy, because the worker's next tile uses the same workspace
            write_output(call, rows, row_tile.rows, found)
            return None

    def combine(task: tuple[RowTile, Tile], found: State | None) -> None:
        nonlocal state
        row_tile, tile = task
        if found is None:
            return
        state = found if state is None else merge(state, found)
        if tile is row_tile.tiles[-1]:
            write_output(call, rows, row_tile.rows, state)
            state = None

    tasks = [(row_tile, tile) for row_tile in tiling.row_tiles for tile in row_tile.tiles]
    pool.run(tiling.workers, tasks, compute, combine, AHEAD)
