"""The inputs that every property is tried on, and the normalizer under test with its two calls."""

import copy
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnorm.attention.call_context import in_layer
from attnorm.attention.masking import Mask, dense_mask
from attnorm.attention.normalizers.base import Normalizer, upcast

BATCH, WIDTH = 2, 8
PRIORS = ("no", "key", "pairwise")


@dataclass(frozen=True)
class Case:
    """One input: q (B, H, N, D), k and v (B, H, M, D), a mask, log u; its text names it in a failure."""

    name: str
    q: Tensor = field(repr=False)
    k: Tensor = field(repr=False)
    v: Tensor = field(repr=False)
    mask: Tensor | Mask | None = None
    log_prior: Tensor | None = None
    scale: float = WIDTH**-0.5
    own_scores: Tensor | None = None  # scores that are not scale q k'
    states: Tensor | None = field(default=None, repr=False)  # (B, L, W), of the queries or keys: L = N or M
    states_of: str = "none"  # "queries" or "keys", as the class declares in needs_states

    @property
    def scores(self) -> Tensor:
        """(B, H, N, M)."""
        if self.own_scores is not None:
            return self.own_scores
        return (upcast(self.q) * self.scale @ upcast(self.k).transpose(-2, -1)).to(self.q.dtype)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """B, H, N, M."""
        return (*self.q.shape[:-1], self.k.shape[-2])

    @property
    def allowed(self) -> Tensor:
        """bool (B, H, N, M), True = may attend."""
        dense = dense_mask(self.mask, self.q.new_empty(()).expand(self.shape))
        everything = torch.ones((), dtype=torch.bool, device=self.q.device)
        return (everything if dense is None else dense).expand(self.shape)

    def leaves(self) -> "Case":
        """The same with inputs that collect gradients (scores too, where they are not scale q k')."""
        names = ("q", "k", "v", "log_prior", "own_scores", "states")
        fresh = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return replace(self, **{name: x.detach().clone().requires_grad_() for name, x in fresh.items()})

    def inputs(self) -> dict[str, Tensor]:
        """What gradients are taken of, by the user's names."""
        inputs = {"q": self.q, "k": self.k, "v": self.v, "scores": self.own_scores, "log_prior": self.log_prior}
        inputs |= {"states": self.states}
        return {name: x for name, x in inputs.items() if x is not None}

    def at(self, dtype: torch.dtype) -> "Case":
        """The same numbers in another dtype; a prior stays in float32 beside 16-bit inputs, as in a model."""
        names = ("q", "k", "v", "own_scores", "states")
        moved = {name: x.to(dtype) for name in names if (x := getattr(self, name)) is not None}
        wide = torch.promote_types(dtype, torch.float32)
        return replace(self, **moved, log_prior=None if self.log_prior is None else self.log_prior.to(wide))

    def take(self, queries: Tensor, keys: Tensor, examples: slice = slice(None)) -> "Case":
        """Only these queries and keys (indices or bool), in this order, with a dense mask."""

        def pairs(x: Tensor) -> Tensor:
            return x.expand(self.shape)[examples][..., queries, :][..., keys]

        allowed, of_states = pairs(self.allowed), queries if self.states_of == "queries" else keys
        return replace(
            self,
            q=self.q[examples][..., queries, :],
            k=self.k[examples][..., keys, :],
            v=self.v[examples][..., keys, :],
            mask=None if allowed.all() else allowed,
            log_prior=None if self.log_prior is None else pairs(self.log_prior),
            own_scores=None if self.own_scores is None else pairs(self.own_scores),
            states=None if self.states is None else self.states[examples][:, of_states],
        )

    def __str__(self) -> str:
        b, h, n, m = self.shape
        return f"case: {self.name}; {b} examples, {h} heads, {n} queries, {m} keys, {str(self.q.dtype)[6:]}"


def needed(factory: Callable[..., Normalizer], **facts: int) -> dict[str, int]:
    """Those of the facts for which a factory has a parameter without a default, as a model passes them."""
    try:
        taken = inspect.signature(factory).parameters
    except ValueError:  # a callable without a signature
        return {}
    return {name: fact for name, fact in facts.items() if name in taken and taken[name].default is taken[name].empty}


class Subject:
    """The normalizer under test: makes inputs for it and calls it as a model would.

    factory, seed, device, heads, lengths: as in `check_normalizer`.
    only:     the names of the masks to try; None tries all of them.
    priors:   those of PRIORS that are tried.
    training: whether a differentiable normalizer is in train mode.
    """

    def __init__(
        self,
        factory: Callable[..., Normalizer],
        seed: int,
        device: str,
        heads: int,
        lengths: tuple,
        *,
        only: Collection[str] | None = None,
        priors: Sequence[str] = PRIORS,
        training: bool = True,
    ):
        normalizer = factory(**needed(factory, heads=heads, width=WIDTH, state_width=WIDTH))
        if not isinstance(normalizer, Normalizer):
            raise ValueError(
                f"factory={factory!r}: made {type(normalizer).__name__}, expected an attnorm.attention.Normalizer"
            )
        self.normalizer = in_layer(normalizer).to(device).train(training and bool(normalizer.differentiable))
        self.seed, self.device, self.heads, self.lengths = seed, device, heads, lengths
        self.only, self.priors = only, priors
        self.current: Case | None = None  # named when the normalizer raises
        self._modules: dict[torch.dtype, Normalizer] = {}

    @property
    def has_own_attend(self) -> bool:
        """Whether the class has a way to the output that is not through `forward`."""
        cls = type(self.normalizer)
        return cls._has_fast_way or cls.attend is not Normalizer.attend

    def module(self, dtype: torch.dtype = torch.float64) -> Normalizer:
        """The normalizer with parameters in float64, or in float32 for all narrower inputs (mixed precision)."""
        dtype = dtype if dtype == torch.float64 else torch.float32
        if dtype not in self._modules:
            self._modules[dtype] = copy.deepcopy(self.normalizer).to(dtype)
        return self._modules[dtype]

    def parameters(self, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """The trained parameters of `module(dtype)` by name."""
        return {name: p for name, p in self.module(dtype).named_parameters() if p.requires_grad}

    # ------------------------------------------------------------------------------------------------------- calls

    def weights(self, case: Case, module: Normalizer | None = None, **more: Any) -> Tensor:
        """`forward`: (B, H, N, M). Keys and scale are given where the class needs them."""
        module = module or self.module(case.q.dtype)
        given = self.declared(case, module) | more
        return module(case.scores, case.mask, log_prior=case.log_prior, **given)

    def declared(self, case: Case, module: Normalizer) -> dict[str, Any]:
        """The arguments that only a class with `needs_keys`, `needs_queries` or `needs_states` gets."""
        given: dict[str, Any] = {"keys": case.k, "scale": case.scale} if module.needs_keys else {}
        return given | module.declared(case.q, self.features(case, module))

    def features(self, case: Case, module: Normalizer) -> Tensor | None:
        """What a class with `needs_states` computes from the states; None for all others."""
        return None if case.states is None else module.features_of(case.states)

    def attend(self, case: Case, module: Normalizer | None = None) -> Tensor:
        """`attend`: (B, H, N, D)."""
        module = module or self.module(case.q.dtype)
        p, features = case, self.features(case, module)
        with_features: dict[str, Any] = {} if features is None else {"features": features}
        return module.attend(p.q, p.k, p.v, p.mask, log_prior=p.log_prior, scale=p.scale, **with_features)

    def gradients(self, output: Tensor, case: Case) -> dict[str, Tensor]:
        """d <output, a fixed random tensor> by the inputs (`case.leaves()`) and the parameters; 0 where there is
        no dependence, empty for a class that is not differentiable."""
        if not self.normalizer.differentiable:
            return {}
        inputs = {**case.inputs(), **self.parameters(case.q.dtype)}
        if not output.requires_grad:
            return {name: torch.zeros_like(x) for name, x in inputs.items()}
        cotangent = self.randn(*output.shape, salt=999, dtype=output.dtype)
        by_autograd = torch.autograd.grad(output, list(inputs.values()), cotangent, allow_unused=True)
        return {
            name: torch.zeros_like(x) if g is None else g
            for (name, x), g in zip(inputs.items(), by_autograd, strict=True)
        }

    # ------------------------------------------------------------------------------------------------------ inputs

    def randn(self, *shape: int, salt: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
        """Random numbers that depend on the seed of the check and on `salt` alone."""
        generator = torch.Generator().manual_seed(1000 * self.seed + salt)
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(self.device, dtype)

    def case(
        self,
        name: str,
        n_queries: int,
        n_keys: int,
        mask: Tensor | Mask | None = None,
        prior: str = "no",
        dtype: torch.dtype = torch.float64,
        salt: int = 0,
    ) -> Case:
        """A random input; scores have a standard deviation of about 1.5.

        A normalizer that couples all queries refuses a compact causal mask. It gets the dense form.
        """
        if isinstance(mask, Mask) and mask.causal and self.normalizer.couples_queries == "all":
            name = name.replace("(Mask)", "(Mask.dense)")
            mask = mask.dense(n_queries, n_keys, torch.device(self.device))
        shapes = [(n_queries, WIDTH), (n_keys, WIDTH), (n_keys, WIDTH)]
        q, k, v = (self.randn(BATCH, self.heads, *shape, salt=salt + i, dtype=dtype) for i, shape in enumerate(shapes))
        prior_shape = {"key": (BATCH, 1, 1, n_keys), "pairwise": (1, self.heads, n_queries, n_keys)}.get(prior)
        # a prior is a float32 tensor in a 16-bit model too
        prior_dtype = torch.promote_types(dtype, torch.float32)
        log_prior = self.randn(*prior_shape, salt=salt + 3, dtype=prior_dtype) if prior_shape else None
        name = f"{name}, {prior} prior"
        states, of = None, self.normalizer.needs_states
        if of != "none":
            length = n_queries if of == "queries" else n_keys
            states = self.randn(BATCH, length, WIDTH, salt=salt + 4, dtype=dtype)
        self.current = Case(name, 1.5 * q, k, v, mask, log_prior, states=states, states_of=of)
        return self.current

    def cases(
        self, priors: Sequence[str] = ("no",), dtype: torch.dtype = torch.float64, only: str = ""
    ) -> Iterator[Case]:
        """Every mask (those with `only` in their name) with those of these priors that the subject is tried with."""
        for salt, (name, n_queries, n_keys, mask) in enumerate(self.masks()):
            for prior in priors:
                if only in name and prior in self.priors and (self.only is None or name in self.only):
                    yield self.case(name, n_queries, n_keys, mask, prior, dtype, salt=10 * salt)

    def masks(self) -> Iterator[tuple[str, int, int, Tensor | Mask | None]]:
        """(name, N, M, mask) of all kinds, in the compact and in the dense form."""
        lengths = self.lengths_mask
        segments = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 2, 2]], device=self.device)
        queries, keys = lengths(5, 3, 5), lengths(7, 7, 4)
        yield "no mask", 5, 7, None
        yield "no mask, more queries than keys", 6, 3, None
        yield "no mask, a single query", 1, 5, None
        yield "no mask, a single key", 4, 1, None
        yield "padded keys (dense)", 5, 7, keys[:, None, None, :]
        yield "padded keys (Mask)", 5, 7, Mask(keys=keys)
        both = queries[:, None, :, None] & keys[:, None, None, :]
        yield "padded queries and keys (dense)", 5, 7, both
        yield "padded queries and keys (Mask)", 5, 7, Mask(queries=queries, keys=keys)
        yield "padded, one example empty (Mask)", 5, 7, Mask(queries=lengths(5, 4, 0), keys=lengths(7, 5, 0))
        yield "causal (Mask)", 6, 6, Mask(causal=True)
        yield "causal (dense)", 6, 6, torch.ones(6, 6, dtype=torch.bool, device=self.device).tril()
        yield "causal, fewer queries than keys (Mask)", 3, 6, Mask(causal=True)
        yield "causal, dead first queries (Mask)", 6, 4, Mask(causal=True)
        yield "segments (Mask)", 6, 6, Mask(segments=segments)
        square = lengths(6, 6, 5)
        yield "padded, causal, segments (Mask)", 6, 6, Mask(square, square, causal=True, segments=segments)
        pairs = self.randn(BATCH, self.heads, 5, 7, salt=500) > 0
        yield "random pairs (dense)", 5, 7, pairs
        dead = pairs.clone()
        dead[:, :, 1], dead[0, :, 3], dead[..., 2], dead[1, 0, :, 5] = False, False, False, False
        yield "dead rows and dead columns (dense)", 5, 7, dead
        yield "nothing allowed (dense)", 4, 5, torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=self.device)

    def lengths_mask(self, size: int, *lengths: int) -> Tensor:
        """bool (B, size), True up to each example's length."""
        return torch.arange(size, device=self.device) < torch.tensor(lengths, device=self.device)[:, None]
