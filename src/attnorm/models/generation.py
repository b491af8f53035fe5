"""Greedy and beam search over a batch, with cached incremental decoding."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attnorm.models.seq2seq import DecoderCache, Seq2Seq
from attnorm.schema import Count, NonNegative, WholeNumber


@dataclass(frozen=True)
class Decoding:
    """Options of generation.

    beam_size:      1 is greedy decoding.
    length_penalty: hypotheses are ranked by log p / length ** length_penalty, where the length includes the end token.
    no_repeat_ngram: no n-gram of this many tokens may occur twice; 0 means no restriction.
    min_length, max_length: the number of tokens of a headline, without the end token.
    """

    beam_size: Count = 1
    length_penalty: NonNegative = 1.0
    no_repeat_ngram: WholeNumber = 0
    min_length: Count = 1
    max_length: Count = 30


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of the special tokens: padding, begin and end."""

    pad: int
    bos: int
    eos: int


@torch.no_grad()
def generate(
    model: Seq2Seq, source: Tensor, special: SpecialTokens, decoding: Decoding, cached: bool = True
) -> list[list[int]]:
    """Generates the best headline of each article: source, int (B, N), padded -> B lists of token ids.

    The lists contain no special tokens. Beam search keeps the `beam_size` best open hypotheses of each article. A
    hypothesis that ends while it is among the best is finished. An article is done when it has `beam_size` finished
    hypotheses. Padding and begin tokens are never generated. `cached=False` runs the full decoder at each step, with
    the same result; tests use it as the reference. The model is put into evaluation mode.
    """
    model.eval()
    beams, device = decoding.beam_size, source.device
    max_length = min(decoding.max_length, model.shape.max_target - 1)  # the begin token takes one position
    real = (source != special.pad).repeat_interleave(beams, 0)  # (B K, N)
    memory = model.encode(source).repeat_interleave(beams, 0)  # (B K, N, W)
    cache = DecoderCache(len(model.layers)) if cached else None

    articles = list(range(len(source)))  # which article each group of K rows belongs to
    finished: list[list[tuple[float, list[int]]]] = [[] for _ in articles]
    tokens = torch.full((len(real), 1), special.bos, device=device)  # (B K, t)
    scores = torch.full((len(source), beams), -torch.inf, device=device)  # (B, K) log p so far
    scores[:, 0] = 0.0  # all beams start equal, so only the first may branch

    for length in range(1, max_length + 2):  # chooses token number `length`; the last must be the end token
        log_p = _next_token_log_p(model, tokens, memory, real, cache)  # (B K, V)
        _forbid(log_p, tokens, special, decoding, length, max_length)
        total = (scores.view(-1, 1) + log_p).view(len(articles), -1)  # (B, K V)
        best, flat = total.topk(2 * beams, dim=-1)  # (B, 2K): at most K of them end, so at least K continue
        parent, token = flat // log_p.shape[1], flat % log_p.shape[1]
        ends = token == special.eos

        penalty = length**decoding.length_penalty
        for row, rank in (ends & (best > -torch.inf))[:, :beams].nonzero().tolist():
            hypothesis = tokens[row * beams + parent[row, rank], 1:].tolist()
            finished[articles[row]].append((best[row, rank].item() / penalty, hypothesis))

        going_on = ends.int().argsort(dim=-1, stable=True)[:, :beams]  # (B, K) the best ones that do not end, in order
        scores, token = best.gather(1, going_on), token.gather(1, going_on)
        rows = parent.gather(1, going_on) + torch.arange(len(articles), device=device)[:, None] * beams  # (B, K)

        unfinished = [i for i, article in enumerate(articles) if len(finished[article]) < beams]
        if not unfinished:
            break
        if len(unfinished) < len(articles):
            articles = [articles[i] for i in unfinished]
            scores, token, rows = scores[unfinished], token[unfinished], rows[unfinished]
        if beams > 1 or len(rows) < len(tokens):
            tokens, memory, real = (x[rows.flatten()] for x in (tokens, memory, real))
            if cache is not None:
                cache.select(rows.flatten())
        tokens = torch.cat([tokens, token.view(-1, 1)], dim=1)
    return [max(hypotheses, key=lambda scored: scored[0], default=(0.0, []))[1] for hypotheses in finished]


def _next_token_log_p(
    model: Seq2Seq, tokens: Tensor, memory: Tensor, real: Tensor, cache: DecoderCache | None
) -> Tensor:
    """log p of the token after `tokens` (B K, t), float32 (B K, V). With a cache, only the last token is computed."""
    new = tokens if cache is None else tokens[:, cache.length :]
    logits = model.logits(model.decode(new, memory, real, cache)[:, -1])
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _forbid(
    log_p: Tensor, tokens: Tensor, special: SpecialTokens, decoding: Decoding, length: int, max_length: int
) -> None:
    """Sets log_p (B K, V) to -inf, in place, for all tokens that are not allowed as token number `length`."""
    log_p[:, [special.pad, special.bos]] = -torch.inf
    if length > max_length:
        end = log_p[:, special.eos].clone()
        log_p.fill_(-torch.inf)
        log_p[:, special.eos] = end
    elif length <= decoding.min_length:
        log_p[:, special.eos] = -torch.inf
    n = decoding.no_repeat_ngram
    if n and tokens.shape[1] > n:  # the begin token is not part of any n-gram
        windows = tokens[:, 1:].unfold(1, n, 1)  # (B K, t', n) every n-gram so far
        repeats = (windows[:, :, :-1] == tokens[:, None, tokens.shape[1] - n + 1 :]).all(-1)  # the same n - 1 tokens
        row, window = repeats.nonzero(as_tuple=True)
        log_p[row, windows[row, window, -1]] = -torch.inf
