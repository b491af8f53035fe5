"""Pooling by learned queries as an attention site of a model."""

from torch import Tensor

from attnorm.attention.build import (
    build_site_bank,
    build_site_normalizer,
    build_site_options,
    build_site_prior,
    build_site_scorer,
)
from attnorm.attention.masking import Mask
from attnorm.attention.pooling import LearnedQueries


class SitePooling(LearnedQueries):
    """`LearnedQueries` with the normalizer, scorer, prior, bank and options that the attention tables name for a site.

    width, heads, queries, dropout: as in `LearnedQueries`.
    attention: resolved tables (`attnorm.attention.tables`). site: the name of the site in them.
    positions: the largest number of states of an example.
    """

    def __init__(
        self, width: int, heads: int, queries: int, attention: dict, site: str, positions: int, dropout: float = 0.0
    ):
        normalizer = build_site_normalizer(attention, site, heads, width=width // heads, state_width=width)
        scorer = build_site_scorer(attention, site, heads, width // heads)
        bank = build_site_bank(attention, site, width, normalizer)
        options = build_site_options(attention, site, width, heads)
        super().__init__(width, heads, queries, normalizer, scorer, dropout, bank, options)
        self.prior = build_site_prior(
            attention, site, heads=heads, bidirectional=True, positions=positions, width=width
        )

    def forward(
        self,
        states: Tensor,
        real: Tensor | None = None,
        segments: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
    ) -> Tensor:
        """As `LearnedQueries.forward`. The prior of the site is added to `log_prior`."""
        if self.prior is not None:
            count = 1 if segments is None else int(segments.max()) + 1
            mask = Mask(keys=real) if segments is None else self.own_segment(count, segments, real)
            of_site = self.prior(count * len(self.queries), states.shape[1], 0, states, mask)
            log_prior = of_site if log_prior is None else log_prior + of_site
        return super().forward(states, real, segments, log_prior=log_prior)
