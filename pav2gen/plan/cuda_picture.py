"""Draws text tables that show how the threads of a CUDA kernel divide the keys and values.

The comment at the top of each CUDA source contains the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pav2gen.family.variant import ExtendVariant, Variant
from pav2gen.plan.cuda_geometry import KEY_LANES, WIDEST_WARP, ExtendGeometry, Geometry

#: The largest numbers of rows and of columns with which a table is shown completely. Of more rows (or columns), a table
#: shows the first two and the last one.
ROWS, COLUMNS = 3, 4

#: The text that a table shows in place of the rows or columns that it leaves out.
ELLIPSIS = "..."


def picture(v: Variant, g: Geometry) -> list[str]:
    """Draw the tables for a CUDA decode kernel, and return their lines of at most 100 characters.

    The first table shows which lanes of a warp read which part of K with one load. The second table shows which threads
    of a thread block read which part of V with one load.
    """
    return [*_keys(v, g), "", *_values(v, g)]


def _keys(v: Variant, g: Geometry) -> list[str]:
    loads, width = 4 // g.key_words, 4 * g.key_words
    tokens = min(v.block_size, WIDEST_WARP // loads)
    grains, all_grains = WIDEST_WARP // (tokens * loads), v.head_size // v.grain

    def lane(grain: int, token: int) -> str:
        first = (grain * tokens + token) * loads
        if grain >= all_grains:
            return "idle"
        return str(first) if loads == 1 else f"{first}-{first + loads - 1}"

    title = f"K of a page: a warp of {WIDEST_WARP} lanes in one load of {width} bytes. A grain is 16 bytes of a key."
    rows = [f"grain {i}" for i in range(grains)]
    table = _table(rows, [f"token {i}" for i in range(tokens)], lane)
    again = [f"  grain {grains}: lane 0 again"] if grains < all_grains else []
    return [title, *table, *again]


def _values(v: Variant, g: Geometry) -> list[str]:
    per_load = 4 * g.value_words // v.cache_item_bytes
    rounds = g.threads // g.row_lanes

    def thread(row: int, column: int) -> str:
        return str(row * g.row_lanes + column) if row < v.head_size else "idle"

    def tokens(column: int) -> str:
        first = column * per_load
        return f"token {first}" if per_load == 1 else f"tokens {first}-{first + per_load - 1}"

    title = f"V of a page: the {g.threads} threads in one load of {4 * g.value_words} bytes. A row is one element of V."
    table = _table([f"row {i}" for i in range(rounds)], [tokens(i) for i in range(g.row_lanes)], thread)
    again = [f"  row {rounds}: thread 0 again"] if rounds < v.head_size else []
    return [title, *table, *again]


def extend_picture(v: ExtendVariant, g: ExtendGeometry) -> list[str]:
    """Draw the tables for a CUDA extend kernel, and return their lines.

    The first table shows which lanes of a warp compute the scores of which keys. The second table shows which threads
    of a thread block add values to which elements of the output.
    """
    return [*_scores(v, g), "", *_sums(v, g)]


def _scores(v: ExtendVariant, g: ExtendGeometry) -> list[str]:
    splits, grains = WIDEST_WARP // KEY_LANES, v.head_size // v.grain

    def lane(split: int, key: int) -> str:
        return str(split * KEY_LANES + key) if split < grains else "idle"

    title = f"Scores: a warp of {WIDEST_WARP} lanes reads keys from shared memory. A grain is 16 bytes of a key."
    keys = [", ".join(str(key + i * KEY_LANES) for i in range(g.lane_keys)) for key in range(KEY_LANES)]
    names = [f"{'keys' if g.lane_keys > 1 else 'key'} {name}" for name in keys]
    again = [f"  grain {splits}: lane 0 again"] if splits < grains else []
    return [title, *_table([f"grain {i}" for i in range(splits)], names, lane), *again]


def _sums(v: ExtendVariant, g: ExtendGeometry) -> list[str]:
    def thread(row: int, dim: int) -> str:
        return str(row * g.dim_lanes + dim) if row < g.rows and dim < v.head_size else "idle"

    title = f"Values: the {g.threads} threads add values to the output of each row."
    rows, dims = [f"row {i}" for i in range(g.row_groups)], [f"element {i}" for i in range(g.dim_lanes)]
    again = [f"  row {g.row_groups}: thread 0 again"] if g.row_groups < g.rows else []
    again += [f"  element {g.dim_lanes}: thread 0 again"] if g.dim_lanes < v.head_size else []
    return [title, *_table(rows, dims, thread), *again]


def _table(rows: Sequence[str], columns: Sequence[str], cell: Callable[[int, int], str]) -> list[str]:
    """Draw a table with a header line, and return its lines.

    If the table has too many rows or columns, "..." replaces the rows or columns in the middle.

    rows: the titles of the rows.
    columns: the titles of the columns.
    cell: a function that returns the text of a cell, given the indices of its row and its column.
    """
    across, down = _shown(len(columns), COLUMNS), _shown(len(rows), ROWS)
    lines = [["", *(ELLIPSIS if j is None else columns[j] for j in across)]]
    for i in down:
        if i is None:
            lines.append([ELLIPSIS, *("" for _ in across)])
        else:
            lines.append([rows[i], *("" if j is None else cell(i, j) for j in across)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  " + "   ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in lines]


def _shown(count: int, most: int) -> list[int | None]:
    """Return the indices of the rows or columns that a table shows.

    If the table leaves some rows or columns out, the result contains None in their place.

    count: the number of rows or columns that the table has.
    most: the largest number of rows or columns that a table shows completely.
    """
    return list(range(count)) if count <= most else [0, 1, None, count - 1]
