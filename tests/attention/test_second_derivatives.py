"""Second derivatives: right where autograd computes them, and refused where a solution has only its first ones."""

import pytest
import torch
from reference import WIDTH, randn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from attnorm.attention import RegularizedMax, build_normalizer

pytestmark = pytest.mark.numerical

PAIRWISE = randn(1, 1, 3, 4, seed=9)
RIGHT = {
    "entmax": {},
    "dnas": {},
    "hnas": {},
    "sinkhorn": {},
    "dnas_slack": {"heads": 1},
    "dnas_prefix": {},
    "dnas_slack_prefix": {"heads": 1, "per_query": True},
    "mix": {"members": ["softmax", "dnas", "ot"]},
    "em_routing": {"sigma": "estimated"},
    "ot": {},
    "fenchel": {"order": 2},
    "continuous": {},
}
SOLVED = {  # name: (normalizer, log u)
    "omega": (RegularizedMax(lambda p: p.square().sum(-1) / 2), None),
    "prox": (RegularizedMax(prox=lambda x: x.clamp(max=0.5)), None),
    "fenchel exact": (build_normalizer("fenchel", order="exact"), None),
    "fenchel with a prior per pair": (build_normalizer("fenchel", order=2), PAIRWISE),
    "continuous with a prior per pair": (build_normalizer("continuous"), PAIRWISE),
    "ot 2": (build_normalizer("ot", order=2), None),
    "ot exact": (build_normalizer("ot", order="exact"), None),
}


def inputs():
    return randn(1, 1, 3, 4, seed=1).requires_grad_(), randn(1, 1, 4, WIDTH, seed=2).requires_grad_()


@pytest.mark.parametrize("name", RIGHT)
def test_second_derivatives_equal_finite_differences(name):
    module, cotangent = build_normalizer(name, **RIGHT[name]).double(), randn(1, 1, 3, 4, seed=3)
    loss = lambda s, k: (module(s, keys=k, scale=0.5) * cotangent).sum()  # noqa: E731
    assert torch.autograd.gradgradcheck(loss, inputs(), fast_mode=True)


def test_softmax_has_them_by_the_kernel_of_torch_that_has_them():
    q, k, v = (randn(1, 1, 4, WIDTH, seed=seed).requires_grad_() for seed in range(3))
    second = lambda: torch.autograd.grad(  # noqa: E731
        torch.autograd.grad(build_normalizer("softmax").attend(q, k, v).sum(), q, create_graph=True)[0].sum(), q
    )
    with sdpa_kernel(SDPBackend.MATH):
        assert second()[0].isfinite().all()
    with pytest.raises(RuntimeError, match="not implemented"):
        second()


@pytest.mark.parametrize("name", SOLVED)
@pytest.mark.parametrize("power", [1, 2], ids=["linear loss", "quadratic loss"])
def test_a_solution_has_first_derivatives_only_and_says_so(name, power):
    """With `torch.autograd.grad`, too, which passes by the error of torch's own decorator."""
    (module, log_prior), (s, k) = SOLVED[name], inputs()
    weights = module(s, log_prior=log_prior, keys=k, scale=0.5)
    loss = (weights.pow(power) * randn(1, 1, 3, 4, seed=3)).sum()
    (plain,) = torch.autograd.grad(loss, s, retain_graph=True)
    (gradient,) = torch.autograd.grad(loss, s, create_graph=True)
    assert torch.equal(gradient, plain)
    with pytest.raises(RuntimeError, match="only first derivatives are implemented"):
        torch.autograd.grad(gradient.square().sum(), s)


@pytest.mark.parametrize("name", SOLVED)
@pytest.mark.parametrize("reentrant", [True, False])
def test_the_gradients_of_a_solution_are_the_same_under_checkpointing(name, reentrant):
    (module, log_prior), (s, k) = SOLVED[name], inputs()
    loss = lambda s, k: module(s, log_prior=log_prior, keys=k, scale=0.5).square().sum()  # noqa: E731
    expected = torch.autograd.grad(loss(s, k), (s, k), allow_unused=True)
    checkpoint(loss, s, k, use_reentrant=reentrant).backward()
    for leaf, gradient in zip((s, k), expected, strict=True):
        assert (leaf.grad is None and gradient is None) or torch.equal(leaf.grad, gradient)
