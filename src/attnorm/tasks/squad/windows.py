"""The input format of BERT (Devlin et al., 2019, section 4.2): [CLS] question [SEP] part of the context [SEP].

As in BERT's published code, a context that is too long for one row is read through windows that start `stride` tokens
apart. A token that is in several windows is scored in the one that maximizes
    min(tokens to its left, tokens to its right) + length / 100,        the first one in a tie.
"""

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from attnorm.data import validation as checks
from attnorm.data.featurizer import Encoded, Featurizer, Table, cut, pad, second_part
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.base import QUESTIONS
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError, DataError, Problem
from attnorm.tasks.module import Collator
from attnorm.wording import listed


class SquadFeaturizer(Featurizer):
    """One row per window of each question.

    max_length: number of tokens of a row, including special tokens.
    max_query:  maximum number of tokens of a question; longer questions are truncated.
    stride:     number of tokens from the start of one window to the start of the next.
    no_answer:  whether questions may be impossible.

    Raises ConfigError if some tokens would not be in any window.
    """

    schema = QUESTIONS

    def __init__(self, max_length: int, max_query: int, stride: int, no_answer: bool):
        problems = checks.whole_number("model.max_source", max_length, least=5)
        problems += checks.whole_number("task.max_query", max_query) + checks.whole_number("task.stride", stride)
        if not problems and max_query + 4 > max_length:
            message = f"with [CLS] and two [SEP], it leaves no token of model.max_source={max_length} for the context"
            problems.append(Problem("task.max_query", message, max_query))
        elif not problems and stride > (room := max_length - max_query - 3):
            message = (
                f"must be at most {room} (model.max_source={max_length} - task.max_query={max_query} - 3); tokens "
                "between two windows would never be read"
            )
            problems.append(Problem("task.stride", message, stride))
        if problems:
            raise ConfigError(problems)
        self.max_length, self.max_query, self.stride, self.no_answer = max_length, max_query, stride, no_answer

    def settings(self) -> list:
        return ["windows", 1, self.max_length, self.max_query, self.stride, self.no_answer]

    def columns(self) -> dict:
        """The columns of the table of windows.

        ids:          the tokens of the row.
        question:     number of tokens of the first part, including [CLS] and [SEP].
        example:      row number in the table of texts.
        first:        index of the window's first token in its context.
        starts, ends: the characters of the context that each context token of the window covers.
        start, end:   the first and last token of the answer in the window; 0 if the window does not contain all of it.
        context_best: one bool per context token, whether it has the most context in this window.
        """
        import pyarrow as pa

        number, numbers = pa.int32(), pa.list_(pa.int32())
        return {
            "ids": numbers,
            "question": number,
            "example": number,
            "first": number,
            "starts": numbers,
            "ends": numbers,
            "start": number,
            "end": number,
            "context_best": pa.list_(pa.bool_()),
        }

    def encode(self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer) -> Encoded:
        answers = [json.loads(cell) for cell in texts["answers"]]
        impossible = [name for name, answer in zip(texts["id"], answers, strict=True) if not answer["texts"]]
        if impossible and not self.no_answer:
            some = f"some questions have no answer ({listed(impossible)})"
            raise DataError(f"task.no_answer=false: {some}; use task.no_answer=true")
        questions, truncated = cut(tokenizer.encode(texts["question"]), self.max_query)
        encode_context = lru_cache(maxsize=8)(tokenizer.encode_with_offsets)  # questions share contexts
        table: dict[str, list] = {name: [] for name in self.columns()}
        counts = {"windows": 0, "truncated": truncated, "impossible": len(impossible), "unfit": 0}
        for row, question in enumerate(questions):
            head = [tokenizer.bos_id, *question, tokenizer.eos_id]
            ids, offsets = encode_context(texts["context"][row])
            starts, ends = np.array(offsets, np.int32).reshape(-1, 2).T
            answer = _answer_tokens(answers[row], starts, ends)
            room = self.max_length - len(head) - 1
            firsts = window_starts(len(ids), room, self.stride)
            best = most_context(firsts, room, len(ids))
            fits = False
            for number, begin in enumerate(firsts):
                here = slice(begin, min(begin + room, len(ids)))
                start = end = 0  # [CLS], if the window does not contain the whole answer
                if answer is not None and here.start <= answer[0] and answer[1] < here.stop:
                    start, end = (token - begin + len(head) for token in answer)
                fits |= end > 0
                table["ids"].append([*head, *ids[here], tokenizer.eos_id])
                table["question"].append(len(head))
                table["example"].append(first + row)
                table["first"].append(begin)
                table["starts"].append(starts[here].tolist())
                table["ends"].append(ends[here].tolist())
                table["start"].append(start)
                table["end"].append(end)
                table["context_best"].append(best[number, here].tolist())
            counts["windows"] += len(firsts)
            counts["unfit"] += bool(answers[row]["texts"]) and not fits
        return table, counts

    def describe(self, counts: dict[str, int]) -> str:
        parts = [f"{counts['windows']:,} windows", f"{counts['truncated']:,} questions truncated"]
        if self.no_answer:
            parts.append(f"{counts['impossible']:,} without an answer")
        parts.append(f"{counts['unfit']:,} answers fit no window")
        return f"{counts['kept']:,} questions ({', '.join(parts)})"


def window_starts(tokens: int, room: int, stride: int) -> list[int]:
    """The first token of each window, every `stride` tokens until a window reaches the end. There is at least one."""
    starts = [0]
    while starts[-1] + room < tokens:
        starts.append(starts[-1] + stride)
    return starts


def most_context(firsts: Sequence[int], room: int, tokens: int) -> np.ndarray:
    """bool (windows, tokens): whether the token has the most context in this window."""
    first = np.asarray(firsts)[:, None]
    length = np.minimum(room, tokens - first)
    left = np.arange(tokens) - first  # (windows, tokens)
    context = np.minimum(left, length - 1 - left)
    context = np.where(context >= 0, 100 * context + length, -1)  # a hundred times the formula, to use integers
    return context.argmax(0) == np.arange(len(firsts))[:, None]


def _answer_tokens(answers: dict, starts: np.ndarray, ends: np.ndarray) -> tuple[int, int] | None:
    """The first and the last context token that overlap the first answer. None if there is no answer."""
    if not answers["texts"]:
        return None
    begin = answers["starts"][0]
    first = int(np.searchsorted(ends, begin, side="right"))
    last = int(np.searchsorted(starts, begin + len(answers["texts"][0]), side="left")) - 1
    return (first, last) if first <= last else None


class SquadCollator(Collator):
    """Rows of `SquadFeaturizer` -> tensors, padded to the longest row of the batch."""

    def __init__(self, rows: Table, pad_id: int):
        super().__init__(rows.select_columns(["ids", "question", "start", "end"]), pad_id)

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors:

        ids:          int64 (B, N).
        types:        int64 (B, N), 1 in the second part.
        real_context: bool (B, N), True at the context tokens.
        starts, ends: int64 (B,), the first and last token of the answer, 0 for [CLS].
        """
        ids, types = pad(table["ids"], self.pad_id), second_part(table["question"], table["ids"])
        last = torch.tensor([len(row) - 1 for row in table["ids"]])[:, None]  # the closing [SEP]
        return {
            "ids": ids,
            "types": types.long(),
            "real_context": types & (torch.arange(ids.shape[1]) < last),
            "starts": torch.tensor(table["start"]),
            "ends": torch.tensor(table["end"]),
        }
