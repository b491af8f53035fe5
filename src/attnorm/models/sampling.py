"""Sampling texts from a decoder-only language model, a batch at a time, with cached decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from attnorm.errors import DataError
from attnorm.models.generation import SpecialTokens
from attnorm.models.initialize import named_seed
from attnorm.models.interfaces import CausalLM
from attnorm.schema import Count, NonNegative, WholeNumber


@dataclass(frozen=True)
class Sampling:
    """Options of sampling.

    temperature: the scores are divided by it; 0 always takes the most probable token (greedy).
    top_p:       tokens are drawn from the smallest set of most probable ones whose probabilities sum to at least top_p
                 ("The Curious Case of Neural Text Degeneration", Holtzman et al., 2020, Sec. 3.1); 1 means from all.
    max_length:  the largest number of new tokens, without the end token.
    seed:        seed of the random numbers.
    """

    temperature: NonNegative = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_length: Count = 100
    seed: WholeNumber = 0


@torch.no_grad()
def sample(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    special: SpecialTokens,
    sampling: Sampling,
    numbers: Sequence[int] | None = None,
) -> list[list[int]]:
    """Continues each prompt, which has at least one token: the new token ids, without special tokens.

    A text ends before its end token, after `max_length` tokens, or when the model has no position left. Each text has
    random numbers of its own, so that it depends neither on the other prompts nor on how they are batched.

    All rows advance together from the end of the shortest prompt. A row whose prompt is longer reads its own tokens
    first, so that there is no padding.

    numbers: the number of each text, by which its random numbers are chosen together with the seed; None: 0, 1, ...

    Raises ValueError if a prompt is empty, or has more tokens than the model has positions. The model is put into
    evaluation mode.
    """
    model.eval()
    if not prompts:
        return []
    device, lengths = next(model.parameters()).device, list(map(len, prompts))
    if not min(lengths):
        raise DataError("a prompt without tokens; it has to start with the begin or the end token")
    if model.longest is not None and max(lengths) > model.longest:
        raise DataError(f"a prompt of {max(lengths)} tokens, but the model has {model.longest} positions")
    ends = [length + sampling.max_length for length in lengths]
    if model.longest is not None:
        ends = [min(end, model.longest + 1) for end in ends]  # the last token is not read
    tokens = torch.full((len(prompts), max(ends) + 1), special.pad)
    for row, prompt in enumerate(prompts):
        tokens[row, : lengths[row]] = torch.tensor(prompt)
    uniform = torch.stack([random_numbers(sampling, number) for number in numbers or range(len(prompts))])

    tokens, uniform = tokens.to(device), uniform.to(device)
    begin, end = torch.tensor(lengths, device=device), torch.tensor(ends, device=device)
    going_on = torch.arange(len(prompts), device=device)  # the rows that are not finished
    cache = model.new_cache()
    at = min(lengths)
    while len(going_on):
        logits = model.next_logits(tokens[going_on, :at], cache)
        for token in {special.pad, special.bos} - {special.eos}:
            logits[:, token] = -torch.inf
        number = (at - begin[going_on]).clamp(min=0)
        chosen = choose_tokens(logits, uniform[going_on, number], sampling)
        tokens[going_on, at] = torch.where(at < begin[going_on], tokens[going_on, at], chosen)
        at += 1
        ended = (tokens[going_on, at - 1] == special.eos) & (at > begin[going_on])
        kept = (~ended & (at < end[going_on])).nonzero().squeeze(1)
        end[going_on] = torch.where(ended, at - 1, end[going_on])
        if len(kept) < len(going_on):
            cache.select(kept)
        going_on = going_on[kept]
    return [row[begin:end] for row, begin, end in zip(tokens.tolist(), lengths, end.tolist(), strict=True)]


def random_numbers(sampling: Sampling, number: int) -> Tensor:
    """The random numbers of one text, one for each new token: float64 (max_length,) in [0, 1)."""
    generator = torch.Generator().manual_seed(named_seed(sampling.seed, f"text {number}"))
    return torch.rand(sampling.max_length, generator=generator, dtype=torch.float64)


def choose_tokens(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Draws a token for each row of logits (B, V) by a number in [0, 1), uniform (B,): int64 (B,).

    The tokens are ordered by their probabilities, and the first one is drawn at which the sum of the probabilities,
    divided by that of the allowed tokens, exceeds the number.
    """
    if sampling.temperature == 0:
        return logits.argmax(-1)
    p, order = (logits.double() / sampling.temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = F.pad(p.cumsum(-1)[:, :-1], (1, 0))  # the mass of the tokens that are more probable
    mass = p.masked_fill(before >= sampling.top_p, 0.0).cumsum(-1)
    rank = torch.searchsorted(mass, uniform[:, None].double() * mass[:, -1:], right=True)
    last = (mass < mass[:, -1:]).sum(-1, keepdim=True)  # where rounding leads beyond the allowed tokens
    return order.gather(1, rank.minimum(last)).squeeze(1)
