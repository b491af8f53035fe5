"""Writes the paragraphs of SQuAD 1.1 as the texts of the ladder: one file per article, paragraphs between blank lines.

    python experiments/ladder/texts.py train-v1.1.json dev-v1.1.json ladder/texts

The files of the test articles begin with `test_`: 40 articles of the first file, evenly spaced in the order of their
titles, and all of the second. Accents and characters outside ASCII are left out: there are more of them than pieces in
a vocabulary of 1,000.
"""

import argparse
import json
import re
import unicodedata
from pathlib import Path

TEST_ARTICLES = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path, help="train-v1.1.json")
    parser.add_argument("dev", type=Path, help="dev-v1.1.json")
    parser.add_argument("folder", type=Path, help="of the texts")
    args = parser.parse_args()

    args.folder.mkdir(parents=True, exist_ok=True)
    articles = sorted(json.loads(args.train.read_text())["data"], key=lambda article: article["title"])
    held_out = {len(articles) * number // TEST_ARTICLES for number in range(TEST_ARTICLES)}
    for number, article in enumerate(articles):
        write(article, args.folder, "test_" if number in held_out else "")
    for article in json.loads(args.dev.read_text())["data"]:
        write(article, args.folder, "test_")
    print(f"{args.folder}: {len(list(args.folder.glob('*.txt')))} articles")


def write(article: dict, folder: Path, prefix: str) -> None:
    """Writes the paragraphs of an article to `<prefix><title>.txt`."""
    plain = [
        unicodedata.normalize("NFKD", it["context"]).encode("ascii", "ignore").decode() for it in article["paragraphs"]
    ]
    paragraphs = [" ".join(text.split()) for text in plain]
    name = re.sub(r"[^\w.-]", "_", article["title"])
    (folder / f"{prefix}{name}.txt").write_text("\n\n".join(paragraphs) + "\n")


if __name__ == "__main__":
    main()
