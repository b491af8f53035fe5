"""The page of a comparison on probes: it has every arm, cell and size, and asks nobody for anything."""

import itertools
import re
from importlib.metadata import version

import numpy as np
import pytest
from browser import Page

from attnorm.analysis.paper import PAGE
from attnorm.analysis.probes.page import at_an_edge, colour_of, entry_of, probe_sentences, write_page
from attnorm.analysis.probes.probe_charts import BLACK, WHITE, doses_chart, map_chart, rates_chart, training_chart
from attnorm.analysis.probes.verdicts import NOT_FINITE, CellResults, Row, results_of_cell, write_csv
from attnorm.probes.arm import Arm
from attnorm.probes.ensemble import batches
from attnorm.probes.experiment import CellOutcome
from attnorm.probes.jobs import Cell, ProbeResult

LABELS = ["softmax", "dnas", "probe_parts.Scaled", "sink", "uniform"]
ARMS = [Arm(label, {"factor": 2.0} if "Scaled" in label else {}) for label in LABELS]
HUBS = [Cell("hub", "0.9"), Cell("hub", "0")]
CELLS = [*HUBS, Cell("recall"), Cell("probe_parts.Tiny"), Cell("rank", "depth 1"), Cell("max")]
MEANS = {"softmax": 0.5, "dnas": 0.7, "probe_parts.Scaled": 0.4, "sink": 0.5, "uniform": 0.1}
HOSTILE = "<script>alert('x')</script> & \"more\""


def results(cell, means=MEANS, failed=()):
    """Made-up results of a cell, in which the examples of all arms vary alike."""
    tests, sizes = {}, cell.probe().test_sizes
    for number, (arm, mean) in enumerate(means.items()):
        if Arm(arm, {"factor": 2.0} if "Scaled" in arm else {}).unfit(cell.probe().site) or arm in failed:
            continue
        rng = np.random.default_rng(number)
        tables = {size: mean + rng.normal(0, 0.02, (5, 20)) for size in sizes}
        tests[arm] = ProbeResult(np.zeros((5, 10)), tables, {}, {"entropy": np.full(5, 0.5)}, 0, 5.0)
    tuning = {} if not cell.probe().updates else {arm: {1e-3: np.full(2, 0.3), 1e-2: np.full(2, 0.4)} for arm in tests}
    found = CellOutcome(cell, tuning, dict.fromkeys(tests, 0.01), tests, dict(failed), seconds=30.0)
    return results_of_cell(found, ARMS, (1e-3, 1e-2))


@pytest.fixture(scope="module")
def cells():
    return [results(cell, failed={"sink": HOSTILE} if cell.name == "hub" else {}) for cell in CELLS]


@pytest.fixture(scope="module")
def html(cells, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "new"
    path = write_page(cells, ARMS, folder / "probe.html", HOSTILE, HOSTILE)
    assert path == folder / "probe.html" and [it.name for it in folder.iterdir()] == ["probe.html"]
    return path.read_text()


def tables(html):
    """The rows of the table of each probe, those of the sizes first."""
    found = [Page(part.partition("</table>")[0]).rows for part in html.split("<table>")[1:]]
    return {rows[0][1].split()[0]: rows[1:] for rows in found}


def test_the_page_has_every_arm_cell_and_size(html):
    """Also the null arms; an arm without any result at a probe has no row there."""
    page = Page(html)
    for name, of in itertools.groupby(CELLS, lambda cell: cell.short):
        rows = tables(html)[name]
        sizes = [str(size) for cell in of for size in cell.probe().test_sizes]
        assert rows[0] == ["size", *sizes] and all(len(row) == len(rows[0]) for row in rows)
        missing = {"hub": {"sink"}, "recall": {"dnas"}}.get(name, set())
        assert {row[0] for row in rows[1:]} == {arm.short for arm in ARMS} - missing
    for cell in CELLS:
        assert f"{cell.title} ({cell.probe().site})" in page.text
        assert cell.probe().prediction in page.text and (cell.probe().source or "own") in page.text


def test_the_page_says_what_was_typed_describes_each_probe_once_and_lists_why_something_is_missing(html):
    """Notes, errors of normalizers, docstrings and predictions of probes are text, not elements."""
    text = Page(html).text
    assert text.endswith(f"with attnorm {version('attnorm')} by {HOSTILE}")
    [docstring] = {" ".join(cell.probe().__doc__.replace("`", "").split()) for cell in CELLS if cell.name == "hub"}
    assert text.count(docstring) == 1 and sum(cell.name == "hub" for cell in CELLS) == 2
    assert "dnas at recall: each of its rows depends on all queries" in text
    assert f"sink at hub 0.9, hub 0: {HOSTILE}" in text
    assert "alert" in html and "<script" not in html and "<they>" not in html and "no <difference>" not in html
    assert "& <they> are few" in text and "no <difference>" in text


def test_the_dose_of_a_probe_of_ones_own_is_drawn_if_it_is_a_number():
    doses = [results(Cell("probe_parts.Dosed", dose)) for dose in ("1", "2.5", "-1")]
    figure = doses_chart(doses, ARMS[:2]).figure(PAGE)
    [axes] = [it for it in figure.axes if it.get_title()]
    assert (axes.get_title(), axes.get_xlabel()) == ("Dosed", "noise of the queries")
    assert [*axes.get_lines()[-1].get_xdata()] == [-1, 1, 2.5]
    assert doses_chart([results(Cell("probe_parts.Dosed", "none"))] * 2, ARMS[:2]) is None


def test_a_field_has_the_score_and_the_difference_of_its_cell(html, cells):
    for name, of in itertools.groupby(cells, lambda cell: cell.outcome.cell.short):
        columns = [(cell, size) for cell in of for size in cell.outcome.cell.probe().test_sizes]
        for arm, *entries in tables(html)[name][1:]:
            for (cell, size), entry in zip(columns, entries, strict=True):
                [found] = [row for row in cell.rows if row.arm == arm and row.size == size]
                expected = f"{found.score:.3f}"
                if arm not in ("softmax", "uniform"):
                    expected += f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
                    expected += "*" * (found.verdict == "shown")
                assert entry == expected


def test_the_page_asks_nobody_for_anything(html):
    assert "default-src 'none'" in html
    page = Page(html)
    for tag, attributes in page.elements:
        assert tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on"), name
            if name in ("src", "href", "xlink:href", "action", "data"):
                assert value.startswith("#"), value
    assert not re.search(r"url\((?!#)|@import", html)
    assert "<?xml" not in html and "<!DOCTYPE svg" not in html


def test_sizes_that_training_does_not_draw_are_marked(html):
    probes = [cell.probe() for cell in CELLS]
    beyond = [size not in (*probe.train_sizes, probe.size) for probe in probes for size in probe.test_sizes]
    assert any(probe.train_sizes for probe in probes), "such as max, which is trained with 16 items too"
    assert re.findall(r"<th( class=\"beyond\")?>\d+</th>", html) == [' class="beyond"' * it for it in beyond]


def test_a_page_without_doses_or_tuning_has_no_such_figures(tmp_path, html):
    assert html.count("<figure") == 4
    only = [results(Cell("rank", "depth 1"), {"softmax": 0.5, "dnas": 0.6})]
    text = write_page(only, ARMS, tmp_path / "probe.html", "attnorm probe").read_text()
    assert "learning rate nan" not in text
    assert text.count("<figure") == 1 and "null arms" in Page(text).text and 'class="warning"' not in text
    assert "recall" not in text and "Causal" not in text, "nothing is said of probes that are not shown"
    nothing = [results(Cell("hub", "0.9"), failed=dict.fromkeys(LABELS[:-1], "it failed"))]
    text = write_page(nothing, ARMS, tmp_path / "probe.html", "attnorm probe").read_text()
    assert "softmax at hub 0.9: it failed" in Page(text).text


def row(cell, arm, difference, verdict, size=None, **others):
    probe = cell.probe()
    shared = {"probe": cell.short, "dose": cell.dose, "site": "cross", "metric": "accuracy", "seeds": 5, "rate": 0.01}
    bounds = {"spread": 0.01, "null": 0.1, "ceiling": 0.9, "normalized": 0.5, "score": 0.5}
    size = size or probe.size
    numbers = {"difference": difference, "verdict": verdict, "low": difference - 0.01, "high": difference + 0.01}
    return Row(**shared, **bounds, size=size, trained=size == probe.size, arm=arm, **numbers, **others)


def test_a_sentence_per_arm_says_where_it_wins_and_loses():
    hub, skew, match = Cell("hub", "0.9"), Cell("skew", "0.8"), Cell("match")
    rows = {
        hub: [row(hub, "dnas", 0.2, "shown"), row(hub, "dnas", -0.9, "shown", 16), row(hub, "hnas", 0.1, "shown")],
        skew: [row(skew, "dnas", -0.4, "shown"), row(skew, "sink", -0.1, "depends on the rate")],
        match: [row(match, "dnas", 0.3, "not shown"), row(match, "sparsemax", -0.05, "shown")],
    }
    rows[match].append(row(match, "hnas", float("nan"), "scores that are not finite"))
    cells = [CellResults(CellOutcome(cell), of, {}, {}) for cell, of in rows.items()]
    arms = [Arm(label) for label in ("softmax", "dnas", "hnas", "sink", "sparsemax", "entmax")]
    assert probe_sentences(cells, arms) == [
        "dnas: above softmax at hub 0.9 (+0.200); below it at skew 0.8 (-0.400); "
        "no difference is shown in 1 of 3 cells.",
        "hnas: above softmax at hub 0.9 (+0.100).",
        "sink: no difference is shown in 1 of 1 cells.",
        "sparsemax: below softmax at match (-0.050).",
        "entmax: not compared.",
    ]


def test_best_rates_at_the_edge_of_the_grid_are_named_if_the_next_one_is_worse(tmp_path):
    hub, match = Cell("hub", "0.9"), Cell("match")
    curves = {
        "largest": {0.01: 0.3, 0.03: 0.45, 0.09: 0.5},
        "smallest": {0.01: 0.5, 0.03: 0.45, 0.09: 0.3},
        "inside": {0.01: 0.3, 0.03: 0.5, 0.09: 0.49},
        "equal": {0.01: 0.5, 0.03: 0.5, 0.09: 0.2},
        "two": {0.01: 0.1, 0.03: 0.5},
        "overflowed": {0.01: float("-inf"), 0.03: float("-inf"), 0.09: float("-inf")},
    }
    rates = {arm: max(curve, key=curve.get) for arm, curve in curves.items()}
    cells = [CellResults(CellOutcome(cell, rate=rates), [], curves, {}) for cell in (hub, match)]
    assert at_an_edge(cells) == [
        "largest at hub 0.9 (0.09, +0.050), match (0.09, +0.050)",
        "smallest at hub 0.9 (0.01, +0.050), match (0.01, +0.050)",
    ]
    cell = results(hub)
    cell.outcome.rate["dnas"] = 0.09
    cell.curves["dnas"][0.09] = 0.6
    text = Page(write_page([cell], ARMS, tmp_path / "probe.html", "attnorm probe").read_text()).text
    assert "smallest or the largest of those tried" in text and "dnas at hub 0.9 (0.09, +0.200)" in text


def test_a_legend_names_each_line_once_and_hides_none(cells):
    """sink has failed at the hub, the only probe with several doses here; Scaled has been run."""
    for draw, expected in (
        (doses_chart, ["softmax", "dnas", "Scaled"]),
        (rates_chart, ["softmax", "dnas", "Scaled", "sink"]),
        (training_chart, ["softmax", "dnas", "Scaled", "sink"]),
    ):
        figure = draw(cells, ARMS[:-1]).figure(PAGE)
        figure.draw_without_rendering()
        [legend] = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == expected
        of_legend = legend.get_window_extent()
        assert not any(of_legend.overlaps(axes.get_tightbbox()) for axes in figure.axes if axes.get_visible())


def test_numbers_of_the_map_are_black_where_they_are_discoveries():
    hub = Cell("hub", "0.9")
    rows = [
        row(hub, "dnas", 0.2, "not shown", discovery=0.04),
        row(hub, "hnas", 0.1, "shown", discovery=0.06),
        row(hub, "sparsemax", -0.004, "not shown", discovery=0.9),
        row(hub, "entmax", -0.5, "shown", discovery=0.001),
        row(hub, "sink", -0.3, "depends on the rate", discovery=0.01, flips="0.01"),
    ]
    arms = [Arm(label) for label in ("softmax", "dnas", "hnas", "sink", "sparsemax", "entmax")]
    axes = map_chart([CellResults(CellOutcome(hub), rows, {}, {})], arms).figure().axes[0]
    assert [(it.get_text(), it.get_color()) for it in axes.texts] == [
        ("+20", BLACK), ("+10", "#777777"), ("-30", "#cccccc"), ("0", "#777777"), ("-50", WHITE)
    ]  # fmt: skip


def test_fields_are_coloured_between_the_null_arms_and_the_ceiling_and_say_so_in_words():
    def blue(share):
        red, _, blue = (int(colour_of(share)[i : i + 2], 16) for i in (1, 3, 5))
        return blue - red

    assert blue(0) < blue(0.3) < blue(0.7) < blue(1) == blue(1.5) and blue(-2) == blue(0)
    assert colour_of(float("nan")) not in (colour_of(0), colour_of(1))
    cell = Cell("hub", "0.9")
    shown, flips = (entry_of(row(cell, "dnas", 0.2, it), "") for it in ("shown", "depends on the rate"))
    assert (shown.detail, flips.detail) == tuple(f"+0.200 (+0.190 to +0.210){mark}" for mark in "*†")
    assert shown.words == "score 0.500 with the learning rate 0.01; difference shown"
    assert entry_of(None, "no gradient").words == "no gradient" and entry_of(None, "").words == "not run"


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["softmax", "dnas"])
def test_a_squared_error_that_has_overflowed_has_no_difference(tmp_path, arm):
    """Outputs of 1e25 are finite; their R2 is not. The other arms are compared, unless it is the baseline."""
    probe = Cell("trigger", "BOS").probe()
    [batch] = batches(probe, "test", probe.size, 20, 5)
    outputs = batch.targets.clone()
    outputs[2, 7] = 1e25
    overflowed = probe.score(outputs, batch).numpy()
    assert np.isneginf(overflowed[2, 7]) and np.isfinite(overflowed).sum() == 99
    cell = results(Cell("trigger", "BOS"))
    found = cell.outcome
    found.tests[arm].scores[probe.size] = overflowed
    found.tuning[arm][1e-2] = np.array([0.5, -np.inf])
    cell = results_of_cell(found, ARMS, (1e-3, 1e-2))
    of = {row.arm: row for row in cell.rows if row.trained}
    assert of[arm].score == -np.inf
    for name in ("dnas", "sink"):
        is_lost = arm in ("softmax", name)
        assert np.isnan(of[name].difference) == is_lost and (of[name].verdict == NOT_FINITE) == is_lost
    html = write_page([cell], ARMS, tmp_path / "probe.html", "attnorm probe").read_text()
    assert "-inf" in Page(html).text and f"no difference: {NOT_FINITE}" in html
    write_csv([cell], tmp_path / "probe.csv")
    assert "-inf" in (tmp_path / "probe.csv").read_text()
    map_chart([cell], ARMS[:-1]).figure().savefig(tmp_path / "map.png")
