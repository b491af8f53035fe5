"""Attention over the patches of an image: the formula by hand, Theorem 1 for whole models, grids of another size."""

import itertools

import pytest
import torch
from builders import roughen
from reference import randn
from torch.testing import assert_close
from visual_builders import attend_by_loops, normed

from attnorm.models.config import EncoderConfig
from attnorm.models.grid import GridClassifier, GridConfig, GridLayer, grid_means, image_patches

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
SIZES = {"patch": 2, "d_model": 8, "n_heads": 2, "ffn_dim": 12, "layers": 2}
IMAGE = (4, 6, 3)  # 2 x 3 patches


def tables(normalizer="softmax", priors=()):
    sites = ("grid", "pool")
    return {
        **dict.fromkeys(sites, normalizer),
        "prior": {site: list(priors) for site in sites},
        "scorer": dict.fromkeys(sites, "scaled_dot"),
        "options": {},
    }


def classifier(normalizer="softmax", priors=(), **settings):
    """A model in float64 and evaluation mode, with noise on every parameter."""
    shape = GridConfig(**{**SIZES, **settings})
    return roughen(GridClassifier(shape, tables(normalizer, priors), IMAGE, labels=5))


def images(count=2, seed=0):
    return randn(count, *IMAGE, seed=seed)


def test_patches_and_means_are_those_of_their_own_part():
    pixels, x = images(), randn(2, 4, 6, 3)
    patches, means = image_patches(pixels, 2), grid_means(x, (2, 3))
    assert patches.shape == (2, 2, 3, 12)
    for row, column in itertools.product(range(2), range(3)):
        part = slice(None), slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2)
        assert torch.equal(patches[:, row, column], pixels[part].flatten(1))
        assert_close(means[:, row, column], x[part].mean((1, 2)), **TIGHT)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas"])
@pytest.mark.parametrize("query_grid", [None, (1, 3)])
def test_a_layer_equals_its_formula(name, norm_first, query_grid):
    shape = EncoderConfig(
        d_model=8, n_heads=2, ffn_dim=12, encoder_layers=1, max_source=6, norm_first=norm_first, dropout=0.0
    )
    layer, x = roughen(GridLayer(shape, tables(name), "grid", 0, query_grid)), randn(2, 2, 3, 8, seed=1)
    keys = torch.stack([x[:, row, column] for row in range(2) for column in range(3)], 1)
    start = keys if query_grid is None else torch.stack([x[:, :, column].mean(1) for column in range(3)], 1)

    first, second = layer.attention_residual.norm, layer.feed_forward_residual.norm
    before = [normed(item, first) for item in (start, keys)] if norm_first else [start, keys]
    states = start + attend_by_loops(layer.attention, name, *before, None, None)
    states = states if norm_first else normed(states, first)
    inner, _, outer = layer.feed_forward
    y = normed(states, second) if norm_first else states
    hidden = torch.nn.functional.gelu(y @ inner.weight.T + inner.bias)
    states = states + hidden @ outer.weight.T + outer.bias
    states = states if norm_first else normed(states, second)

    outcome = layer(x)
    assert outcome.shape == (2, *(query_grid or (2, 3)), 8)
    assert_close(outcome.flatten(1, 2), states, **TIGHT)


def test_scores_equal_embedding_layers_pooling_and_a_linear_map():
    model, pixels = classifier("dnas", query_grid=(1, 2)), images()
    x = image_patches(pixels, 2) @ model.patches.weight.T + model.patches.bias
    x = x + torch.stack([model.rows.weight[row] + model.columns.weight for row in range(2)])
    for layer in model.layers:
        x = layer(x)
    x = normed(x, model.norm)[:, 0]  # one row of two cells
    pool = model.pool
    queries = pool.queries.expand(2, -1, -1)
    pooled = attend_by_loops(pool.attention, "dnas", queries, x, None, None)
    expected = torch.cat(list(pooled.unbind(1)), -1) @ model.classifier.weight.T + model.classifier.bias
    assert_close(model(pixels), expected, **TIGHT)


def shuffled(pixels, seed=2):
    """The same images with their patches in another order."""
    order = randn(6, seed=seed).argsort()
    assert order.tolist() != sorted(order.tolist())
    blocks = [pixels[:, 2 * (n // 3) :, 2 * (n % 3) :][:, :2, :2] for n in order.tolist()]
    return torch.cat([torch.cat(blocks[3 * row : 3 * row + 3], 2) for row in range(2)], 1)


@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "sinkhorn", "sparsemax", "ot"])
def test_without_positions_the_order_of_the_patches_does_not_matter(name):
    """Theorem 1 for a whole model: equivariant layers, then an invariant pooling. A query grid breaks the symmetry."""
    pixels, model = images(), classifier(name, positions="none")
    assert_close(model(shuffled(pixels)), model(pixels), rtol=1e-7, atol=1e-7)
    grid, prior = classifier(name, positions="none", query_grid=(1, 3)), classifier(name, ["learned"], positions="none")
    for other in (classifier(name), grid, prior):
        assert not other(shuffled(pixels)).allclose(other(pixels), rtol=1e-3)


@pytest.mark.parametrize("query_grid", [None, (1, 3)])
def test_the_prior_of_all_layers_is_computed_from_the_embedded_patches(query_grid):
    pixels, model, seen = images(), classifier(priors=["content"], query_grid=query_grid), []
    model.prior.register_forward_pre_hook(lambda _, given: seen.append(given))
    model(pixels)
    assert [given[0] for given in seen] == ([6] if query_grid is None else [6, 3])
    for _, n_keys, _, key_states, _ in seen:
        assert n_keys == 6
        assert_close(key_states, model.embed(pixels).flatten(1, 2), **TIGHT)


def test_each_site_and_layer_has_its_normalizer_and_variants_start_equal():
    attention = {**tables("softmax"), "grid": ["dnas", "softmax"]}
    shape = GridConfig(**SIZES)
    model = GridClassifier(shape, attention, IMAGE, labels=5)
    names = [type(layer.attention.normalizer).__name__ for layer in model.layers]
    assert names == ["DNAS", "Softmax"] and type(model.pool.attention.normalizer).__name__ == "Softmax"
    assert GridClassifier.site_layers({"layers": 2}) == {"grid": 2, "pool": 1}
    other = GridClassifier(shape, tables("hnas"), IMAGE, labels=5).state_dict()
    for name, value in model.state_dict().items():
        assert torch.equal(value, other[name])


def test_a_patch_that_does_not_divide_the_image_is_refused():
    with pytest.raises(ValueError, match="patch=4: must divide the size of the images, 4 x 6 pixels"):
        GridClassifier(GridConfig(**{**SIZES, "patch": 4}), tables(), IMAGE, labels=5)
