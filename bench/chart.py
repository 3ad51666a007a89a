"""`python bench/chart.py`: draws docs/images/bench.svg, a chart of what Antiphon and vLLM's server cost.

The figures are in `bench/figures/`, where `vllm.py --save` and `agent.py --save` write them; the date is that
of the run. `make bench` measures them first, where the environment of `make test-vllm` is there.
"""

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent)

import msgspec
from msgspec import Struct

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "bench" / "figures"
FILE = ROOT / "docs" / "images" / "bench.svg"

WIDTH, LABEL, BAR, GAP, HEAD = 760, 190, 22, 10, 34  # pixels
WHOLE = 100
"""Figures from this on are shown without decimals."""
BEHIND = 90
"""Pixels for the figure behind a bar."""


class Bar(Struct, frozen=True):
    """One server and its figure."""

    name: str
    value: float


class Chart(Struct, frozen=True):
    """What was measured, in which unit, on which day (ISO), and each server's figure: less is better."""

    title: str
    unit: str
    date: str
    bars: tuple[Bar, ...]

    def save(self, name: str) -> None:
        """Keep the figures for the chart."""
        FIGURES.mkdir(exist_ok=True)
        (FIGURES / f"{name}.json").write_bytes(
            msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"
        )


def svg(charts: list[Chart]) -> str:
    """The picture: a group of bars for each chart, each group with a scale of its own."""
    groups: list[str] = []
    top = 8
    for chart in charts:
        groups += drawn(chart, top)
        top += HEAD + len(chart.bars) * (BAR + GAP) + 14
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">',
            f"<title>{escape('; '.join(chart.title for chart in charts))}</title>",
            "<style>",
            "text { font: 14px system-ui, sans-serif; fill: #24292f; } .title { font-weight: 600; }",
            ".ours { fill: #2f6feb; } .other { fill: #8c959f; }",
            "@media (prefers-color-scheme: dark) { text { fill: #e6edf3; } .other { fill: #6e7681; } }",
            "</style>",
            *groups,
            "</svg>\n",
        ]
    )


def drawn(chart: Chart, top: int) -> Iterator[str]:
    """The lines of a group of bars that begins `top` pixels from above."""
    scale = (WIDTH - LABEL - BEHIND) / max(bar.value for bar in chart.bars)
    yield f'<text class="title" x="8" y="{top + 16}">{escape(f"{chart.title} ({chart.date})")}</text>'
    for number, bar in enumerate(chart.bars):
        y = top + HEAD + number * (BAR + GAP)
        kind = "ours" if bar.name.startswith("Antiphon") else "other"
        yield f'<text x="{LABEL - 10}" y="{y + 16}" text-anchor="end">{escape(bar.name)}</text>'
        width = bar.value * scale
        yield f'<rect class="{kind}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3"/>'
        figure = f"{bar.value:,.0f}" if bar.value >= WHOLE else f"{bar.value:.3g}"
        yield f'<text x="{LABEL + width + 8:.1f}" y="{y + 16}">{figure} {escape(chart.unit)}</text>'


def kept() -> list[Chart]:
    """What was measured."""
    return [msgspec.json.decode(path.read_bytes(), type=Chart) for path in sorted(FIGURES.glob("*.json"))]


def main() -> None:
    """Draw what was measured."""
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(svg(kept()))


if __name__ == "__main__":
    main()
