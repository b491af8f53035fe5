"""Models that write captions: what a cell sees, padding, captions of one image, beams and caches, the equations."""

import math

import pytest
import torch
import torch.nn.functional as F
from builders import BOS, PAD, SPECIAL, WithoutCache, attention_tables, roughen, targets
from tolerance import tolerance
from torch.testing import assert_close

from attnorm.models.captioning.base import Convolution, ImageEncoder, ImageEncoderConfig
from attnorm.models.captioning.lstm import LSTMCaptioner, LSTMCaptionerConfig
from attnorm.models.captioning.transformer import TransformerCaptioner, TransformerCaptionerConfig
from attnorm.models.generation import Decoding, search
from attnorm.models.recurrent.decoder import LSTMDecoder

pytestmark = pytest.mark.numerical

TIGHT = {"rtol": 1e-10, "atol": 1e-10}  # of models in float64
SIDE, CELLS, WORDS = 24, 9, 11  # 24 x 24 pixels, halved three times, are 3 x 3 cells
SMALL = {"channels": (4, 5, 6), "d_model": 8, "n_heads": 2, "decoder_layers": 2, "max_target": 12, "dropout": 0.0}
MODELS = {
    "lstm": lambda shape: (LSTMCaptioner, LSTMCaptionerConfig(**shape)),
    "transformer": lambda shape: (TransformerCaptioner, TransformerCaptionerConfig(**shape, ffn_dim=12)),
}


def captioner(name="lstm", normalizer="softmax", priors=(), noise=0.3, facts=None, **shape):
    """A random model in float64 that says different things of different images."""
    attention = attention_tables(priors={"cross": list(priors)}) | {"cross": normalizer}
    cls, config = MODELS[name](SMALL | shape)
    return roughen(cls(config, attention, WORDS, PAD, **(facts or {"side": SIDE})), noise)


def pictures(count, seed=0):
    """Images of 4 x 4 coloured squares."""
    squares = torch.randint(0, 256, (count, 3, 4, 4), generator=torch.Generator().manual_seed(seed)).byte()
    return squares.repeat_interleave(SIDE // 4, 2).repeat_interleave(SIDE // 4, 3)


def scores(model, image, target, **options):
    return model.logits(model(image, options.get("present"), target, options.get("owner")))


@pytest.mark.parametrize("side", [8, 9])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_equals_that_of_torch(stride, side):
    mine, kernel = Convolution(3, 5, stride), stride + 2
    reference = torch.nn.Conv2d(3, 5, kernel, stride=stride, padding=1)
    with torch.no_grad():
        reference.weight.copy_(mine.weight.view(5, 3, kernel, kernel))
        reference.bias.copy_(mine.bias)
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    cells = -(-side // stride)
    assert mine(x).shape == (2, 5, cells, cells)
    inside = side // stride  # an odd side leaves a last cell that torch omits
    assert_close(mine(x)[..., :inside, :inside], reference(x), **tolerance(torch.float32, size=3 * kernel**2))


def test_a_cell_is_in_the_middle_of_what_it_sees():
    """With mirrored kernels, the cells of a mirrored image are the mirrored cells."""
    mirrored, eye = (ImageEncoder(ImageEncoderConfig(channels=(4, 5, 6)), 8, 24, 0, 0).double() for _ in range(2))
    mirrored.load_state_dict(eye.state_dict())
    with torch.no_grad():
        for part in mirrored.modules():
            if isinstance(part, Convolution):
                part.weight.copy_(part.weight.view(part.kernel).flip(-1).flatten(1))
    image = torch.randn(2, 3, 24, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(mirrored.layers(image.flip(-1)), eye.layers(image).flip(-1), **TIGHT)


@pytest.mark.parametrize("side", [20, 23, 24])
def test_every_template_is_a_cell_also_of_sides_that_cannot_be_halved(side):
    eye = ImageEncoder(ImageEncoderConfig(channels=(4, 5, 6)), 8, side, 0, 0)
    result, real = eye(torch.zeros(1, 3, side, side, dtype=torch.uint8))
    assert result.shape == (1, 9, 8) and real.shape == (1, 9) and len(eye.cells()) == eye.templates == 9


def test_cells_are_in_place_and_know_the_whole_image():
    """A change of one corner moves the cell of that corner more than the others, and all of them through the mean."""
    eye = captioner().eye
    assert eye.templates == CELLS and eye.cells()[5] == "1,2"
    image = pictures(1)
    changed = image.clone()
    changed[:, :, :2, -2:] = 255 - changed[:, :, :2, -2:]
    (before, real), (after, _) = eye(image), eye(changed)
    assert real.all() and before.shape == (1, CELLS, 8)
    moved = (after - before).abs().sum(-1)[0].view(3, 3)
    assert moved[0, 2] > moved.mean() and moved.min() > 0


def test_templates_follow_their_formula():
    eye = ImageEncoder(ImageEncoderConfig(), 8, 0, 5, 4).double()
    torch.nn.init.normal_(eye.whole.weight)
    features = torch.randn(2, 4, 5, dtype=torch.float64)
    present = torch.tensor([[True] * 4, [True, True, False, False]])
    outcome, real = eye(features, present)
    assert torch.equal(real, present)
    cells = F.linear(features[1, :2], eye.project.weight, eye.project.bias)
    whole = F.linear(cells.mean(0), eye.whole.weight, eye.whole.bias).tanh()
    assert_close(outcome[1, :2], cells + whole, **TIGHT)
    assert not outcome[1, 2:].any()


@pytest.mark.parametrize("name", MODELS)
def test_missing_regions_and_padding_change_nothing(name):
    model = captioner(name, priors=["content"], facts={"width": 5, "regions": 4})
    target = targets([6, 4])
    features = torch.randn(2, 4, 5, dtype=torch.float64)
    present = torch.tensor([[True] * 4, [True, True, False, False]])
    together = scores(model, features, target, present=present)
    alone = scores(model, features[1:, :2], target[1:, :5], present=None)
    assert_close(together[1:, :5], alone, **TIGHT)


@pytest.mark.parametrize("name", MODELS)
def test_captions_share_their_image(name):
    model, image, target = captioner(name), pictures(2), targets([5, 3, 6, 2])
    owner = torch.tensor([1, 0, 1, 1])
    assert_close(scores(model, image, target, owner=owner), scores(model, image[owner], target), **TIGHT)


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("normalizer", ["softmax", "hnas_prefix", "sparsemax", "fenchel"])
@pytest.mark.parametrize("beams", [1, 3])
def test_search_with_a_cache_equals_search_without(name, normalizer, beams):
    model = captioner(name, normalizer, priors=["content"], tie_embeddings=False)
    memory, real = model.encode(pictures(4))
    decoding = Decoding(beam_size=beams, min_length=4, max_length=6)
    actual = search(model, memory, real, SPECIAL, decoding)
    assert actual == search(WithoutCache(model), memory, real, SPECIAL, decoding)
    assert actual == [search(model, memory[n : n + 1], real[n : n + 1], SPECIAL, decoding)[0] for n in range(4)]
    assert len({tuple(caption) for caption in actual}) > 1


def test_the_first_word_follows_the_equations():
    """Eq. 17 with a content preference, written out for one head: p_i ~ u_i exp(alpha <t_i, z>)."""
    model = captioner(priors=["content"], n_heads=1, decoder_layers=1, tie_embeddings=False)
    decoder, image = model.decoder, pictures(1)
    [templates], _ = model.encode(image)
    h, c = (state[:, 0] for state in decoder.initial(templates[None], None))
    _, (h, _) = decoder.lstm(math.sqrt(8) * model.tokens.weight[[BOS]], (h, c))
    attention, [prior] = decoder.cross, decoder.preference.priors.values()
    t, values = attention.key_value(templates).chunk(2, 1)
    z, u = attention.query(decoder.evidence(h[0])), prior.network(templates)[:, 0].softmax(0)
    p = u * (t @ z / math.sqrt(8)).exp()
    seen = attention.output(p / p.sum() @ values)
    expected = decoder.output(decoder.combine(torch.cat([seen, h[0]])))
    assert_close(scores(model, image, torch.tensor([[BOS]]))[0, 0], expected, **TIGHT)
    assert u.max() > 1.2 / CELLS


def test_shared_parameters_start_equal():
    """The arms of a comparison differ in their preference only."""
    plain, preferring = (
        LSTMCaptioner(LSTMCaptionerConfig(**SMALL), attention_tables(priors={"cross": priors}), WORDS, PAD, side=SIDE)
        for priors in ([], ["content"])
    )
    assert isinstance(plain.decoder, LSTMDecoder)
    added, other = dict(plain.named_parameters()), dict(preferring.named_parameters())
    assert added.keys() < other.keys()
    assert all(torch.equal(parameter, other[name]) for name, parameter in added.items())
