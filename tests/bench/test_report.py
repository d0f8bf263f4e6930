"""The report: one page, whole in itself, that shows what was measured and says what was not."""

import copy
import html
import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from pav2gen.bench import commands
from pav2gen.bench.measuring import measurement_file as documents
from pav2gen.bench.reporting.measurement_rows import measurements
from pav2gen.bench.reporting.report import contestants, highlights, plans_by_key, report, shares
from pav2gen.cli import main
from pav2gen.errors import UserError
from pav2gen.family.target import TARGETS
from pav2gen.plan.prediction import Predictor, predictable
from pav2gen.reading.selection import load

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

#: The figures of a page with measurements of the small spec: two keys with two lengths each.
FIGURES = {
    "family-table", "time-0", "time-1", "share-bars", "workspace-0", "bytes-bars", "prediction-1", "prediction-16",
    "replay-1", "replay-16", "kernel-table",
}  # fmt: skip


@pytest.fixture
def bench_file(document, tmp_path):
    path = tmp_path / "bench.json"
    documents.write(path, document)
    return path


@pytest.fixture
def page(selection, bench_file):
    return report(selection, [bench_file])


class Page(html.parser.HTMLParser):
    """What a page holds: tags that are never closed, ids, what is loaded, and the text of each kind of element."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.loaded, self.links, self.texts = [], [], [], [], {}
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            self.ids += [value] * (name == "id")
            self.links += [value] * (tag == "a" and name == "href")
            self.loaded += [value] * (name == "src" or (tag == "link" and name == "href"))

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def test_the_page_is_well_formed_and_whole_in_itself(page):
    found = Page(page)
    assert len(found.ids) == len(set(found.ids)) and set(found.ids) >= FIGURES
    assert found.loaded == ["data:,"] and "<script" not in page and "@import" not in page
    assert all(link[0] == "#" and link[1:] in found.ids for link in found.links)
    assert re.findall(r"https?://", re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)) == []
    assert "default-src 'none'" in page


def test_every_drawing_has_a_name_and_a_description(page):
    for drawing in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ids = re.search(r'role="img" .*aria-labelledby="(\S+) (\S+)"', drawing).groups()
        for each in ids:
            assert re.search(rf'id="{each}">[^<]{{10,}}<', drawing)


def test_the_floor_and_every_line_are_drawn(page):
    (chart,) = re.findall(r'<figure id="time-0">.*?</figure>', page, flags=re.DOTALL)
    assert set(re.findall(r'<g class="([a-z]+)">\n', chart)) == {"seed", "sdpa", "torch", "floor"}
    for name in ("plain algorithm", "gather + SDPA", "pav2gen, PyTorch", "floor: bytes, once"):
        assert f">{name}</text>" in chart
    assert "float16" in chart and "2 sequences, cpu" in chart


def test_lines_are_what_was_measured(document):
    points = measurements([document])[:2]
    lines = {each.style: each.points for each in contestants(points, lambda entry: entry.get("median_ms"))}
    for place, point in enumerate(points):
        by_name = {entry["name"]: entry for entry in point.point["contestants"]}
        assert lines["seed"][place] == (point.seq_len, by_name["seed"]["median_ms"])
        assert lines["torch"][place] == (point.seq_len, point.chosen("torch")["median_ms"])
        assert point.chosen("torch")["symbol"] == point.point["chosen"]["torch"]


def altered(document, change):
    """Measurements of a document after ``change`` was done to each of its points."""
    found = copy.deepcopy(document)
    for point in found["points"]:
        change(point, {entry["name"]: entry for entry in point["contestants"]})
    return measurements([found])


def test_the_best_ratio_and_the_share_of_the_floor(document):
    def change(point, by_name):
        point.update(io_bytes=10**9, copy_gbps=100.0)  # a floor of 10 ms
        for entry in point["contestants"]:
            entry.update(median_ms=40.0 if "symbol" in entry else 400.0)
        if point["seq_len"] == 300 and point["key"]["dtype"] == "float16":
            by_name["seed"].update(median_ms=3000.0)

    found = altered(document, change)
    assert [figure for figure, _ in highlights(found)] == [
        "75 times as fast as the plain algorithm",
        "10 times as fast as gather + SDPA",
        "10 times as fast as vLLM's operator",
    ]
    assert "pages of 16, float16, 2 sequences, 300 tokens, on cpu" in highlights(found)[0][1]
    texts = [bar.text for bar in shares(found).bars]
    assert texts[:2] == ["25 % · pav2gen, PyTorch", "2.5 % · vLLM's operator"]
    assert "0.3 % · plain algorithm" in texts


def test_figures_of_another_spec_are_refused_and_of_another_version_marked(selection, document, tmp_path):
    path = tmp_path / "other.json"
    for changes, words in (
        ({"name": "large"}, "has figures of the spec large, but the report is about tiny"),
        ({"sha256": "0"}, ""),
    ):
        documents.write(path, {**document, "spec": {**document["spec"], **changes}})
        if words:
            with pytest.raises(UserError, match=words):
                report(selection, [path])
        else:
            assert "were measured from an earlier version of tiny.yaml" in report(selection, [path])


def test_without_measurements_it_shows_the_plans_and_says_so(selection):
    page = report(selection, [])
    assert 'id="time' not in page and "Nothing was measured for this page" in page
    assert set(Page(page).ids) >= {"family-table", "bytes-bars", "prediction-1", "kernel-table"}


def test_text_from_outside_is_escaped(selection, document, tmp_path):
    path = tmp_path / "bench.json"
    documents.write(path, {**document, "command": "<script>alert(1)</script>", "notes": ["<b>&"]})
    page = report(selection, [path])
    assert "<script" not in page and "&lt;script&gt;alert(1)" in page and "&lt;b&gt;&amp;" in page
    assert "a small family &lt;for&gt; tests" in page


def test_every_source_can_be_opened(page, selection):
    sources = [
        html.unescape(text) for text in re.findall(r"<pre tabindex=\"0\"><code>(.*?)</code>", page, flags=re.DOTALL)
    ]
    assert len(sources) == 2 * len(selection.kernels)
    assert (
        sum("def paged_attention(" in text for text in sources) == 3
        and sum("pav2_args.h" in text for text in sources) == 3
    )
    for variant, _ in selection.kernels:
        assert f'<a href="#source-{variant.slug}">' in page and f"<code>{variant.cuda_path}</code>" in page


def test_extend_kernels_have_a_table_and_sources():
    (chosen,) = load([Path(__file__).resolve().parents[2] / "specs" / "own_attention.yaml"])
    page = report(chosen, [])
    extended = [each for each in chosen.built if each.v.operator == "extend"]
    assert 'id="extend-table"' in page and len(extended) == 2
    for v, p in extended:
        assert f'<a href="#source-{v.slug}">' in page and f"<code>{v.torch_path}</code>" in page
        assert f"<td>{p.figures['cuda_query_len']}</td></tr>" in page


def test_a_prediction_is_called_one(page):
    for figure in re.findall(r'<figure id="(?:prediction|replay)-\d+">.*?</figure>', page, flags=re.DOTALL):
        assert "prediction, not measured</span>" in figure and "(prediction)</title>" in figure
    assert page.count("(prediction)</title>") == 4
    assert "takes 400.0 ns to start and end, and 600.0 ns to load" in page and "unknown, assumed: 400 ns" in page
    assert "No kernel was timed on Iluvatar BI-V100" in page and "16 multiprocessors share 584.2 GB/s" in page


def test_the_bytes_are_those_of_the_plans(page, selection):
    (figure,) = re.findall(r'<figure class="wide" id="bytes-bars">.*?</figure>', page, flags=re.DOTALL)
    once = 2 * 2048 * 2 * 64  # K and V of 2,048 tokens and 2 KV heads of 64
    for bytes_once in (2 * once, 4 * once):
        assert f"{bytes_once >> 20} MiB · pav2gen" in figure
        assert f"{2 * bytes_once >> 20} MiB · one block for each query head" in figure


def with_row(plan, **figures):
    """A plan that differs in the figures of its row."""
    return types.SimpleNamespace(variant=plan.variant, row=lambda: plan.row()._replace(**figures))


def test_the_prediction_is_the_wave_model_in_bytes(selection):
    plans = next(iter(plans_by_key(selection.kernels).values()))
    rank, target = selection.spec.model.ranks()[0], TARGETS["bi-v100"]
    plain = {"cuda": "k.cu", "resident_blocks": 1, "saturating_blocks": 1, "blocks_per_group": 1}

    def ms(num_seqs, seq_len, **figures):
        return Predictor([with_row(plan, **plain, **figures) for plan in plans], rank, target).ms(num_seqs, seq_len)

    bytes_of_token = 2 * 64 * 2
    token_ms = bytes_of_token / (584.2e6 / 16)  # of one multiprocessor
    predictor = Predictor(plans, rank, target)
    assert predictor.floor_ms(3, 1000) == pytest.approx(3 * 1000 * 2 * bytes_of_token / 584.2e6)
    # 16 multiprocessors: 8 partitions of 128 tokens for each of 2 KV heads are one wave, then the reduction
    assert ms(1, 1024) == pytest.approx(2 * 0.0062 + (128 + 32 + 80) * token_ms)
    assert all(predictor.ms(s, n) > predictor.floor_ms(s, n) for s in (1, 7, 64) for n in (1, 100, 4096, 100_000))
    plain["blocks_per_group"] = 8  # 128 blocks of the smallest partitions are eight waves of 16
    plans = plans[-1:]
    split, plain["blocks_per_group"] = ms(1, 1024), 1
    assert split - ms(1, 1024) == pytest.approx(7 * (plans[0].variant.partition_size + 32) * token_ms)
    # A graph for 64K tokens serves 2 KV heads. One token is read, and all partitions but the first are empty.
    graph = dict(plain, blocks_per_group=1, empty_tokens=300)
    blocks = 2 * (65536 // plans[0].variant.partition_size) - 2  # on 16 multiprocessors, beside 2 blocks of one token
    replay = Predictor([with_row(plans[0], **graph)], rank, target).ms(1, 1, 65536)
    assert replay == pytest.approx(2 * 0.0062 + (-(-blocks // 16) * 300 + 80) * token_ms)
    assert predictable(target) and not predictable(TARGETS["mr-v100"])


def test_a_target_without_figures_has_no_prediction(spec_path):
    spec_path.write_text(spec_path.read_text().replace("bi-v100", "mr-v100"))
    assert (
        "prediction" not in re.sub(r"<style.*?</style>", "", report(load([spec_path])[0], []), flags=re.DOTALL).lower()
    )


def test_a_family_in_pytorch_alone(spec_path):
    spec_path.write_text(spec_path.read_text().replace("[torch, cuda]", "[torch]"))
    page = report(load([spec_path])[0], [])
    assert 'id="bytes-bars"' not in page and ">threads<" not in page and ">CUDA<" not in page


def test_what_is_left_out_has_its_reason(page):
    (figure,) = re.findall(r'id="family-table">.*?</figure>', page, flags=re.DOTALL)
    assert figure.count("<sup>1</sup>") == 1 and "<li>one is enough</li>" in figure
    assert figure.count(">PyTorch<") == 3 == figure.count(">CUDA<")


def test_the_command(spec_path, bench_file):
    result = CliRunner().invoke(commands.report, [str(spec_path), "--bench", str(bench_file), "--out", "page.html"])
    assert result.exit_code == 0 and result.output == "page.html: 3 kernels, 1 bench file\n"
    assert Path("page.html").read_text().startswith("<!DOCTYPE html>")
    result = CliRunner().invoke(commands.report, [str(spec_path)])
    assert result.output == "tiny.html: 3 kernels, 0 bench files\n" and Path("tiny.html").exists()


def test_a_report_needs_no_torch(spec_path):
    code = "import sys; sys.modules['torch'] = None; from pav2gen.bench.commands import report; report(sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", code, str(spec_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "tiny.html" in done.stdout, done.stderr


def contrast(one, other):
    """The contrast ratio of two colours, by WCAG 2."""
    lights = []
    for colour in (one, other):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_its_ground(page, scheme):
    blocks = re.findall(r":root \{(.*?)\}", page, flags=re.DOTALL)
    colours = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", blocks[scheme]))
    for name in ("ink", "soft", "blue", "teal", "orange", "grey", "purple", "pink", "floor"):
        for ground in ("page", "card"):
            assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)
    assert contrast(colours["warn"], colours["warn-page"]) >= 4.5


#: Put at the end of a page under test: it asks the browser where each figure stands, and what it did not load.
PROBE = """<script>
const boxes = [...document.querySelectorAll("figure")].map(figure => {
  const inside = figure.querySelector("svg, table").getBoundingClientRect();
  const texts = [...figure.querySelectorAll("svg text")].map(text => text.getBoundingClientRect());
  const frame = figure.getBoundingClientRect();
  const within = texts.every(text => text.left >= frame.left - 1 && text.right <= frame.right + 1);
  return [figure.id, inside.width, inside.height, within];
});
document.body.dataset.probe = JSON.stringify({
  boxes, wide: document.documentElement.scrollWidth > innerWidth,
  dark: getComputedStyle(document.body).backgroundColor,
});
</script></body>"""
QUIET = "no-first-run disable-gpu disable-quic disable-background-networking disable-component-update disable-sync"
ARGUMENTS = ("--headless", "--no-sandbox", "--enable-logging=stderr", "--virtual-time-budget=1000")


def browse(page, tmp_path, *arguments):
    """What a browser makes of a page: the probe's findings, and the lines of its console."""
    file = tmp_path / "probed.html"
    allowed = page.replace("style-src 'unsafe-inline'", "style-src 'unsafe-inline'; script-src 'unsafe-inline'")
    file.write_text(allowed.replace("</body>", PROBE))
    quiet = [f"--{word}" for word in QUIET.split()]
    command = [CHROMIUM, *ARGUMENTS, *quiet, *arguments, f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    done = subprocess.run([*command, file.as_uri()], capture_output=True, text=True, timeout=120)
    (found,) = re.findall(r'data-probe="([^"]*)"', done.stdout)
    return json.loads(html.unescape(found)), [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="no chromium to look at the page with")
@pytest.mark.parametrize(
    "arguments, ground",
    [
        (["--window-size=1280,900"], "rgb(255, 255, 255)"),
        (["--window-size=1280,900", "--blink-settings=preferredColorScheme=0"], "rgb(14, 18, 23)"),
        (["--window-size=500,900"], "rgb(255, 255, 255)"),
    ],
    ids=["light", "dark", "narrow"],
)
def test_a_browser_shows_every_figure_and_has_nothing_to_say(page, tmp_path, arguments, ground):
    found, console = browse(page, tmp_path, *arguments)
    assert console == []
    assert {name for name, *_ in found["boxes"]} == FIGURES
    assert all(width > 200 and height > 50 and inside for _, width, height, inside in found["boxes"]), found["boxes"]
    assert not found["wide"], "the page scrolls sideways"
    assert found["dark"] == ground


@pytest.mark.skipif(not CHROMIUM and not os.environ.get("CI"), reason="no chromium to look at the page with")
def test_the_browser_would_tell_of_an_error(page, tmp_path):
    _, console = browse(page.replace("<main", '<img src="missing.png"><main'), tmp_path)
    assert console and "missing.png" in console[0]


@pytest.mark.parametrize("over", ["specs/tiny.yaml", "bench.json"])
def test_the_page_never_replaces_what_it_is_made_of(spec_path, document, over):
    Path("bench.json").write_text(documents.rendered(document))
    before = Path(over).read_bytes()
    result = CliRunner().invoke(main, ["report", str(spec_path), "--bench", "bench.json", "--out", over])
    assert result.exit_code == 2 and f"{over}: is an input of this command" in result.stderr
    assert Path(over).read_bytes() == before


def test_the_page_replaces_a_page_alone(spec_path, document):
    for path, content in (("other.json", documents.rendered(document)), ("notes.html", "<p>mine")):
        Path(path).write_text(content)
        result = CliRunner().invoke(main, ["report", str(spec_path), "--out", path])
        assert result.exit_code == 2 and result.stderr.endswith(
            f"{path}: exists already and is not a page of HTML; write to another file\n"
        )
        assert Path(path).read_text() == content
    for _ in range(2):
        assert CliRunner().invoke(main, ["report", str(spec_path), "--out", "page.html"]).exit_code == 0


def test_figures_replace_figures_alone(spec_path, document):
    Path("notes.json").write_text("{}")
    result = CliRunner().invoke(main, ["bench", str(spec_path), "--json", "notes.json"])
    assert result.exit_code == 2 and "is not a document of pav2gen bench" in result.stderr
    Path("old.json").write_text(documents.rendered(document))
    documents.check_writable(Path("old.json"))


def test_figures_never_replace_the_spec(spec_path):
    before = spec_path.read_bytes()
    result = CliRunner().invoke(main, ["bench", str(spec_path), "--json", str(spec_path)])
    assert result.exit_code == 2 and spec_path.read_bytes() == before
