"""Windows over contexts: against loops written from BERT's rules, and whatever the tokens are."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import Words, tokenizer_settings
from datasets import Dataset

from attnorm.data import prepare
from attnorm.data.sampler import MicroBatch
from attnorm.data.sources.squad import Squad
from attnorm.data.tokenizers.wordpiece import WordPiece
from attnorm.tasks.squad.windows import SquadCollator, SquadFeaturizer, most_context, window_starts

REAL = Path(__file__).parents[3] / "shared/data/squad/dev-v2.0.small.json"
CLS, SEP = 2, 3
WORDS = Words(r"\w+|[^\w\s]", lambda word: sum(map(ord, word)))  # a mark is a word, too


def texts(*rows):
    """(context, question, answer or None, its start) -> columns."""
    answers = [{"texts": [] if a is None else [a], "starts": [] if a is None else [s]} for _, _, a, s in rows]
    return {
        "id": [f"q{i}" for i in range(len(rows))],
        "context": [row[0] for row in rows],
        "question": [row[1] for row in rows],
        "answers": [json.dumps(a) for a in answers],
    }


def made_up(count, seed=0):
    """Contexts of 0 to 40 words of 1 to 4 letters, with marks and double spaces, and an answer or none in each."""
    rng = random.Random(seed)
    for _ in range(count):
        words = ["".join(rng.choices("abc\u00e9", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 40))]
        context = "".join(word + rng.choice([" ", "  ", ", ", "-"]) for word in words)
        start = rng.randrange(len(context) - 1)
        text = context[start : rng.randint(start + 1, min(len(context), start + 12))]
        empty = rng.random() < 0.2 or not re.search(r"\S", text)
        yield context, " ".join("d" * rng.randint(1, 9)), None if empty else text, start


def rows_by_loops(row, columns, max_length, max_query, stride):
    """The windows of one question, written as loops over tokens."""
    context = columns["context"][row]
    answers = json.loads(columns["answers"][row])
    question = WORDS.encode([columns["question"][row]])[0][:max_query]
    ids, offsets = WORDS.encode_with_offsets(context)
    spans, begin = [], 0
    while True:
        length = min(len(ids) - begin, max_length - len(question) - 3)
        spans.append((begin, length))
        if begin + length == len(ids):
            break
        begin += stride
    for number, (begin, length) in enumerate(spans):
        inside = range(begin, begin + length)
        token_of = {token: 2 + len(question) + token - begin for token in inside}
        wanted = set()
        if answers["texts"]:
            characters = range(answers["starts"][0], answers["starts"][0] + len(answers["texts"][0]))
            wanted = {t for t, (s, e) in enumerate(offsets) if any(s <= c < e for c in characters)}
        whole = bool(wanted) and wanted <= set(inside)
        best = []
        for token in inside:
            scores = [min(token - b, b + n - 1 - token) + 0.01 * n if b <= token < b + n else -1.0 for b, n in spans]
            best.append(scores.index(max(scores)) == number)
        yield {
            "ids": [CLS, *question, SEP, *ids[begin : begin + length], SEP],
            "question": len(question) + 2,
            "example": row,
            "first": begin,
            "starts": [offsets[token][0] for token in inside],
            "ends": [offsets[token][1] for token in inside],
            "start": token_of[min(wanted)] if whole else 0,
            "end": token_of[max(wanted)] if whole else 0,
            "context_best": best,
        }


@pytest.mark.parametrize(("max_length", "max_query", "stride"), [(14, 4, 3), (14, 4, 7), (9, 5, 1), (60, 9, 20)])
def test_the_table_is_that_of_loops_over_tokens(max_length, max_query, stride):
    columns = texts(*made_up(60))
    layout = SquadFeaturizer(max_length, max_query, stride, True)
    table, counts = layout.encode(columns, 0, WORDS)
    expected = [r for row in range(60) for r in rows_by_loops(row, columns, max_length, max_query, stride)]
    assert list(table) == list(layout.columns())
    assert [dict(zip(table, values, strict=True)) for values in zip(*table.values(), strict=True)] == expected
    answered = {row for row, cell in enumerate(columns["answers"]) if json.loads(cell)["texts"]}
    fitting = {row["example"] for row in expected if row["end"]}
    assert counts == {
        "windows": len(expected),
        "truncated": sum(len(q.split()) > max_query for q in columns["question"]),
        "impossible": 60 - len(answered),
        "unfit": len(answered - fitting),
    }
    assert max_length > 50 or counts["unfit"] > 0


def test_each_token_is_judged_in_exactly_one_window_and_every_token_is_read():
    for tokens in range(30):
        for room, stride in ((1, 1), (5, 2), (5, 5), (7, 3)):
            firsts = window_starts(tokens, room, stride)
            best = most_context(firsts, room, tokens)
            read = np.array([(np.arange(tokens) >= f) & (np.arange(tokens) < f + room) for f in firsts])
            assert best.shape == read.shape and (best.sum(0) == 1).all() and not (best & ~read).any()
            assert len(firsts) == 1 or firsts[-2] + room < tokens  # none that adds nothing


def test_only_the_first_answer_is_trained_on_and_rows_are_counted_from_the_batchs_first():
    columns = texts(("a b c d", "q", "b", 2))
    columns["answers"] = [json.dumps({"texts": ["b", "c d"], "starts": [2, 4]})]
    table, _ = SquadFeaturizer(20, 5, 5, False).encode(columns, 0, WORDS)
    assert (table["start"], table["end"]) == ([4], [4])
    table, _ = SquadFeaturizer(20, 5, 5, True).encode(texts(*made_up(4)), 100, WORDS)
    assert sorted(set(table["example"])) == [100, 101, 102, 103]


def test_an_answer_inside_a_token_takes_the_whole_token_and_one_between_tokens_takes_none():
    columns = texts(("ab  cdef gh", "q", "de", 5), ("ab  cdef gh", "q", "  ", 2), ("ab  cdef gh", "q", "b  c", 1))
    table, counts = SquadFeaturizer(20, 5, 5, False).encode(columns, 0, WORDS)
    assert list(zip(table["start"], table["end"], strict=True)) == [(4, 4), (0, 0), (3, 4)]
    assert counts["unfit"] == 1


def test_an_impossible_question_is_refused_unless_expected():
    columns = texts(("a b", "q", "a", 0), *[("a b", "q", None, 0)] * 12)
    with pytest.raises(ValueError, match=r"task.no_answer=false.*\(q1, q2, .*q10, \.\.\.\); use task.no_answer=true"):
        SquadFeaturizer(20, 5, 5, False).encode(columns, 0, WORDS)
    table, counts = SquadFeaturizer(20, 5, 5, True).encode(columns, 0, WORDS)
    assert table["end"] == [3] + [0] * 12 and counts["impossible"] == 12 and counts["unfit"] == 0


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((4, 1, 1), r"model.max_source=4"),
        ((True, 1, 0), r"model.max_source=true(.|\n)*task.stride=0"),
        ((10, 7, 1), r"task.max_query=7: .* no token of model.max_source=10"),
        ((10, 4, 4), r"task.stride=4: .*at most 3 \(model.max_source=10 - task.max_query=4 - 3\)"),
    ],
)
def test_numbers_that_leave_tokens_out_are_refused(numbers, message):
    with pytest.raises(ValueError, match=message):
        SquadFeaturizer(*numbers, no_answer=True)
    SquadFeaturizer(10, 6, 1, True)
    SquadFeaturizer(10, 4, 3, True)


def test_settings_tell_layouts_apart():
    made = [(20, 5, 5, True), (21, 5, 5, True), (20, 6, 5, True), (20, 5, 6, True), (20, 5, 5, False)]
    assert len({json.dumps(SquadFeaturizer(*numbers).settings()) for numbers in made}) == 5


def test_batches_are_padded_and_mark_the_context():
    layout = SquadFeaturizer(12, 4, 3, True)
    table, _ = layout.encode(texts(*made_up(30)), 0, WORDS)
    rows = Dataset.from_dict(table)
    assert layout.lengths(rows).tolist() == [[len(ids)] for ids in table["ids"]]
    assert layout.lengths(rows).dtype == np.int32 and layout.weights(rows).dtype == np.int64
    assert layout.weights(rows).tolist() == [1] * len(rows)
    order = np.argsort([len(ids) for ids in table["ids"]])
    numbers = [int(order[0]), int(order[-1]), int(order[1])]
    assert len(table["ids"][numbers[0]]) < 12 == len(table["ids"][numbers[1]])
    batch = SquadCollator(rows, pad_id=77)[MicroBatch(numbers, 9, 0)]
    width = max(len(table["ids"][n]) for n in numbers)
    assert batch["rows"].tolist() == numbers and batch["divisor"].item() == 9
    assert batch["ids"].dtype == batch["types"].dtype == torch.int64 and batch["real_context"].dtype == torch.bool
    for at, number in enumerate(numbers):
        ids, head, tokens = table["ids"][number], table["question"][number], len(table["starts"][number])
        rest = width - len(ids)
        assert batch["ids"][at].tolist() == ids + [77] * rest
        assert batch["types"][at].tolist() == [0] * head + [1] * (tokens + 1) + [0] * rest
        assert batch["real_context"][at].tolist() == [False] * head + [True] * tokens + [False] * (rest + 1)
        assert batch["starts"][at] == table["start"][number] and batch["ends"][at] == table["end"][number]


def test_types_and_context_do_not_look_for_the_pad_id_among_real_tokens():
    table, _ = SquadFeaturizer(20, 5, 5, True).encode(texts(("a b", "q", "a", 0)), 0, WORDS)
    pad_id = table["ids"][0][-2]
    batch = SquadCollator(Dataset.from_dict(table), pad_id)[MicroBatch([0], 1, 0)]
    assert batch["real_context"].tolist() == [[False, False, False, True, True, False]]


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cafe", "s", "'", "the", "un", "##known", ".", "\u6771", "!"]


def test_wordpiece_answers_are_cut_at_the_characters_of_the_raw_context(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    tokenizer = WordPiece.from_settings(None, file=str(tmp_path / "vocab.txt"))
    context = "The  CAF\u00c9's\nUnknown\u6771\u6771. \U0001f600 the!"
    for text in ("CAF\u00c9", "Unknown", "\u6771\u6771", "CAF\u00c9's\nUnknown", "\U0001f600", "the!"):
        columns = texts((context, "the ?", text, context.index(text)))
        table, _ = SquadFeaturizer(40, 8, 8, False).encode(columns, 0, tokenizer)
        first, last = table["start"][0] - table["question"][0], table["end"][0] - table["question"][0]
        assert context[table["starts"][0][first] : table["ends"][0][last]] == text
        assert table["ids"][0][table["question"][0] : -1] == tokenizer.encode([context])[0]


def test_a_file_goes_through_the_cache(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    qas = [{"id": f"q{i}", "question": "the !", "answers": [{"text": "cafe", "answer_start": 4}]} for i in range(3)]
    qas.append({"id": "none", "question": "the", "answers": [], "is_impossible": True})
    content = {"data": [{"paragraphs": [{"context": "the cafe s unknown . the ! the", "qas": qas}]}]}
    (tmp_path / "x.json").write_text(json.dumps(content))
    layout, options = SquadFeaturizer(9, 2, 2, True), {"max_rows": {}, "cache_dir": tmp_path, "splits": ["train"]}
    settings = tokenizer_settings("wordpiece", file=str(tmp_path / "vocab.txt"))
    source = Squad(train=str(tmp_path / "x.json"))
    split = prepare(source, settings, layout, **options)["train"]
    assert split.texts["id"][:] == ["q0", "q1", "q2", "none"]
    assert len(split) == split.counts["windows"] == len(split.rows)
    # nine pieces, four a window: 0, 2, 4, 6; five where the question is one piece: 0, 2, 4
    assert layout.describe(split.counts) == (
        "4 questions (15 windows, 0 questions truncated, 1 without an answer, 0 answers fit no window)"
    )
    first = split.rows[0]
    assert first["context_best"][:2] == [True, True] and first["start"] == first["end"] == 5
    with pytest.raises(ValueError, match=r"have no answer \(none\)"):
        prepare(source, settings, SquadFeaturizer(9, 2, 2, False), **options)


def test_the_real_contexts_give_every_answer_back():
    if not REAL.is_file():
        pytest.skip("no ../shared/data/squad/dev-v2.0.small.json beside the repository")
    rows = list(Squad(train=str(REAL)).rows("train"))[:600]
    columns = dict(zip(("id", "context", "question", "answers"), map(list, zip(*rows, strict=True)), strict=True))
    table, counts = SquadFeaturizer(128, 32, 32, True).encode(columns, 0, WORDS)
    assert counts["unfit"] <= 3
    for values in zip(*table.values(), strict=True):
        window = dict(zip(table, values, strict=True))
        if window["end"]:
            answer = json.loads(columns["answers"][window["example"]])["texts"][0]
            first, last = window["start"] - window["question"], window["end"] - window["question"]
            text = columns["context"][window["example"]][window["starts"][first] : window["ends"][last]]
            assert answer.strip() in text and len(text) < len(answer) + 25
