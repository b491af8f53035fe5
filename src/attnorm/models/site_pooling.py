"""Pooling by learned queries as an attention site of a model."""

from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.pooling import LearnedQueries
from attnorm.attention.site import Site
from attnorm.attention.transfer import on_host


class SitePooling(LearnedQueries):
    """`LearnedQueries` with the normalizer, scorer, prior, bank and options that the attention tables name for a site.

    width, heads, queries, dropout: as in `LearnedQueries`.
    attention: resolved tables (`attnorm.attention.tables`). site: the name of the site in them.
    positions: the largest number of states of an example.
    """

    def __init__(
        self, width: int, heads: int, queries: int, attention: dict, site: str, positions: int, dropout: float = 0.0
    ):
        of_site = Site(attention, site)
        super().__init__(width, heads, queries, dropout=dropout, **of_site.layer_parts(width, heads))
        self.prior = of_site.prior(heads=heads, bidirectional=True, positions=positions, width=width)

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
            count = 1 if segments is None else int(on_host(segments).max()) + 1
            mask = Mask(keys=real) if segments is None else self.own_segment(count, segments, real)
            of_site = self.prior(count * len(self.queries), states.shape[1], 0, states, mask)
            log_prior = of_site if log_prior is None else log_prior + of_site
        return super().forward(states, real, segments, log_prior=log_prior)
