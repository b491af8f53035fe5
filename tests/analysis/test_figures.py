"""Figures from the tables of a run folder."""

import math
import re

import matplotlib.image
import pytest
import runs
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnorm.analysis.paper import POINTS, SCREEN
from attnorm.analysis.run_figures import (
    DECADES,
    compare_column_mass,
    draw_learned_scalars,
    draw_run,
    log_floor,
    normalizer_at,
    split_label,
)
from attnorm.run.csv_files import NO_EVIDENCE, CsvTable

CONFIG = {
    "task": {"name": "gigaword"},
    "seed": 3,
    "model": {},
    "data": {},
    "optimizer": {"lr": 0.1, "hybrid_lr_factor": 10.0},
    "attention": {"encoder": "hnas", "decoder": "my_module:Power", "cross": "softmax", "prior": {}, "options": {}},
}
LAYERS = ("encoder/0", "encoder/1", "decoder/0", "decoder/0/cross")
STEPS = (0, 10, 13)


@pytest.fixture
def run(tmp_path):
    """A run folder with three stacks and two heads per layer, recorded three times; the column mass falls to 0."""
    runs.write_settings(tmp_path, CONFIG)
    attention, hybrid = CsvTable(tmp_path / "attention.csv"), CsvTable(tmp_path / "hybrid_weights.csv")
    for step in STEPS:
        for layer in LAYERS:
            if layer.startswith("encoder"):
                hybrid.append({"step": step, "layer": layer, "head": "", "value": 0.5, "lr_factor": 10})
            for head in range(2):
                mass = 0.1 * (head + 1) + step / 100 + 0.01 * (layer == "encoder/0")
                row = {"step": step, "layer": layer, "head": head, "entropy": 1.0, "column_mass": 2 * mass}
                attention.append(row | {"column_mass_min": mass})
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """Every figure that was saved."""
    figures, savefig = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (figures.append(self), savefig(self, *args, **kw)))
    return figures


def lines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    """The x and y values of each line of a panel."""
    return [tuple(map(list, line.get_data())) for line in axes.get_lines()]


def test_a_run_gets_a_figure_of_each_table_it_has(run, drawn):
    assert [path.name for path in draw_run(run)] == ["hybrid_weights.png", "attention.png"]
    assert all((run / "figures" / name).stat().st_size > 1000 for name in ("hybrid_weights.png", "attention.png"))
    (run / "attention.csv").unlink()
    assert [path.name for path in draw_run(run)] == ["hybrid_weights.png"]
    (run / "hybrid_weights.csv").unlink()
    (run / "run.json").unlink()
    assert draw_run(run) == []


def test_the_shares_of_a_mix_are_drawn_in_one_figure(tmp_path):
    runs.write_settings(tmp_path, CONFIG | {"attention": CONFIG["attention"] | {"encoder": "mix"}})
    for member in ("dnas", "softmax"):
        for step in STEPS:
            row = {"step": step, "layer": "encoder/0", "head": "", "value": 0.5, "lr_factor": 10}
            CsvTable(tmp_path / f"mix_{member}.csv").append(row)
    assert draw_run(tmp_path) == [tmp_path / "figures" / "mix.png"]


@pytest.mark.slow
def test_there_is_one_panel_per_stack_with_every_recorded_step_and_a_legend_outside(run, drawn):
    draw_run(run)
    hybrid, attention = drawn
    assert [axes.get_title() for axes in hybrid.axes] == ["encoder: hnas"]
    titles = ["encoder: hnas", "decoder: Power", "decoder cross: softmax"]
    assert [axes.get_title() for axes in attention.axes] == titles + [""] * 3
    assert "bottom" not in attention.axes[3].get_ylabel()  # there are no small values
    assert [len(axes.get_lines()) for axes in attention.axes] == [4, 2, 2] * 2  # one per head
    assert "seed 3" in attention.caption and "one line per head" in attention.caption
    assert "hybrid_lr_factor=10." in hybrid.caption and "per head" not in hybrid.caption
    mass = lines(attention.axes[3])
    assert mass[1][1] == pytest.approx([2 * (0.2 + step / 100 + 0.01) for step in STEPS])
    for figure in drawn:
        [legend] = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["layer 0", "layer 1"]
        figure.draw_without_rendering()
        place = legend.get_window_extent()
        for axes in figure.axes:
            assert axes.get_legend() is None and not place.overlaps(axes.get_window_extent())
            assert all(x == list(STEPS) for x, _ in lines(axes))
            assert all(line.get_marker() == "o" and line.get_markevery() == [-1] for line in axes.get_lines())
    first, second = (line.get_color() for line in hybrid.axes[0].get_lines())
    assert first != second
    assert {line.get_color() for line in attention.axes[1].get_lines()} == {first}  # layer 0 of the decoder


@pytest.mark.slow
def test_a_file_for_a_paper_has_the_width_of_a_column_embedded_fonts_and_its_caption_beside_it(run):
    """The same figure gives the same bytes, and only a PNG, which stands alone on a screen, has the caption in it."""
    pdf, svg, png = ((run / f"figures/hybrid_weights.{it}") for it in ("pdf", "svg", "png"))
    assert draw_run(run, ("pdf", "svg", "png"))[:3] == [pdf, svg, png]
    first = [pdf.read_bytes(), svg.read_bytes()]
    assert (run / "figures/hybrid_weights.txt").read_text().endswith(f"hybrid_lr_factor=10. {NO_EVIDENCE}\n")
    assert b"/MediaBox [ 0 0 237.6 " in first[0] and b"/FontFile2" in first[0] and b"/Type3" not in first[0]
    assert b"CreationDate" not in first[0] and b'width="237.6pt"' in first[1]
    height = float(re.search(rb'height="([\d.]+)pt"', first[1])[1]) / 72
    assert matplotlib.image.imread(png).shape[0] / SCREEN > height + 0.5
    assert draw_run(run, ("pdf", "svg"))[3].name == "attention.svg"
    assert [pdf.read_bytes(), svg.read_bytes()] == first
    assert b"/MediaBox [ 0 0 489.6 " in (run / "figures/attention.pdf").read_bytes(), "three panels take two columns"


def test_the_caption_of_a_single_panel_is_whole():
    rows = [{"step": "1", "layer": "encoder/0", "head": head, "value": "0.5"} for head in "01"]
    optimizer = {"lr": 3.16228e-05, "hybrid_lr_factor": 31.6228}
    cfg = {"task": {"name": "document_classification"}, "seed": 1, "optimizer": optimizer, "attention": {}}
    figure = draw_learned_scalars("hybrid weights", {"hybrid weights": rows}, cfg, are_shares=True)
    figure.draw_without_rendering()
    caption = figure._supxlabel.get_window_extent()
    assert caption.x0 >= 0 and caption.x1 <= figure.bbox.x1 and caption.y0 >= 0
    assert " ".join(figure.get_supxlabel().split()) == figure.caption and figure.caption.endswith(NO_EVIDENCE)
    assert "hybrid_lr_factor" not in figure.caption, "no row says that the scalar was trained with it"
    assert {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()} == {POINTS}


@pytest.mark.slow
def test_curves_of_shares_say_how_fast_they_could_move_and_what_one_half_does_not_show(run, drawn):
    (run / "mix_softmax.csv").write_text((run / "hybrid_weights.csv").read_text())
    (run / "temperature.csv").write_text((run / "hybrid_weights.csv").read_text())
    draw_run(run)
    titles = [figure.caption for figure in drawn]
    for name in ("hybrid weights", "shares of the members", "temperature"):
        [title] = [title for title in titles if name in title]
        assert "hybrid_lr_factor=10" in title and (NO_EVIDENCE in title) == (name != "temperature")
    assert sum(NO_EVIDENCE in title for title in titles) == 2


@pytest.mark.slow
def test_scalars_between_0_and_1_have_a_whole_axis_and_others_their_own(run, drawn):
    draw_run(run)
    assert drawn[0].axes[0].get_ylim() == pytest.approx((-0.02, 1.02))
    row = {"step": 0, "layer": "encoder/0", "head": "", "value": 40.0, "lr_factor": ""}
    CsvTable(run / "temperature.csv").append(row)
    assert draw_run(run)[1].name == "temperature.png"
    low, high = drawn[3].axes[0].get_ylim()
    assert 30 < low < 40 < high < 50


@pytest.mark.slow
def test_labels_of_almost_equal_values_are_the_values_themselves(tmp_path, drawn):
    runs.write_settings(tmp_path, CONFIG)
    for step, entropy in ((0, 4.1582), (10, 4.1588)):
        row = {"step": step, "layer": "encoder/0", "head": 0, "entropy": entropy, "column_mass": 1.0}
        CsvTable(tmp_path / "attention.csv").append(row | {"column_mass_min": 0.46 - step / 1000})
    draw_run(tmp_path)
    entropy, mass = drawn[0].axes
    assert entropy.yaxis.get_offset_text().get_text() == ""
    assert {label.get_text()[:4] for label in entropy.get_yticklabels()} == {"4.15"}
    pixels = [mass.transData.transform((0, value))[1] for value in (0.46, mass.get_ylim()[1])]
    assert pixels[1] - pixels[0] >= 3  # the line is not cut off by the frame


def test_labels_and_sites_of_stacks():
    assert split_label("encoder/11") == ("encoder", "11")
    assert split_label("decoder/0/cross") == ("decoder cross", "0")
    assert split_label("fusion") == ("fusion", "")
    guided = {"fusion": "dnas", "guided": "hnas", "options": {"hnas": {}}}
    assert normalizer_at("guided cross", guided) == "hnas"
    assert normalizer_at("decoder cross", CONFIG["attention"]) == "softmax"
    assert normalizer_at("options", guided) == ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.02, 0.3], 0.02),
        ([0.02, 0.0], 0.001),
        ([0.5, 1e-300], 10.0 ** (-1 - DECADES)),
        ([0.5, 1e-320, 0.0], 10.0 ** (-1 - DECADES)),
        ([0.0], 10.0**-DECADES),
        ([math.inf, math.nan, 0.25], 0.25),
        ([], 10.0**-DECADES),
    ],
)
def test_a_logarithmic_axis_ends_at_the_smallest_value_or_some_decades_below_the_largest(values, expected):
    assert log_floor(values) == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_zeros_and_underflow_are_drawn_at_the_bottom_of_the_axis_which_says_so(run, drawn):
    row = {"layer": "decoder/0", "head": 0, "entropy": 0.0, "column_mass_min": 0.0}
    for step, mass in ((20, 0.0), (30, 1e-300), (40, math.nan)):
        CsvTable(run / "attention.csv").append(row | {"step": step, "column_mass": mass})
    draw_run(run)
    axes = drawn[1].axes[4]
    *_, zero, tiny, unknown = lines(axes)[0][1]
    floor = log_floor([0.66, 0.0, 1e-300])
    assert zero == tiny == floor and math.isnan(unknown)
    low, high = axes.get_ylim()
    assert axes.get_yscale() == "log" and 0.1 * floor < low < floor and high < 10
    assert f"below {floor:.0e}: at the bottom" in drawn[1].axes[3].get_ylabel()


def test_the_smallest_mass_of_a_run_is_the_least_over_heads_and_layers(run):
    drawn = compare_column_mass({"one": run, "two": run})
    [axes] = drawn.axes
    first, second = lines(axes)
    assert first[0] == list(STEPS)
    assert first[1] == second[1] == pytest.approx([0.1, 0.2, 0.23])
    [legend] = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
    with pytest.raises(ValueError, match=f"{run}: no attention was recorded at guided, but at "):
        compare_column_mass({"one": run}, "guided")
    (run / "attention.csv").unlink()
    with pytest.raises(ValueError, match=r"no attention was recorded; .*callbacks\.attention_stats\.every_n_steps > 0"):
        compare_column_mass({"one": run})


@pytest.mark.parametrize(("site", "mass", "drawn"), [(None, 0.0, 0.01), ("fusion", 1e-9, 1e-9)])
def test_the_smallest_mass_is_that_of_all_sites_or_of_one_and_may_be_zero(run, site, mass, drawn):
    row = {"step": 20, "layer": "fusion", "head": 0, "entropy": 1.0, "column_mass": mass, "column_mass_min": mass}
    CsvTable(run / "attention.csv").append(row)
    [axes] = compare_column_mass({"one": run}, site).axes
    steps, values = lines(axes)[0]
    assert (steps, values[-1]) == ([20] if site else [*STEPS, 20], drawn)
    assert ("at the bottom" in axes.get_ylabel()) == (mass == 0)
