"""Classifies a document by attention over its words and sentences, or over all of its words at once.

Source: "Hierarchical Attention Networks for Document Classification" (Yang et al., 2016), on the slide "Hierarchical
Attention" of "Neural Attention Mechanisms": a document is encoded by first encoding its sentences. At both levels, a
bidirectional GRU is followed by attention with learned queries. The paper has one query per level, and an additive
scorer (`attention.scorer.word=additive`). Here there may be several, because some normalizers need more than one.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.priors import positions_in
from attnorm.attention.transfer import on_both, on_host
from attnorm.models.initialize import initialize
from attnorm.models.pooling import SitePooling
from attnorm.models.recurrent.seq2seq import over_padded
from attnorm.schema import Count, Share


@dataclass(frozen=True, kw_only=True)
class DocumentConfig:
    """The configuration of `Flat` and `Hierarchical`. Probabilities are in [0, 1).

    d_model:    width of the states, an even multiple of `n_heads`. word_width: width of the word embeddings.
    queries:    number of learned queries at each attention site.
    max_tokens: maximum number of tokens of a document.
    dropout, attention_dropout: dropout probabilities of embeddings and pooled vectors, and of attention weights.
    """

    d_model: Count
    word_width: Count
    n_heads: Count
    queries: Count = 4
    max_tokens: Count = 512
    dropout: Share = 0.1
    attention_dropout: Share = 0.0

    def __post_init__(self) -> None:
        if self.d_model % 2:
            raise ValueError(f"d_model={self.d_model}: must be even, half for each direction of a GRU")


class Recurrent(nn.Module):
    """A bidirectional GRU over sequences that are padded at the end: (B, N, D) -> (B, N, width), 0 at padding."""

    def __init__(self, features: int, width: int):
        super().__init__()
        self.gru = nn.GRU(features, width // 2, batch_first=True, bidirectional=True)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        """states (B, N, D), real bool (B, N). A sequence may consist of padding alone."""
        return over_padded(self.gru, states, real).masked_fill(~real[..., None], 0.0)


class JoinedQueries(SitePooling):
    """tanh(A [o_1, ..., o_k] + a), where o_1 to o_k are the outputs of k learned queries at a site."""

    def __init__(self, shape: DocumentConfig, attention: dict, site: str):
        super().__init__(
            shape.d_model, shape.n_heads, shape.queries, attention, site, shape.max_tokens, shape.attention_dropout
        )
        self.joined = nn.Linear(shape.queries * shape.d_model, shape.d_model)

    def forward(
        self,
        states: Tensor,
        real: Tensor | None = None,
        segments: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
    ) -> Tensor:
        """states (B, M, W) -> (B, W), or (B, S, W) for S segments; see `LearnedQueries.forward`."""
        outputs = super().forward(states, real, segments, log_prior=log_prior)  # (B, k, W) or (B, S, k, W)
        return self.joined(outputs.flatten(-2)).tanh()


class DocumentClassifier(nn.Module):
    """Scores of labels from the words of a document. A subclass implements `make_layers` and `summarize`.

    attention: resolved tables (`attnorm.attention.table_form`) of the sites of the class. None is autoregressive.
    labels:    the number of labels.
    seed:      seed of the initial parameters, see `initialize`.
    """

    interface = "documents"
    Config = DocumentConfig
    sites: dict[str, bool]

    def __init__(
        self, shape: DocumentConfig, attention: dict, vocab_size: int, pad_id: int, labels: int, seed: int = 0
    ):
        super().__init__()
        self.shape, self.pad_id = shape, pad_id
        self.embedding = nn.Embedding(vocab_size, shape.word_width)
        self.word_encoder = Recurrent(shape.word_width, shape.d_model)
        self.sentence_encoder = Recurrent(shape.d_model, shape.d_model)
        self.word = JoinedQueries(shape, attention, "word")
        self.dropout = nn.Dropout(shape.dropout)
        self.make_layers(shape, attention)
        self.classifier = nn.Linear(shape.d_model, labels)
        initialize(self, seed)

    def make_layers(self, shape: DocumentConfig, attention: dict) -> None:
        """Creates further modules. The arguments are those of the class."""

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """One layer at each site."""
        return dict.fromkeys(cls.sites, 1)

    def summarize(self, words: Tensor, real: Tensor, sentences: Tensor) -> Tensor:
        """The vector of each document (B, W). words (B, N, D), the embeddings; the others are as in `forward`."""
        raise NotImplementedError

    def forward(self, ids: Tensor, sentences: Tensor) -> Tensor:
        """Scores (B, labels).

        ids:       int (B, N), padded at the end.
        sentences: int (B, N), the number of the sentence of each token, from 0, in order. Ignored at padding.
        """
        real = on_both(lambda ids: ids != self.pad_id, ids)
        sentences = on_both(lambda sentences, real: sentences.masked_fill(~real, 0), sentences, real)
        words = self.dropout(self.embedding(ids))
        return self.classifier(self.dropout(self.summarize(words, real, sentences)))


class Flat(DocumentClassifier):
    """Attention over all words at once: two GRUs over the words of the document, then learned queries (site "word").

    It has the modules of `Hierarchical` except its attention over sentences.
    """

    sites = {"word": False}  # noqa: RUF012

    def summarize(self, words: Tensor, real: Tensor, sentences: Tensor) -> Tensor:
        states = self.sentence_encoder(self.word_encoder(words, real), real)
        return self.word(states, real)


class Hierarchical(DocumentClassifier):
    """Attention over the words of each sentence (site "word"), then over the sentences (site "sentence").

    A GRU reads the words of each sentence by itself, and learned queries pool them into the vector of the sentence.
    Another GRU reads these vectors, and other learned queries pool its states into the vector of the document.
    """

    sites = {"word": False, "sentence": False}  # noqa: RUF012

    def make_layers(self, shape: DocumentConfig, attention: dict) -> None:
        self.sentence = JoinedQueries(shape, attention, "sentence")

    def summarize(self, words: Tensor, real: Tensor, sentences: Tensor) -> Tensor:
        states = self.encode_words(words, real, sentences)
        vectors = self.word(states, real, sentences)  # (B, S, W)
        count = vectors.shape[1]
        present = on_both(lambda x: torch.arange(count, device=x.device) <= x.amax(1, keepdim=True), sentences)
        return self.sentence(self.sentence_encoder(self.dropout(vectors), present), present)

    def encode_words(self, words: Tensor, real: Tensor, sentences: Tensor) -> Tensor:
        """The states (B, N, W) of words (B, N, D) among the words of their sentence."""
        batch, count = len(words), int(on_host(sentences).max()) + 1

        def cells(sentences: Tensor, real: Tensor) -> Tensor:
            """The sentence of each word, counted over the batch, and the position of the word in it, (2, B, N)."""
            row = torch.arange(batch, device=real.device)[:, None] * count + sentences
            return torch.stack([row, positions_in(sentences.masked_fill(~real, -1), real)])

        cell = on_both(cells, sentences, real)
        longest = int(on_host(cell)[1].max()) + 1

        def table(x: Tensor, cell: Tensor, real: Tensor) -> Tensor:
            """Groups x (B, N, ...) by sentence: (B S, longest, ...), padded with 0."""
            at = cell[0], cell[1].masked_fill(~real, longest)  # padding goes into a column that is cut off
            return x.new_zeros(batch * count, longest + 1, *x.shape[2:]).index_put(at, x)[:, :-1]

        present = on_both(lambda cell, real: table(real, cell, real), cell, real)
        states = self.word_encoder(table(words, cell, real), present)  # (B S, longest, W)
        return states[cell[0], cell[1]].masked_fill(~real[..., None], 0.0)
