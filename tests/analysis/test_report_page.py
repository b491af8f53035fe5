"""The HTML of the report without a browser: its structure, and that nothing in a run folder becomes code."""

import base64
import hashlib
import json
import re
import sys

import altair
import pytest
from browser import Page
from made_up_runs import make_run, make_runs

from attnorm.analysis.report import page as pages
from attnorm.analysis.report.charts import COLOURS, by_layer, curves, styles_of_arms, styles_of_layers
from attnorm.analysis.report.content import collect
from attnorm.analysis.report.curves import Point
from attnorm.analysis.report.page import html_of, json_of, write_report
from attnorm.analysis.report.pictures import ChartPicture, pictures_of
from attnorm.analysis.report.style import light_colours
from attnorm.cli.report import check_installed
from attnorm.errors import UserError
from attnorm.run.tables import NO_EVIDENCE

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
    assert page.of("img") == [] and len(page.of("script")) == 4
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    figures = json.loads(page.scripts[0])
    assert EVIL in json.dumps(figures)  # so that the data of charts were tested as well


def test_json_in_a_script_cannot_end_it():
    content = {EVIL: [EVIL, "\u2028\u2029&<>"]}
    text = json_of(content)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == content
    with pytest.raises(ValueError, match="JSON"):
        json_of({"a": float("nan")})


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
    code = [script for it, script in zip(page.of("script"), page.scripts, strict=True) if "type" not in it]
    assert len(code) == 2
    for script in code:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "default-src 'none'" in policy and "script-src 'unsafe-inline'" not in policy
    links = [attributes[key] for _, attributes in page.elements for key in ("src", "href") if key in attributes]
    assert links and all(link.startswith(("#", "data:")) for link in links)
    assert "url(" not in text and "@import" not in text


def test_every_chart_has_a_description_and_a_table(report, text):
    page, figures = Page(text), [it.chart for it in pictures_of(report).values()]
    charts = {it["data-chart"]: it for tag, it in page.elements if "data-chart" in it}
    tables = [it["data-table"] for it in page.of("details") if "data-table" in it]
    assert set(charts) == set(tables) == {figure.name for figure in figures}
    for figure in figures:
        assert charts[figure.name]["role"] == "img" and charts[figure.name]["aria-label"] == figure.description
        assert set(figure.fields) <= set(figure.data["rows"][0])
    [note, *_] = re.findall(r'<p class="note">(Trained with [^<]*)</p>', text)  # of hybrid weights
    assert "hybrid_lr_factor=10." in note and NO_EVIDENCE in note


def test_a_chart_is_a_picture_for_a_paper_too(report):
    """A column wide, with embedded fonts, a label, a legend and the colours of the page."""
    pictures = pictures_of(report)
    picture = pictures["hybrid_weights_encoder_hnas"]
    svg, pdf = (picture.drawn_as(suffix) for suffix in ("svg", "pdf"))
    assert b"/MediaBox [0 0 237.6 " in pdf and b"/FontFile2" in pdf and b"Date" not in pdf
    assert svg == picture.drawn_as("svg")
    text = svg.decode()
    assert 'width="237.6pt"' in text and "var(" not in text and light_colours()["--s0"] in text
    assert "layer 1" in text and "hybrid weights" in text
    assert picture.caption.startswith("Hybrid weights, encoder, hnas (gigaword). Lines are means, and bands ")
    assert NO_EVIDENCE in picture.caption and len(pictures) == len({it.chart.name for it in pictures.values()})
    tuning = curves("t1", "accuracy", POINTS, styles_of_arms(["a", "b"]), along="optimizer.lr")
    axes = [layer["encoding"]["y"]["title"] for layer in ChartPicture(tuning, "vqa").spec()["layer"]]
    assert tuning.title == "accuracy against optimizer.lr" and axes == [["accuracy"]] * 3


def test_a_page_replaces_the_old_one_as_a_whole(report, tmp_path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    assert write_report(report, path) == path.stat().st_size
    assert [it.name for it in path.parent.iterdir()] == ["report.html"]
    before = path.read_bytes()
    monkeypatch.setattr(pages, "html_of", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(report, path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("library", ["altair", "vl_convert", "jinja2"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(library, monkeypatch):
    check_installed()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        UserError, match=rf"needs the package {library}; install it with: pip install altair vl-convert-python jinja2"
    ):
        check_installed()


def charts():
    arms, layers = styles_of_arms(["a", "b"]), styles_of_layers(["a", "b"])
    yield curves("c1", "loss", POINTS, arms)
    yield curves("d1", "loss, difference from a", POINTS, arms, from_zero=True)
    yield curves("c2", "mass", POINTS, layers, "layer", log=True)
    yield by_layer("c3", "entropy", [("encoder/0", POINTS[0]), ("encoder/0", POINTS[2])], arms)


@pytest.mark.slow
@pytest.mark.parametrize("figure", list(charts()), ids=lambda figure: figure.name)
def test_a_specification_is_valid_and_names_only_fields_of_its_data(figure):
    import vl_convert

    spec = {**figure.spec, "datasets": figure.data}
    altair.Chart.from_dict(spec, validate=True)
    compiled = vl_convert.vegalite_to_vega(spec)
    assert any(mark["type"] in ("line", "group", "symbol") for mark in compiled["marks"])
    fields = {it["field"] for layer in figure.spec["layer"] for it in layer["encoding"].values() if "field" in it}
    assert fields and fields <= {name for rows in figure.data.values() for name in rows[0]}


def test_a_name_of_a_run_is_no_field_and_no_expression():
    styles = styles_of_arms([EVIL, "datum['x']"])
    points = [Point(label, 1, 1.0, 1.0, 1.0, 1) for label in styles]
    figure = curves("c", EVIL, points, styles)
    places = [
        (key, value)
        for layer in figure.spec["layer"]
        for channel in layer["encoding"].values()
        for key, value in (channel.items() if isinstance(channel, dict) else ())
        if key in ("field", "expr", "signal", "href", "format")
    ]
    assert places and not any(EVIL in str(value) or "datum" in str(value) for _, value in places)


def test_arms_differ_in_colour_or_dash_and_the_baseline_is_neutral():
    styles = list(styles_of_arms([f"arm {number}" for number in range(3 * COLOURS)]).values())
    assert styles[0].colour == "var(--c0)"
    assert len({(style.colour, tuple(style.dash)) for style in styles}) == len(styles)


def test_a_logarithmic_axis_starts_at_a_positive_value():
    points = [Point("a", 0, 1.0, 1.0, 1.0, 1), Point("a", 1, 0.003, 0.0, 0.01, 1), Point("a", 2, 0.0, 0.0, 0.0, 1)]
    figure = curves("c", "mass", points, styles_of_arms(["a"]), log=True)
    scale = figure.spec["layer"][0]["encoding"]["y"]["scale"]
    assert scale["type"] == "log" and 0 < scale["domainMin"] <= 0.003
    assert figure.data["rows"][2]["mean"] == 0  # the table keeps the value


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def palettes():
    """The colours of each mode by name."""
    style = pages.asset("style.css")
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
