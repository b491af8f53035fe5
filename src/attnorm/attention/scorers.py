"""Scorers compute scores from queries and keys and work with any normalizer ("Neural Attention Mechanisms")."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnorm.attention.call_context import without_autocast
from attnorm.attention.hooks import TrainingHooks
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import dot_scores, upcast
from attnorm.attention.option_checks import above_zero, one_of, whole
from attnorm.attention.visible import visible_keys

LARGEST = 2**24  # elements of additive's (B, H, N, M, D) tensor: 64 MiB in float32; above it, queries are chunked


LEARNED = ("head", "query")


class Scorer(TrainingHooks):
    """Computes scores from projected queries q (B, H, N, D) and keys k (B, H, M, D) with the same head width D.

    keeps_keys: whether `project` returns the keys as they are.
    learns_alpha: whether `project` multiplies the queries by a learned alpha, which `scale` then does not contain.
    needs_mask: whether `project` takes the mask as a third argument, to count the keys that a query may see.
    is_dot: whether the scores are `scale` times the dot products of `project(q, k)`. If so, `Normalizer.attend` may use
            a fused implementation that never stores all scores. Other scorers override `forward`, and the dense weights
            are computed.
    """

    is_dot = True
    keeps_keys = True
    learns_alpha = False
    needs_mask = False

    def scale(self, width: int) -> float:
        """The factor of the dot products for head width D. It is 1 for scorers that are not of a dot-product type."""
        return 1.0

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Returns q and k such that `scale` times their dot products are the scores. Keeps shapes and dtypes."""
        return q, k

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """Returns scores (B, H, N, M) in float32 or wider, regardless of the dtype of the inputs and of autocast."""
        return dot_scores(*self.project(q, k), self.scale(q.shape[-1]))


class ScaledDot(Scorer):
    """s_ij = q_i . k_j / sqrt(D), "Attention Is All You Need", Eq. 1."""

    def scale(self, width: int) -> float:
        return width**-0.5


class Dot(Scorer):
    """s_ij = alpha q_i . k_j.

    In "Fenchel Duality" (Eq. 17), q_i is the evidence, k_j a template, and alpha the reliability of the evidence: a
    small alpha keeps the estimate close to the preference. The normalizer `fenchel` gets a fixed alpha as its own.

    alpha:     a number above 0. The default is 1, or width ** -0.5 if alpha is learned, which is that of scaled_dot.
    tau:       sets alpha = tau ** -0.5 instead (the earlier version of the paper, Corollary 1).
    learn:     None (alpha is fixed), "head" (one trained alpha for each of the `heads` heads) or "query"
               (alpha_i = alpha exp(v' tanh(W q_i)) with one v per head, initially 0).
    hidden:    the number of rows of W, only for learn="query"; None means 16.
    unit_keys: divides each key by its norm. Scores are then at most alpha |q_i|, and templates of norm 1 bound how far
               attention is from the problem that it approximates: |lambda* - alpha q| <= alpha |lambda*|.
    """

    def __init__(
        self,
        alpha: float | None = None,
        tau: float | None = None,
        learn: str | None = None,
        hidden: int | None = None,
        unit_keys: bool = False,
        heads: int | None = None,
        width: int | None = None,
    ):
        super().__init__()
        if learn not in (None, *LEARNED):
            raise ValueError(f"learn={learn!r}: allowed: null, {', '.join(LEARNED)}")
        for name, value in {"alpha": alpha, "tau": tau}.items():
            if value is not None:
                above_zero(name, value)
        if hidden is not None and learn != "query":
            raise ValueError(f"hidden={hidden!r}: has no effect without learn='query'")
        if alpha is not None and tau is not None:
            raise ValueError(f"tau={tau}: sets alpha = tau ** -0.5, so alpha={alpha} must not be set")
        if not isinstance(unit_keys, bool):
            raise ValueError(f"unit_keys={unit_keys!r}: allowed: true, false")
        if learn is not None and (heads is None or width is None):
            raise ValueError(f"learn={learn!r}: needs heads=<number of heads> and width=<width of a head>")
        default = width**-0.5 if learn is not None and width is not None else 1.0
        self.start = float(alpha if alpha is not None else tau**-0.5 if tau is not None else default)
        self.learn, self.learns_alpha, self.keeps_keys = learn, learn is not None, not unit_keys
        if learn == "head":
            self.log_alpha = nn.Parameter(torch.full((heads or 1,), math.log(self.start)))
        elif learn == "query":
            rows = 16 if hidden is None else whole("hidden", hidden, 1)
            self.network = nn.Linear(width or 1, rows, bias=False)  # W
            self.v = nn.Parameter(torch.zeros(heads or 1, rows))

    def scale(self, width: int) -> float:
        return self.start if self.learn is None else 1.0

    def alpha(self, q: Tensor) -> Tensor:
        """The learned alpha in float32 or wider, broadcastable to (B, H, N, 1)."""
        if self.learn == "head":
            return upcast(self.log_alpha).exp()[:, None, None]
        return self.start * (upcast(self.network(q).tanh()) * upcast(self.v)[:, None]).sum(-1, keepdim=True).exp()

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.learn is not None:
            q = (self.alpha(q) * q).to(q.dtype)
        return q, k if self.keeps_keys else F.normalize(upcast(k), dim=-1).to(k.dtype)

    def learned_scalars(self) -> dict[str, Tensor]:
        """The alpha of every head, if it is learned per head."""
        return {"alpha": self.log_alpha.exp()} if self.learn == "head" else {}

    def fast_parameters(self) -> list[nn.Parameter]:
        """The logarithms of these."""
        return [self.log_alpha] if self.learn == "head" else []


FORMS = ("floor", "late_floor", "max")


class LengthDot(ScaledDot):
    """s_ij = t_i q_i . k_j / sqrt(D), where t_i grows with the logarithm of n_i, the number of keys that i may see.

    In causal self-attention, n_i is the position of the query from 1, and t_i is the temperature of released decoders
    with a long context. n_i is counted from the mask, so that padding and other segments do not change it.

    form:   "floor" (Llama 4): t = 1 + slope log(1 + floor(n / length));
            "late_floor" (Ministral 3): t = 1 + slope log(1 + floor((n - 1) / length));
            "max" (Inkling 2): t = 1 + slope log(max(n / length, 1)).
    slope:  a number above 0.
    length: up to about this many keys, t is 1.
    """

    needs_mask = True

    def __init__(self, form: str = "floor", slope: float = 0.1, length: int = 8192):
        super().__init__()
        self.form, self.slope = one_of("form", form, FORMS), above_zero("slope", slope)
        self.length = whole("length", length, 1)

    def temperature(self, n: Tensor) -> Tensor:
        """t for numbers of keys n."""
        if self.form == "max":
            return 1 + self.slope * (n / self.length).clamp(min=1).log()
        return 1 + self.slope * torch.log1p(((n - int(self.form == "late_floor")) / self.length).floor())

    def project(self, q: Tensor, k: Tensor, mask: Tensor | Mask | None = None) -> tuple[Tensor, Tensor]:
        n = visible_keys(mask, upcast(q.new_empty(())).expand(*q.shape[:-1], k.shape[-2]))
        return (self.temperature(n) * q).to(q.dtype), k


class QKNorm(Dot):
    """s_ij = g q_i . k_j / (|q_i| |k_j|), "Query-Key Normalization for Transformers", with one g per head.

    No score exceeds g, however long queries and keys become during training. g is trained like the alpha of `Dot`.

    start: the initial g, a number above 0. None: sqrt(D), the scale of released models, which divide queries and keys
           by their root mean square and the product by sqrt(D).
    """

    def __init__(self, heads: int, width: int, start: float | None = None):
        start = width**0.5 if start is None else above_zero("start", start)
        super().__init__(alpha=start, learn="head", unit_keys=True, heads=heads, width=width)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return super().project(F.normalize(upcast(q), dim=-1).to(q.dtype), k)


class Bilinear(ScaledDot):
    """s_ij = k_j' W q_i / sqrt(D) with one W (D, D) per head. W is initialized to the identity, as in scaled_dot."""

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(width).repeat(heads, 1, 1))  # (H, D, D)

    def project(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q @ self.weight.transpose(-2, -1), k


class Additive(Scorer):
    """s_ij = v' tanh(W1 k_j + W2 q_i). W1 and W2 (D, D) are shared by the heads, and each head has its own v (D).

    If the (B, H, N, M, D) tensor would be large, it is computed for a few queries at a time and recomputed in the
    backward pass.
    """

    is_dot = False

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.key = nn.Linear(width, width, bias=False)  # W1
        self.query = nn.Linear(width, width, bias=False)  # W2
        # constant, because tanh is odd and W is random, so random signs of v would have no effect
        self.v = nn.Parameter(torch.full((heads, width), width**-0.5))

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        queries, keys, v = upcast(self.query(q)), upcast(self.key(k)), upcast(self.v)
        rows = max(1, LARGEST // keys.numel())
        if rows >= queries.shape[-2]:
            return self.scores(queries, keys, v)
        parts = [
            checkpoint(self.scores, few, keys, v, use_reentrant=False, preserve_rng_state=False)
            for few in queries.split(rows, dim=-2)
        ]
        return torch.cat(parts, dim=-2)

    @staticmethod
    def scores(queries: Tensor, keys: Tensor, v: Tensor) -> Tensor:
        """Returns v' tanh(keys + queries), (B, H, N, M): queries (B, H, N, D), keys (B, H, M, D), v (H, D)."""
        with without_autocast(queries):
            hidden = torch.tanh(keys[:, :, None] + queries[:, :, :, None])  # (B, H, N, M, D)
            return (hidden @ v[:, None, :, None]).squeeze(-1)


class Gaussian(Scorer):
    """s_ij = -|q_i - k_j|^2 / 2, "Doubly-Normalized Attention", Eq. 3 and 6."""

    is_dot = False

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        # Distances do not depend on the origin, but rounding errors do: far from it, the squares and the product
        # would cancel. The first key is visible to every row, and padding, future keys and caching do not change it.
        origin = upcast(k[..., :1, :]).detach()
        q, k = upcast(q) - origin, upcast(k) - origin
        squares_q, squares_k = q.square().sum(-1), k.square().sum(-1)  # (B, H, N), (B, H, M)
        return dot_scores(q, k, 1.0) - squares_q[..., :, None] / 2 - squares_k[..., None, :] / 2


class Softcap(Scorer):
    """s_ij = c tanh(q_i . k_j / (c sqrt(D))), between -c and c: "Gemma 2" (arXiv 2408.00118), Sec. 2.

    cap: c, a number above 0.
    """

    is_dot = False

    def __init__(self, cap: float = 50.0):
        super().__init__()
        self.cap = above_zero("cap", cap)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.cap * (dot_scores(q, k, q.shape[-1] ** -0.5) / self.cap).tanh()
