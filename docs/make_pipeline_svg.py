"""Draws docs/images/pipeline.svg: from a spec to kernels in a vLLM tree. Run: python docs/make_pipeline_svg.py."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

TARGET = Path(__file__).parent / "images" / "pipeline.svg"

WIDTH, HEIGHT = 960, 236
BOX_WIDTH, BOX_HEIGHT, GAP = 152, 74, 45
TOP, LEFT = 52, 10

STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1f2328 }
    .title { font-weight: 600 }
    .small { font-size: 11.5px; fill: #59636e }
    .command { font: 12px ui-monospace, monospace; fill: #0969da }
    rect { fill: #f6f8fa; stroke: #8c959f }
    .yours { fill: #ddf4ff; stroke: #54aeff }
    path { stroke: #8c959f; fill: none; stroke-width: 1.5 }
    .tip { fill: #8c959f; stroke: none }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .small { fill: #9198a1 } .command { fill: #79c0ff }
      rect { fill: #151b23; stroke: #656c76 } .yours { fill: #0c2d6b; stroke: #388bfd }
      path { stroke: #656c76 } .tip { fill: #656c76 }
    }
"""


class Stage(NamedTuple):
    """A box of the pipeline: its title, two lines below it, and whether a user writes it."""

    title: str
    first: str
    second: str
    yours: bool = False


STAGES = (
    Stage("specs/qwen36.yaml", "shape, ratio, page,", "dtypes, features", yours=True),
    Stage("kernels", "every combination,", "each with its plan"),
    Stage("sources in memory", "PyTorch, CUDA, tests,", "one dispatch table"),
    Stage("generated/", "reviewed, committed,", "runs without pav2gen"),
    Stage("your vLLM tree", "paged_attention_v2", "served", yours=True),
)

#: What happens on the way from each box to the next, and the command that does it.
STEPS = ("expand", "render", "build", "install")

#: Commands that use the generated package, and their purposes.
USES = (
    ("pytest generated", "each kernel against float64, CUDA on the CPU"),
    ("pav2gen check", "are the committed files what the specs give?"),
    ("pav2gen bench, tune, report", "side by side on your card"),
)


def box(index: int, stage: Stage) -> list[str]:
    """The box of a stage, and its words."""
    x = LEFT + index * (BOX_WIDTH + GAP)
    middle = x + BOX_WIDTH / 2
    kind = ' class="yours"' if stage.yours else ""
    words = ((24, "title", stage.title), (44, "small", stage.first), (60, "small", stage.second))
    return [
        f'<rect{kind} x="{x}" y="{TOP}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>',
        *(
            f'<text class="{style}" x="{middle:g}" y="{TOP + down}" text-anchor="middle">{escape(text)}</text>'
            for down, style, text in words
        ),
    ]


def arrow(index: int, label: str) -> list[str]:
    """The arrow from a box to the next, and its label above."""
    start = LEFT + index * (BOX_WIDTH + GAP) + BOX_WIDTH
    end, y = start + GAP, TOP + BOX_HEIGHT / 2
    return [
        f'<path d="M{start} {y:g}H{end - 6}"/>',
        f'<path class="tip" d="M{end} {y:g}l-8 -4v8z"/>',
        f'<text class="small" x="{start + GAP / 2:g}" y="{TOP - 12}" text-anchor="middle">{escape(label)}</text>',
    ]


def uses() -> list[str]:
    """The commands below the generated package."""
    lines = []
    for index, (command, purpose) in enumerate(USES):
        y = TOP + BOX_HEIGHT + 40 + index * 26
        lines.append(f'<text class="command" x="{LEFT + 360}" y="{y}">{escape(command)}</text>')
        lines.append(f'<text class="small" x="{LEFT + 590}" y="{y}">{escape(purpose)}</text>')
    return lines


def svg() -> str:
    """The picture."""
    parts = [line for index, stage in enumerate(STAGES) for line in box(index, stage)]
    parts += [line for index, label in enumerate(STEPS) for line in arrow(index, label)]
    body = "\n  ".join([*parts, *uses()])
    title = "From a YAML spec to attention kernels in a vLLM tree"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">\n'
        f"  <title>{title}</title>\n  <style>{STYLE}  </style>\n  {body}\n</svg>\n"
    )


if __name__ == "__main__":
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(svg(), encoding="utf-8")
