"""The HTML of the report without a browser: its structure, and that nothing in a run folder becomes code."""

import base64
import hashlib
import re
import shutil
import subprocess

import pytest
from browser import Page
from made_up_runs import make_run, make_runs, values_of
from matplotlib.font_manager import fontManager

from attnorm.analysis.colours import COLOURS, chart_css, light_colours, styles_of_arms
from attnorm.analysis.paper import FigureSet, characters_of
from attnorm.analysis.report import page as pages
from attnorm.analysis.report.charts import by_layer, curves
from attnorm.analysis.report.content import collect
from attnorm.analysis.report.curves import Point
from attnorm.analysis.report.page import figures_of_report, html_of, write_report
from attnorm.run.csv_files import NO_EVIDENCE

SMALL = {"examples": 40, "steps": 600}
EVIL = "</script><img src=x onerror=alert(1)><!--"
POINTS = [Point(arm, step, 2.0 + step, 1.0, 3.0, 3) for arm in ("a", "b") for step in (0, 10)]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    make_runs(place, {"softmax": 0, "hnas": 9}, **SMALL)
    make_run(place / "failed", "hnas", 4, state="failed", why="no memory", **SMALL)
    return collect([place])


@pytest.fixture(scope="module")
def text(report):
    return html_of(report)


@pytest.mark.slow
def test_texts_of_a_run_stay_texts(tmp_path):
    hostile = {
        "settings": {"model.note": EVIL, "task.name": EVIL.replace("/", "")},  # the name of a folder
        "summary": {"attention": EVIL, "primary": "rougeL"},
        "outputs": [EVIL] * 40,
    }
    for seed in (1, 2, 3):
        make_run(tmp_path / f"a{seed}", "softmax", seed, **SMALL)
        folder = make_run(tmp_path / f"b{seed}", "hnas", seed, **SMALL, **hostile)
        for name in ("attention.csv", "hybrid_weights.csv"):
            rows = (folder / name).read_text().replace("encoder/0", f'"encoder/{EVIL}"')
            (folder / name).write_text(rows)
    make_run(tmp_path / "c", "dnas", state="failed", why=EVIL, **SMALL, settings={"task.name": EVIL.replace("/", "")})
    text = html_of(collect([tmp_path]))
    page = Page(text)
    assert EVIL not in text and EVIL.replace("<", "&lt;").replace(">", "&gt;") in text
    assert page.of("img") == [] and len(page.of("script")) == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    svgs = " ".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert "onerror" in svgs and "&lt;/script" in svgs  # so that labels of charts were tested as well


def test_the_page_has_landmarks_headings_and_unique_ids(text):
    page = Page(text)
    assert [len(page.of(tag)) for tag in ("main", "header", "nav", "footer", "h1")] == [1] * 5
    assert all(after <= before + 1 for before, after in zip(page.levels, page.levels[1:], strict=False))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [it["href"][1:] for it in page.of("a")]
    named += [it["aria-labelledby"] for _, it in page.elements if "aria-labelledby" in it]
    assert set(named) <= set(ids)
    assert all("scope" in it for it in page.of("th"))


def test_only_the_scripts_of_the_page_may_run_and_nothing_is_loaded_from_elsewhere(text):
    page = Page(text)
    [policy] = [it["content"] for it in page.of("meta") if it.get("http-equiv") == "Content-Security-Policy"]
    assert len(page.scripts) == 1
    for script in page.scripts:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "default-src 'none'" in policy and not re.search("script-src[^;]*unsafe", policy)
    links = [attributes[key] for _, attributes in page.elements for key in ("src", "href") if key in attributes]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert not re.search(r"url\((?!#)", text) and "@import" not in text


def charts_of(report):
    return [chart for page in report.tasks for chart in page.charts]


def test_every_chart_has_a_description_and_its_values_below(report, text):
    page = Page(text)
    figures = [part.partition("</figure>")[0] for part in text.split("<figure id=")[1:]]
    for chart, figure in zip(charts_of(report), figures, strict=True):
        places = [it for it in Page(f"<figure id={figure}").of("div") if it.get("role") == "img"]
        assert {it["aria-label"] for it in places} == {chart.description} and len(places) == 1 + chart.is_wide
        assert Page(figure).rows == chart.values.texts and "<details" in figure
    assert [it["class"] for it in page.of("div") if it.get("class", "").startswith("chart only")] == [
        "chart only-wide", "chart only-narrow"
    ]  # fmt: skip
    [note, *_] = re.findall(r'<p class="note">(Trained with [^<]*)</p>', text)  # of hybrid weights
    assert "hybrid_lr_factor=10." in note and NO_EVIDENCE in note


def test_a_chart_has_the_colours_of_the_mode_of_the_page(text):
    """Also its lines and texts, and each colour is one of the page."""
    svgs = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    used = {*re.findall(r"(?:fill|stroke): ([^;\"]+)", " ".join(svgs))}
    assert {"var(--c2)", "var(--s0)", "var(--line)", "var(--grid)"} <= used
    assert all(colour == "none" or colour.startswith("var(--") for colour in used)


def test_a_chart_is_a_picture_for_a_paper_too(report, tmp_path):
    """A column wide, with embedded fonts, of a version that pdflatex takes, with a label and a legend."""
    figures = figures_of_report(report)
    assert len(figures) == len(charts_of(report))
    figure = figures["hybrid_weights_encoder_hnas"]
    svg, pdf = (figure.drawn_as(suffix) for suffix in ("svg", "pdf"))
    assert pdf[:8] <= b"%PDF-1.5" and b"/MediaBox [ 0 0 237.6 " in pdf and b"/FontFile2" in pdf and b"Date" not in pdf
    [chart] = [chart for chart in charts_of(report) if chart.title == "hybrid weights, encoder, hnas"]
    assert svg == chart.figure(of="gigaword").drawn_as("svg") and b'width="237.6pt"' in svg and b"var(" not in svg
    assert figure.caption.startswith("Hybrid weights, encoder, hnas (gigaword). Lines are means, and bands ")
    assert NO_EVIDENCE in figure.caption and figure.axes[0].get_ylabel() == "hybrid weights,\nencoder, hnas"
    tuning = curves("t1", "accuracy", POINTS, styles_of_arms(["a", "b"]), along="optimizer.lr")
    assert tuning.title == "accuracy against optimizer.lr" and tuning.figure().axes[0].get_ylabel() == "accuracy"
    name = "difference_from_softmax_in_rouge_l_f1"
    FigureSet({name: figures[name]}).save(tmp_path, ["pdf"], column=3.03)
    assert b"/MediaBox [ 0 0 218.16 " in (tmp_path / f"{name}.pdf").read_bytes()
    caption, label = (tmp_path / f"{name}.tex").read_text().splitlines()
    assert caption.startswith(r"\caption{Difference from softmax in ROUGE-L F1 (gigaword). Thin line: ")
    assert label == rf"\label{{fig:{name}}}" and caption.endswith("}")


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("pdflatex") is None, reason="needs pdflatex: apt-get install texlive-latex-recommended"
)
def test_a_paper_of_two_columns_takes_figures_and_tables_as_they_are(report, tmp_path):
    """Without a warning; figures are as wide as a column."""
    drawn = figures_of_report(report)
    names = ("difference_from_softmax_in_rouge_l_f1", "training_loss_nats", "hybrid_weights_encoder_hnas")
    figures = FigureSet({name: drawn[name] for name in names})  # the last one has marks of LaTeX in its caption
    figures.save(tmp_path / "figures", ["pdf"], column=3.03)
    (tmp_path / "result.tex").write_text(report.tasks[0].main.latex)
    floats = "\n".join(
        rf"\begin{{figure}}\includegraphics{{figures/{name}}}\input{{figures/{name}}}\end{{figure}}" for name in figures
    )
    (tmp_path / "paper.tex").write_text(
        r"\documentclass[twocolumn]{article}\usepackage[textwidth=6.3in,columnsep=0.24in]{geometry}"
        r"\usepackage{booktabs,graphicx}\begin{document}\input{result} See Figure~\ref{fig:training_loss_nats}."
        rf"\ref{{tab:final-rouge-l-f}} {floats}\end{{document}}"
    )
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "paper.tex"]
    for _ in range(2):  # for the references
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stdout
    assert "Warning" not in ended.stdout and "Overfull" not in ended.stdout


@pytest.mark.parametrize("label", ["a$b$c", r"$\frac$", "a_b", "\u4e2d\u6587"])
def test_a_label_is_text_whatever_it_contains(label, capsys, recwarn):
    """No formula of matplotlib; in a page, the browser has the letters, and in a file, one line says if no font has."""
    points = [(layer, Point(arm, 0, 1.0, 0.5, 2.0, 3)) for layer in (label, "b") for arm in (label, "b")]
    figure = by_layer("c", label, points, styles_of_arms([label, "b"])).figure()
    svg = figure.in_page("c")
    assert svg.count(f">{label}</text>") >= 2 and "c-" in svg
    figure.drawn_as("pdf")
    assert not recwarn.list
    if not label.isascii():
        installed = any(
            "\u4e2d" in characters_of(font.fname) for font in fontManager.ttflist if "Last" not in font.name
        )
        assert ("no installed font has \u4e2d \u6587" in capsys.readouterr().out) is not installed


def test_a_page_replaces_the_old_one_as_a_whole(report, tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    assert write_report(report, path) == path.stat().st_size
    assert [it.name for it in path.parent.iterdir()] == ["report.html"]
    before = path.read_bytes()
    monkeypatch.setattr(pages, "html_of", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(report, path)
    assert path.read_bytes() == before


def test_the_same_arms_have_the_same_colours_in_any_order_and_the_baseline_is_neutral():
    labels = [f"arm {number}" for number in range(3 * COLOURS)]
    styles = styles_of_arms(labels)
    assert styles[labels[0]] == {"color": light_colours()["--c0"], "linestyle": "-"}
    assert len({str(style) for style in styles.values()}) == len(labels)
    assert len({style["color"] for style in styles_of_arms(labels[:COLOURS]).values()}) == COLOURS
    assert styles_of_arms([labels[0], *labels[:0:-1]]) == styles
    assert styles_of_arms(["hnas", "dnas"])["dnas"] == styles_of_arms(["softmax", "sink", "dnas"])["dnas"]


def test_a_logarithmic_axis_starts_at_a_positive_value():
    points = [Point("a", 0, 1.0, 1.0, 1.0, 1), Point("a", 1, 0.003, 0.0, 0.01, 1), Point("a", 2, 0.0, 0.0, 0.0, 1)]
    chart = curves("c", "mass", points, styles_of_arms(["a"]), log=True)
    [axes] = chart.figure().axes
    assert axes.get_yscale() == "log" and 0 < axes.get_ylim()[0] <= 0.003
    assert "at the bottom" in axes.get_ylabel() and all(axes.get_lines()[0].get_ydata() > 0)
    assert [row["mean"] for row in values_of(chart)] == [1, 0.003, 0]  # the table keeps the value


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def palettes():
    """The colours of each mode by name."""
    style = chart_css()
    for block in re.findall(r"\{([^{}]*--paper:[^{}]*)\}", style):
        found = re.findall(r"--([\w-]+): #([0-9a-f]{3,6});", block)
        yield {name: f"#{value if len(value) == 6 else ''.join(2 * it for it in value)}" for name, value in found}


def test_texts_and_lines_stand_out_from_the_paper_in_both_modes():
    found = list(palettes())
    assert len(found) == 3 and found[1] == found[2]  # light, and dark by the system or by the button
    for colours in found:
        for name in ("ink", "ink-soft", "accent", "good"):  # WCAG 1.4.3
            assert contrast(colours[name], colours["paper"]) >= 4.5, name
            assert name != "ink-soft" or contrast(colours[name], colours["raised"]) >= 4.5
        assert contrast(colours["ink"], colours["mark"]) >= 4.5
        for name in [f"c{number}" for number in range(COLOURS)]:  # WCAG 1.4.11
            assert contrast(colours[name], colours["paper"]) >= 3, name
