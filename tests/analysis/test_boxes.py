"""The share of a question's attention that reaches the boxes of each view."""

import pytest
import torch
from torch.testing import assert_close

from attnorm.analysis.boxes import draw_panels, view_shares


def weights(*shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)).softmax(-1)


def test_one_view_keeps_its_weights():
    over = weights(2, 5)
    [found] = view_shares(over, None, [5, 4, 3])
    assert_close(found, over)


def test_concatenated_views_are_taken_apart_again():
    over = weights(2, 9)
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


@pytest.mark.parametrize("views", [1, 3])
def test_a_panel_a_view_is_drawn(tmp_path, views):
    boxes = torch.tensor([[0.1, 0.1, 0.4, 0.3], [0.5, 0.5, 0.9, 0.8]])
    panels = [("view", boxes, torch.tensor([0.2, 0.8]))] * views
    file = draw_panels("what? [this]", panels, tmp_path / "figures" / "one.png")
    assert file.stat().st_size > 1000


def test_a_view_without_any_weight_is_drawn(tmp_path):
    boxes = torch.tensor([[0.1, 0.1, 0.4, 0.3]])
    assert draw_panels("?", [("view", boxes, torch.zeros(1))], tmp_path / "none.png").exists()


def test_a_view_without_boxes_is_drawn_empty(tmp_path):
    assert draw_panels("?", [("view", torch.zeros(0, 4), torch.zeros(0))], tmp_path / "empty.png").exists()
