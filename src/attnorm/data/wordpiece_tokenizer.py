"""BERT's WordPiece (Devlin et al., 2019) from an existing vocabulary: it is never trained here."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from attnorm.data import files
from attnorm.data.tokenizer import UNK, Tokenizer

SPECIAL = {"pad_id": "[PAD]", "bos_id": "[CLS]", "eos_id": "[SEP]", "unk_id": "[UNK]"}

# BERT splits at every punctuation mark and forgets where the spaces were. These put words together again the way the
# published headlines write them: ##.# / u.s. / -lrb- / ca n't / the state 's / vice-president / --.
_JOINS = [
    (re.compile(r"(?<=#) (?=#)"), ""),
    (re.compile(r"(?<=#) ([.:/-]) (?=#)"), r"\1"),
    (re.compile(r"(?<=#) , (?=###(?!#))"), ","),
    (re.compile(r"(?<!\S)(?:[^\W\d_] \. ){2,}"), lambda match: match[0].replace(" ", "") + " "),
    (re.compile(r"(?<!\S)(?:[^\W\d_] \. )+[^\W\d_] \.(?!\S)"), lambda match: match[0].replace(" ", "")),
    (re.compile(r"(?<!\S)- ([lr][rcs]b) -(?!\S)"), r"-\1-"),
    (re.compile(r"(?<!\S)n ' t(?!\S)"), "n't"),
    (re.compile(r"(?<!\S)' (s|re|ve|ll|d|m)(?!\S)"), r"'\1"),
    (re.compile(r"(?<!\S)- -(?!\S)"), "--"),
    (re.compile(r"(?<=[\w#]) - (?=[\w#])"), "-"),
]


class WordPiece(Tokenizer):
    """[CLS] and [SEP] serve as bos and eos. Decoding is for people and for scores: spacing is restored by rule."""

    FILE = "tokenizer.json"
    trained = False

    def __init__(self, tokenizer, name: str = "tokenizer"):
        """`tokenizer` is a tokenizers.Tokenizer. Raises ValueError, naming them, if special tokens are missing."""
        super().__init__()
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # [SEP] in a text is ordinary letters, not the end of it
        if missing := [token for token in SPECIAL.values() if tokenizer.token_to_id(token) is None]:
            raise ValueError(f"{name}: the vocabulary has no {', '.join(missing)}")
        self._tokenizer = tokenizer
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = map(tokenizer.token_to_id, SPECIAL.values())
        self.vocab_size = 1 + max(tokenizer.get_vocab().values())  # some files leave gaps between their ids

    @classmethod
    def from_settings(
        cls, draw: Callable[[int | None], Iterable[str]] | None = None, *, file: str, lowercase: bool | None = None
    ) -> "WordPiece":
        """Read `file`, a vocab.txt (one piece a line) or a tokenizer.json.

        `lowercase` None does as the file says: a vocab.txt without capitals is lower-cased. Raises ValueError.
        """
        name = f"tokenizer.file={file}"
        if Path(file).suffix == ".json":
            return cls(_from_json(Path(file).read_bytes(), name, lowercase), name)
        return cls(_from_vocabulary(Path(file), lowercase), name)

    @classmethod
    def check(cls, options: dict) -> list[str]:
        """A file that is missing, empty or neither kind; a `lowercase` that is not true, false or null."""
        file, lowercase = options.get("file"), options.get("lowercase")
        key = f"tokenizer.file={file}"
        if not isinstance(file, str) or not file:
            problems = [f"{key}: must name a vocab.txt or a tokenizer.json"]
        elif Path(file).suffix not in (".txt", ".json"):
            problems = [f"{key}: must be a vocab.txt or a tokenizer.json"]
        else:
            problems = files.file_problem(key, Path(file))
        if lowercase not in (None, True, False):
            problems.append(f"tokenizer.lowercase={lowercase}: must be true, false or null (as the file says)")
        return problems

    @classmethod
    def from_bytes(cls, content: bytes, name: str = "tokenizer") -> "WordPiece":
        return cls(_from_json(content, name, None), name)

    def to_bytes(self) -> bytes:
        return self._tokenizer.to_str().encode()

    def _encode_words(self, words: list[str]) -> list[list[int]]:
        # One by one: encode_batch starts threads, which do not survive the fork of a data worker.
        return [self._tokenizer.encode(word, add_special_tokens=False).ids for word in words]

    def decode(self, ids: Iterable[int]) -> str:
        kept = [i for i in map(int, ids) if i not in (self.pad_id, self.bos_id, self.eos_id)]
        tokens = [UNK if i == self.unk_id else self._tokenizer.id_to_token(i) or UNK for i in kept]
        text = "".join(token[2:] if len(token) > 2 and token.startswith("##") else f" {token}" for token in tokens)
        text = " ".join(text.split())
        for pattern, joined in _JOINS:
            text = pattern.sub(joined, text)
        return text


def _from_vocabulary(file: Path, lowercase: bool | None):
    from tokenizers import Tokenizer as Pipeline
    from tokenizers import models, normalizers, pre_tokenizers

    pieces = [line.rstrip("\r\n") for line in files.read_lines(file)]
    while pieces and not pieces[-1]:  # blank lines at the end
        pieces.pop()
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    if len(vocabulary) < len(pieces):
        twice = next(i for i, piece in enumerate(pieces) if vocabulary[piece] != i)
        raise ValueError(f"{file}:{twice + 1}: {pieces[twice]!r} is in this vocabulary twice")
    if lowercase is None:
        lowercase = not any(p != p.lower() for p in vocabulary if not re.fullmatch(r"\[\w+\]", p))
    pipeline = Pipeline(models.WordPiece(vocabulary, unk_token=SPECIAL["unk_id"]))
    pipeline.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    pipeline.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return pipeline


def _from_json(content: bytes, name: str, lowercase: bool | None):
    from tokenizers import Tokenizer as Pipeline
    from tokenizers import models, normalizers

    try:
        pipeline = Pipeline.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{name}: not a tokenizer.json: {error}") from error
    if not isinstance(pipeline.model, models.WordPiece):
        raise ValueError(f"{name}: this tokenizer is a {type(pipeline.model).__name__}, not a WordPiece")
    if lowercase is not None:
        if not isinstance(pipeline.normalizer, normalizers.BertNormalizer):
            raise ValueError(f"tokenizer.lowercase={lowercase}: {name} has no BertNormalizer to tell; use null")
        pipeline.normalizer.lowercase = lowercase
    return pipeline
