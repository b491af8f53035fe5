"""Files with captions of images: COCO's JSON, and the tables of Flickr8k and Flickr30k.

.json         COCO: one object {"images": [{"id": int, "file_name": str}], "annotations": [{"image_id": int,
              "caption": str}]}
.csv          one caption per line, with a header line: columns image and caption, as in the tables of Flickr8k, or
              columns image_name, comment_number and comment, as in the tables of Flickr30k, with commas or bars
all others    text: "<image>#<number><tab><caption>", one caption per line, as in Flickr8k.token.txt; or, if the first
              line is one of these headers, a table as in .csv

Each may be gzipped. The result of all of them is {name of the image file: its captions in the order of the file}.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from attnorm.data.caption_rows import plain_words
from attnorm.data.readers import table_files
from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import BadRow
from attnorm.data.readers.records import Id, Record, Text, validation_message
from attnorm.errors import DataError

HEADERS = (["image", "caption"], ["image_name", "comment_number", "comment"])
DELIMITERS = (",", "|")
Header = tuple[list[str], str]  # the columns of a table, one of HEADERS, and what separates them


def read_captions(path: Path) -> dict[str, list[str]]:
    """The captions of each image, in the form of `plain`. Captions without words are omitted.

    Raises ValueError that names file and line (in JSON, the record) if the file cannot be read.
    """
    captions: dict[str, list[str]] = {}
    for image, caption in _coco(path) if table_files.suffix(path) == ".json" else _lines(path):
        words = plain_words(caption)
        captions.setdefault(image, []).extend([words] if words else [])
    if not captions:
        raise DataError(f"{path}: contains no captions")
    return captions


def read_list(path: Path) -> dict[str, int]:
    """The names of images in a text file, one per line, each with the number of its line. Empty lines are omitted.

    Raises ValueError for a repeated name.
    """
    lines_of: dict[str, int] = {}
    for number, line in enumerate(files.read_lines(path), start=1):
        if name := line.strip():
            if name in lines_of:
                raise DataError(f"{path}:{number}: {name} is also in line {lines_of[name]}")
            lines_of[name] = number
    if not lines_of:
        raise DataError(f"{path}: contains no names of images")
    return lines_of


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    header: Header | None = None
    for number, line in enumerate(files.read_lines(path), start=1):
        where, text = f"{path}:{number}", line.rstrip("\r\n")
        if number == 1 and (header := _header(text, table_files.suffix(path) == ".csv", where)):
            continue
        if text.strip():
            yield _row(text, header, where) if header else _numbered(text, where)


def _header(text: str, required: bool, where: str) -> Header | None:
    """The header that the first line is; None if it is an ordinary line."""
    for delimiter in DELIMITERS:
        columns = [cell.strip().lower() for cell in text.split(delimiter)]
        if columns in HEADERS:
            return columns, delimiter
    if required:
        known = " or ".join(map(",".join, HEADERS))
        raise DataError(f"{where}: expected the header {known}, got {json.dumps(text)[:60]}")
    return None


def _row(text: str, header: Header, where: str) -> tuple[str, str]:
    """The image and the caption of a line of a table. A caption without quotes may contain the delimiter."""
    columns, delimiter = header
    try:
        cells = next(csv.reader([text])) if delimiter == "," else text.split(delimiter)
    except csv.Error as error:
        raise BadRow(f"{where}: {error}") from error
    before = len(columns) - 1
    if len(cells) <= before or not cells[0].strip():
        raise BadRow(f"{where}: expected the columns {', '.join(columns)}, got {json.dumps(text)[:60]}")
    return cells[0].strip(), delimiter.join(cells[before:])


def _numbered(text: str, where: str) -> tuple[str, str]:
    """'1000268201.jpg#0<tab>A child ...' -> '1000268201.jpg', 'A child ...'."""
    name, tab, caption = text.partition("\t")
    image, mark, number = name.rpartition("#")
    if not (tab and mark and image and number.isdecimal()):
        shown = json.dumps(text)[:60]
        raise BadRow(f"{where}: expected <image>#<number>, a tab and a caption, got {shown}")
    return image, caption


class CocoImage(Record):
    """An image of a COCO file."""

    id: Id
    file_name: Text


class CocoCaption(Record):
    """A caption of a COCO file."""

    image_id: Id
    caption: Text


class Coco(Record):
    """A COCO file."""

    images: list[CocoImage]
    annotations: list[CocoCaption]


def _coco(path: Path) -> Iterator[tuple[str, str]]:
    try:
        document = Coco.model_validate(files.read_json(path))
    except ValidationError as error:
        expected = 'COCO\'s object {"images": [...], "annotations": [...]}'
        raise DataError(f"{path}: {validation_message(error, '')}; expected {expected}") from error
    names: dict[str, str] = {}
    for number, image in enumerate(document.images):
        if image.id in names:
            raise DataError(f"{path}: images[{number}]: the id {image.id} is repeated")
        names[image.id] = image.file_name
    for number, caption in enumerate(document.annotations):
        if caption.image_id not in names:
            raise DataError(f"{path}: annotations[{number}]: there is no image with the id {caption.image_id}")
        yield names[caption.image_id], caption.caption
