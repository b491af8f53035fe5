"""The share of a question's attention that reaches the boxes of each view, and its picture."""

from itertools import pairwise

import numpy as np
import pytest
import runs
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch.testing import assert_close

from attnorm.analysis.boxes import NUMBERED, draw_boxes, draw_boxes_of_view, draw_panels, free_place, view_shares
from attnorm.analysis.loaded_run import load_run


def weights(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)).softmax(-1)


def test_one_view_keeps_its_weights_and_concatenated_views_are_taken_apart_again():
    over = weights(2, 9)
    [whole] = view_shares(over, None, [9, 4, 3])
    assert_close(whole, over)
    found = view_shares(over, None, [2, 3, 4])
    assert [share.shape[1] for share in found] == [2, 3, 4]
    assert_close(torch.cat(found, 1), over)


def test_a_primary_box_passes_its_weight_on_by_the_weights_of_the_fusion():
    over, fusion = weights(2, 3), weights(2, 4, 3, 7)
    primary, *others = view_shares(over, fusion, [3, 5, 2])
    assert_close(primary, over)
    assert [share.shape[1] for share in others] == [5, 2]
    expected = torch.zeros(2, 7)
    for example in range(2):
        for box in range(3):
            for head in range(4):
                expected[example] += over[example, box] * fusion[example, head, box] / 4
    assert_close(torch.cat(others, 1), expected)
    assert_close(sum(share.sum(1) for share in others), torch.ones(2))


def test_a_question_of_a_run_is_drawn_with_a_panel_per_view():
    run = load_run(runs.finished_run("vqa"))
    [(name, figure)] = draw_boxes(run, [1]).items()
    titles = [axes.get_title().partition(":")[0] for axes in figure.axes if axes.get_title()]
    assert name == "boxes_1" and titles == list(run.task.views("validation").names)
    with pytest.raises(ValueError, match="the validation split has questions 0 to 23"):
        draw_boxes(run, [24])


NESTED = torch.tensor([[0.1, 0.1, 0.4, 0.3], [0.0, 0.0, 1.0, 1.0], [0.5, 0.5, 0.9, 0.8]])


def colour_at(figure, axes, x, y):
    """The colour of the pixel at (x, y) of a panel, as red, green and blue from 0 to 1."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    column, row = axes.transData.transform((x, y))
    pixels = np.asarray(canvas.buffer_rgba())
    return pixels[int(pixels.shape[0] - row), int(column), :3] / 255


def painted(boxes, shares):
    figure = Figure(figsize=(4, 4))
    axes = figure.add_subplot()
    colours = ScalarMappable(Normalize(0, 1), colormaps["YlOrRd"])
    axes.set(xlim=(0, 1), ylim=(1, 0))
    draw_boxes_of_view(axes, boxes, torch.tensor(shares), colours)
    return figure, axes, lambda share: np.array(colours.to_rgba(share)[:3])


@pytest.mark.slow
def test_where_boxes_overlap_the_colour_is_that_of_the_largest_share():
    for shares in ([0.25, 0.5, 0.125], [0.5, 0.25, 0.125], [0.25, 0.25, 0.25]):
        figure, axes, colour = painted(NESTED, shares)
        for place, expected in (
            ((0.12, 0.12), max(shares[:2])),
            ((0.86, 0.78), max(shares[1:])),
            ((0.95, 0.05), shares[1]),
        ):
            assert np.abs(colour_at(figure, axes, *place) - colour(expected)).max() < 0.01, (shares, place)


def test_the_largest_shares_are_written_each_in_its_box():
    boxes = torch.tensor([[0.1 * i, 0.1 * i, 0.1 * i + 0.1, 0.1 * i + 0.1] for i in range(8)])
    shares = [0.004, 0.3, 0.01, 0.2, 0.05, 0.15, 0.001, 0.285]
    _, axes, _ = painted(boxes, shares)
    found = {text.get_text(): text.get_position() for text in axes.texts}
    assert list(found) == ["30%", "28%", "20%", "15%", "5%"] and NUMBERED == 5
    for box, (x, y) in zip((1, 7, 3, 5, 4), found.values(), strict=True):
        x1, y1, x2, y2 = boxes[box].tolist()
        assert x1 <= x <= x2 and y1 <= y <= y2


def test_a_number_is_neither_under_another_box_nor_on_another_number():
    under = torch.tensor([[0.0, 0.0, 0.8, 0.8], [0.3, 0.3, 0.95, 0.95]])  # the second covers the centre of the first
    _, axes, _ = painted(under, [0.125, 0.5])
    places = {text.get_text(): text.get_position() for text in axes.texts}
    x, y = places["12%"]
    assert min(x, y) < 0.3 and places["50%"] == pytest.approx((0.625, 0.625))
    same = [[0.2, 0.2, 0.8, 0.8]] * 3
    taken = []
    for box in same:
        taken.append(free_place(box, taken, []))
    assert len(set(taken)) == 3 and taken[0] == (0.5, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(("views", "shares"), [(1, [0.2, 0.8]), (3, [0.2, 0.8]), (1, [0.0]), (1, [])])
def test_one_panel_per_view_is_drawn_also_without_any_weight_or_box(views, shares):
    boxes = torch.tensor([[0.1, 0.1, 0.4, 0.3], [0.5, 0.5, 0.9, 0.8]])[: len(shares)]
    assert len(draw_panels("what? [this]", [("view", boxes, torch.tensor(shares))] * views)._repr_png_()) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("largest", [0.0157, 0.0179, 0.062, 1.0])
def test_numbers_of_the_scale_do_not_overlap(largest):
    boxes = torch.tensor([[0.1, 0.1, 0.4, 0.3], [0.5, 0.5, 0.9, 0.8]])
    drawn = draw_panels("?", [("view", boxes, torch.tensor([0.01, largest]))] * 3)
    drawn.draw_without_rendering()
    for axes in drawn.axes[3:]:  # the scales
        low, high = axes.get_xlim()
        ticks = [tick for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
        spans = sorted(tick.label1.get_window_extent().intervalx.tolist() for tick in ticks)
        assert len(spans) >= 3 and all(left[1] < right[0] for left, right in pairwise(spans))
