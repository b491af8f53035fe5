"""Figures from the tables of a run folder."""

import pytest
import yaml
from matplotlib import pyplot as plt

from attnorm.analysis.figures import compare_column_mass, draw_run, line
from attnorm.training.loggers import CsvTable

CONFIG = {"task": {"name": "mlm"}, "seed": 3, "optimizer": {"lr": 0.1, "hybrid_lr_factor": 10.0}}


@pytest.fixture
def run(tmp_path):
    """A run folder with two layers of two heads, looked at three times."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    attention, hybrid = CsvTable(tmp_path / "attention.csv"), CsvTable(tmp_path / "hybrid_weights.csv")
    for step in (0, 10, 20):
        for layer in ("encoder/0", "encoder/1"):
            hybrid.append({"step": step, "layer": layer, "head": "", "weight": 0.5})
            for head in range(2):
                mass = 0.1 * (head + 1) + step / 100 + 0.01 * (layer == "encoder/0")
                row = {"step": step, "layer": layer, "head": head, "entropy": 1.0, "column_mass": 2 * mass}
                attention.append(row | {"column_mass_min": mass})
    return tmp_path


@pytest.fixture
def lines(monkeypatch):
    """What every figure that is closed had drawn: [(x, y) of each line of each panel]."""
    drawn, close = [], plt.close
    monkeypatch.setattr(
        plt,
        "close",
        lambda figure: (
            drawn.append([[(*line.get_data(),) for line in axes.get_lines()] for axes in figure.axes]),
            close(figure),
        ),
    )
    return drawn


def test_a_run_gets_a_figure_of_each_table_it_has(run, lines):
    assert [path.name for path in draw_run(run)] == ["hybrid_weights.png", "attention.png"]
    _, (entropy, mass) = lines
    assert len(entropy) == len(mass) == 4  # a line a head
    assert all(list(x) == [0, 10, 20] for x, _ in mass)
    assert list(mass[1][1]) == pytest.approx([2 * (0.2 + step / 100 + 0.01) for step in (0, 10, 20)])
    (run / "attention.csv").unlink()
    assert [path.name for path in draw_run(run)] == ["hybrid_weights.png"]


def test_the_smallest_mass_of_a_run_is_the_least_over_heads_and_layers(run, lines):
    compare_column_mass({"one": run, "two": run}, run / "both.png")
    [[(first, second)]] = lines
    assert list(first[0]) == [0, 10, 20]
    assert list(first[1]) == list(second[1]) == pytest.approx([0.1, 0.2, 0.3])


def test_a_single_point_is_seen():
    axes = plt.figure().add_subplot()
    line(axes, {0: 1.0})
    line(axes, {0: 1.0, 5: 2.0})
    assert [drawn.get_marker() for drawn in axes.get_lines()] == ["o", "None"]
    plt.close("all")


def test_the_smallest_mass_of_one_site(run, lines):
    CsvTable(run / "attention.csv").append(
        {"step": 10, "layer": "fusion", "head": 0, "entropy": 1.0, "column_mass": 1e-9, "column_mass_min": 1e-9}
    )
    compare_column_mass({"one": run}, run / "fusion.png", "fusion")
    [[[(steps, masses)]]] = lines
    assert (list(steps), list(masses)) == ([10], [1e-9])


def test_what_was_not_watched_is_said(run):
    with pytest.raises(ValueError, match=f"{run}: no attention was watched at guided, but at "):
        compare_column_mass({"one": run}, run / "guided.png", "guided")
    (run / "attention.csv").unlink()
    with pytest.raises(ValueError, match=r"no attention was watched; .* callbacks\.attention_stats\.every_n_steps > 0"):
        compare_column_mass({"one": run}, run / "all.png")
