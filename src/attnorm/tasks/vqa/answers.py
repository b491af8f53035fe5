"""Answers to questions on images: the official comparison of answers, and the list from which a model chooses.

The accuracy of an answer (Antol et al., 2015, section 4) that m of the ten annotators gave is the mean, over the ten
subsets that omit one annotator, of

    min(1, annotators of the subset who gave the answer / 3)      = 0, 0.3, 0.6, 0.9, 1, ... for m = 0, 1, 2, 3, 4, ...

If all ten annotators agree, an answer must equal theirs character by character. Otherwise, both are normalized first,
as on the evaluation server. (The older script published with the dataset always normalizes the given answer, but only
the punctuation of the annotators' answers.)
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from attnorm.data.readers import table_files
from attnorm.data.readers import text as files
from attnorm.data.readers.text import read_json
from attnorm.errors import DataError, refuse_one_text

MARKS = ';/[]"{}()=+\\_-><@`,?!'
ARTICLES = {"a", "an", "the"}
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {"none": "0"} | {word: str(number) for number, word in enumerate(_WORDS)}
# A word is restored if it is one of these with exactly one apostrophe missing.
_CONTRACTIONS = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've needn't not've
    o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's
    someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've
    there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've
    wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
"""
RESTORED = {"somebody'd": "somebodyd"}  # as in the official list
for _word in _CONTRACTIONS.split():
    RESTORED |= {_word[:index] + _word[index + 1 :]: _word for index, mark in enumerate(_word) if mark == "'"}
_DIGITS_COMMA = re.compile(r"\d,\d")
_PERIOD = re.compile(r"\.(?!\d)")
_MOST_PERIODS = 32  # the official script passes re.UNICODE, which is 32, as the count


def strip(answer: str) -> str:
    """Removes line ends, tabs and surrounding spaces. The result is compared if the annotators agree."""
    return answer.replace("\n", " ").replace("\t", " ").strip()


@lru_cache(maxsize=1 << 16)  # a few answers make up most of a dataset
def normalize(answer: str) -> str:
    """Normalizes an answer for the comparison if the annotators do not agree.

    Each of `MARKS` is removed if the answer contains it next to a space anywhere. All of them are removed if the answer
    contains a comma between digits. Otherwise, a mark is replaced by a space. Periods are removed, except before a
    digit. Then the answer is lower-cased and processed word by word: number words up to ten become digits, articles are
    removed, and missing apostrophes of contractions are restored.
    """
    text = strip(answer)
    joined, bare = text, _DIGITS_COMMA.search(text)
    for mark in MARKS:
        if mark in text:
            alone = bare or f"{mark} " in text or f" {mark}" in text
            joined = joined.replace(mark, "" if alone else " ")
    words = (NUMBERS.get(word, word) for word in _PERIOD.sub("", joined, count=_MOST_PERIODS).lower().split())
    return " ".join(RESTORED.get(word, word) for word in words if word not in ARTICLES)


def compared(answers: Sequence[str]) -> tuple[list[str], bool]:
    """The annotators' answers as they are compared, and whether they (and thus the given answer) are normalized."""
    refuse_one_text("accuracy", answers)
    stripped = [strip(answer) for answer in answers]
    if len(set(stripped)) == 1:
        return stripped, False
    return [normalize(answer) for answer in stripped], True


def credit(matches: int, annotators: int) -> float:
    """The accuracy of an answer that `matches` of the annotators gave. With a single annotator, it is 0 or 1."""
    if annotators == 1:
        return float(matches)
    thirds = matches * min(3, matches - 1) + (annotators - matches) * min(3, matches)
    return thirds / (3 * annotators)


def accuracy(answer: str, answers: Sequence[str]) -> float:
    """The accuracy, in [0, 1], of an answer if the annotators gave `answers`."""
    words, normalized = compared(answers)
    return credit(words.count(normalize(answer) if normalized else strip(answer)), len(words))


def tally(answers: Sequence[str]) -> str:
    """'yes (8), no (2)', the most frequent first. The answer of a single annotator is returned unchanged."""
    counts = Counter(answers).most_common()
    return answers[0] if len(answers) == 1 else ", ".join(f"{text} ({count})" for text, count in counts)


class AnswerList:
    """The answers from which a model chooses. Their order defines their numbers.

    Raises ValueError, starting with `where`, for an empty list, an answer that is not text, and a repeated answer.
    """

    def __init__(self, texts: Sequence[str], where: str = "answer list"):
        if not texts:
            raise DataError(f"{where}: no answers")
        for number, text in enumerate(texts):
            if not isinstance(text, str):  # "" is allowed, because the widely used list of 3,129 answers contains it
                raise DataError(f"{where}: answer {number} is {json.dumps(text, default=str)[:60]}, not text")
        if twice := [text for text, count in Counter(texts).items() if count > 1]:
            raise DataError(f"{where}: repeated answers: {', '.join(map(repr, twice[:10]))}")
        self.texts = list(texts)
        # Answers are compared unchanged if the annotators agree, and normalized otherwise. Several answers may have the
        # same normalized form.
        self._plain, self._normalized = defaultdict(list), defaultdict(list)
        for number, text in enumerate(texts):
            self._plain[strip(text)].append(number)
            self._normalized[normalize(text)].append(number)

    def __len__(self) -> int:
        return len(self.texts)

    @classmethod
    def read(cls, path: str | Path) -> "AnswerList":
        """Reads a JSON list of answers, a JSON object answer -> number from 0, or a text file with one answer per line.

        JSON files may be gzipped.
        """
        path = Path(path)
        if problems := files.file_problem("answer list", path):
            raise DataError(problems[0])
        if table_files.suffix(path) != ".json":
            return cls([line.rstrip("\r\n") for line in files.read_lines(path)], str(path))
        content = read_json(path)
        if isinstance(content, dict):
            numbers = list(content.values())
            if any(type(number) is not int for number in numbers) or sorted(numbers) != list(range(len(numbers))):
                raise DataError(f"{path}: the numbers of {len(numbers):,} answers must be 0 to {len(numbers) - 1}")
            content = sorted(content, key=content.__getitem__)
        if not isinstance(content, list):
            raise DataError(f"{path}: expected a list of answers, or an object answer -> number")
        return cls(content, str(path))

    @classmethod
    def from_answers(cls, questions: Iterable[Sequence[str]], min_count: int) -> "AnswerList":
        """Builds the list from the most frequent answer of each question's annotators, in its compared form.

        Answers of fewer than `min_count` questions are omitted. The most frequent answer comes first. Raises ValueError
        if no answer is left.
        """
        counts = Counter(Counter(compared(answers)[0]).most_common(1)[0][0] for answers in questions if answers)
        kept = sorted((-count, text) for text, count in counts.items() if count >= min_count and text)
        if not kept:
            raise DataError(f"task.min_count={min_count}: no answer of that many questions; use a smaller value")
        return cls([text for _, text in kept])

    def write(self, path: str | Path) -> None:
        """Writes a JSON list that `read` can read."""
        Path(path).write_text(json.dumps(self.texts, ensure_ascii=False), encoding="utf-8")

    def targets(self, answers: Sequence[str]) -> tuple[list[int], list[float]]:
        """The numbers of the answers with a nonzero accuracy if the annotators gave `answers`, and their accuracies."""
        if not answers:
            return [], []
        words, normalized = compared(answers)
        known = self._normalized if normalized else self._plain
        credits = {
            number: credit(count, len(words))
            for text, count in Counter(words).items()
            for number in known.get(text, ())
        }
        numbers = sorted(credits)
        return numbers, [credits[number] for number in numbers]
