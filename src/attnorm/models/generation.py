"""Greedy and beam search over a batch, with cached incremental decoding."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from attnorm.attention.transfer import on_cpu
from attnorm.models.interfaces import Generator, Seq2SeqModel
from attnorm.schema import Count, NonNegative, WholeNumber


@dataclass(frozen=True)
class Decoding:
    """Options of generation.

    beam_size:      1 is greedy decoding.
    length_penalty: hypotheses are ranked by log p / length ** length_penalty, where the length includes the end token.
    no_repeat_ngram: no n-gram of this many tokens may occur twice; 0 means no restriction.
    min_length, max_length: the number of tokens of a text, without the end token.
    """

    beam_size: Annotated[int, Field(ge=1, le=1000)] = 1
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


class WithDecoder(nn.Module):
    """A model whose module `decoder` has the methods of a `Generator`."""

    decoder: Any

    def decode(self, target: Tensor, memory: Tensor, source_real: Tensor, cache: Any = None) -> Tensor:
        """target, int (B, T), the tokens so far; memory (B, N, W); source_real, bool (B, N) -> states (B, T, W).

        With a cache, `target` holds only the newest token, (B, 1), and the cache advances by one position.
        """
        return self.decoder.decode(target, memory, source_real, cache)

    def new_cache(self) -> Any:
        """An empty state of incremental decoding."""
        return self.decoder.new_cache()

    def logits(self, states: Tensor) -> Tensor:
        """states (..., W) -> scores of the next token (..., V)."""
        return self.decoder.logits(states)


@torch.no_grad()
def generate(model: Seq2SeqModel, source: Tensor, special: SpecialTokens, decoding: Decoding) -> list[list[int]]:
    """Generates the best text for each source, int (B, N), padded: B lists of token ids.

    See `search`. The model is put into evaluation mode.
    """
    model.eval()
    return search(model, model.encode(source), source != special.pad, special, decoding)


@torch.no_grad()
def search(
    model: Generator, memory: Tensor, real: Tensor, special: SpecialTokens, decoding: Decoding
) -> list[list[int]]:
    """Generates the best text for each row of `memory` (B, N, W), to which the decoder attends where `real`, bool
    (B, N), is True: B lists of token ids.

    The lists contain no special tokens. Beam search keeps the `beam_size` best open hypotheses of each row. A
    hypothesis that ends while it is among the best is finished. A row is done when it has `beam_size` finished
    hypotheses. Padding and begin tokens are never generated. The model is put into evaluation mode.
    """
    model.eval()
    beams, device, size = decoding.beam_size, memory.device, len(memory)
    max_length = min(decoding.max_length, model.shape.max_target - 1)  # the begin token takes one position
    real, memory = real.repeat_interleave(beams, 0), memory.repeat_interleave(beams, 0)  # (B K, N), (B K, N, W)
    cache = model.new_cache()

    inputs = list(range(size))  # which row of `memory` each group of K beams belongs to
    finished: list[list[tuple[float, list[int]]]] = [[] for _ in inputs]
    tokens = torch.full((len(real), 1), special.bos, device=device)  # (B K, t)
    scores = torch.full((size, beams), -torch.inf, device=device)  # (B, K) log p so far
    scores[:, 0] = 0.0  # all beams start equal, so only the first may branch

    for length in range(1, max_length + 2):  # chooses token number `length`; the last must be the end token
        logits = model.logits(model.decode(tokens[:, cache.length :], memory, real, cache)[:, -1])
        log_p = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)  # (B K, V)
        _forbid(log_p, tokens, special, decoding, length, max_length)
        total = (scores.view(-1, 1) + log_p).view(len(inputs), -1)  # (B, K V)
        best, flat = total.topk(2 * beams, dim=-1)  # (B, 2K): at most K of them end, so at least K continue
        parent, token = flat // log_p.shape[1], flat % log_p.shape[1]
        ends = token == special.eos

        penalty = length**decoding.length_penalty
        chosen = parent[:, :beams, None].expand(-1, -1, length)
        texts = tokens.view(len(inputs), beams, length).gather(1, chosen)  # (B, K, t)
        is_finished, log_ps, texts = on_cpu((ends & (best > -torch.inf))[:, :beams], best, texts)
        for row, rank in is_finished.nonzero().tolist():
            finished[inputs[row]].append((log_ps[row, rank].item() / penalty, texts[row, rank, 1:].tolist()))

        going_on = ends.int().argsort(dim=-1, stable=True)[:, :beams]  # (B, K) the best ones that do not end, in order
        scores, token = best.gather(1, going_on), token.gather(1, going_on)
        rows = parent.gather(1, going_on) + torch.arange(len(inputs), device=device)[:, None] * beams  # (B, K)

        unfinished = [i for i, row in enumerate(inputs) if len(finished[row]) < beams]
        if not unfinished:
            break
        if len(unfinished) < len(inputs):
            inputs = [inputs[i] for i in unfinished]
            kept = torch.tensor(unfinished).to(device, non_blocking=True)
            scores, token, rows = (x.index_select(0, kept) for x in (scores, token, rows))
        if beams > 1 or len(rows) < len(tokens):
            tokens, memory, real = (x[rows.flatten()] for x in (tokens, memory, real))
            cache.select(rows.flatten())
        tokens = torch.cat([tokens, token.view(-1, 1)], dim=1)
    return [max(hypotheses, key=lambda scored: scored[0], default=(0.0, []))[1] for hypotheses in finished]


def _forbid(
    log_p: Tensor, tokens: Tensor, special: SpecialTokens, decoding: Decoding, length: int, max_length: int
) -> None:
    """Sets log_p (B K, V) to -inf, in place, for all tokens that are not allowed as token number `length`."""
    for token in {special.pad, special.bos} - {special.eos}:
        log_p[:, token] = -torch.inf
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
        log_p.scatter_reduce_(1, windows[..., -1], torch.where(repeats, -torch.inf, torch.inf).to(log_p), "amin")
