"""Records of JSON files as pydantic models, and what is wrong with a record that does not fit its model."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from attnorm.data.readers.bad_rows import BadRow, settle

EXPECTED = {  # by the type of the error
    "model_type": "an object",
    "list_type": "a list",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "string_type": "text",
    "id": "a number or text",
}


class Record(BaseModel):
    """A JSON object. Fields that the model does not have are ignored, and values are not converted."""

    model_config = ConfigDict(strict=True, frozen=True)


def _as_text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise PydanticCustomError("id", "not a number or text")
    return str(value)


def without_surrogates(text: str) -> str:
    """The text itself. Raises ValueError if it contains half of a surrogate pair."""
    if not text.isascii():
        try:
            text.encode("utf-8")  # JSON can contain half a character ("\ud83d"), which cannot be written to a file
        except UnicodeEncodeError:
            raise ValueError("holds half of a surrogate pair, which is not text") from None
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


Text = Annotated[str, AfterValidator(without_surrogates)]
Words = Annotated[Text, AfterValidator(_not_blank)]
Id = Annotated[Text, BeforeValidator(_as_text)]  # a number or text


class Identified(Record):
    """A record with an id, which is unique in its file."""

    id: Text


Part = TypeVar("Part", bound=Record)
Entry = TypeVar("Entry", bound=Identified)


@dataclass
class Records(Generic[Entry]):
    """The usable records of a file by id, and what is wrong with the others. locations: where the usable ones are."""

    model: type[Entry]
    good: dict[str, Entry] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    locations: dict[str, str] = field(default_factory=dict)

    def add(self, record: object, location: str) -> None:
        """Adds a record. location: its path in the file, such as "data[3]"."""
        try:
            entry = self.model.model_validate(record)
            if entry.id in self.locations:
                raise BadRow(f"{entry.id}: {location} has the id of {self.locations[entry.id]}")
        except ValidationError as error:
            key = self.model.model_fields["id"].alias or "id"
            named = isinstance(record, dict) and not any(key in problem["loc"] for problem in error.errors())
            self.bad.append(f"{f'{record[key]}: ' if named else ''}{validation_message(error, location)}")  # type: ignore[index]
        except BadRow as error:
            self.bad.append(str(error))
        else:
            self.good[entry.id], self.locations[entry.id] = entry, location

    def part(self, model: type[Part], record: object, location: str) -> Part | None:
        """A record that contains others; None if it is bad."""
        try:
            return model.model_validate(record)
        except ValidationError as error:
            self.bad.append(validation_message(error, location))
            return None

    def settle(self, path: Path, skip_bad: bool | None) -> list[Entry]:
        """The usable records, in order. Raises DataError for bad ones, as `bad_rows.settle` does."""
        settle(str(path), self.bad, len(self.good), skip_bad)
        return list(self.good.values())


def validation_message(error: ValidationError, location: str) -> str:
    """What is wrong with the record at this location, or "" for a whole file: "images[2].id is missing"."""
    problem = error.errors(include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"])
    where = f"{location}{path}".removeprefix(".") or "the file"
    details = problem.get("ctx", {})
    match problem["type"]:
        case "missing":
            return f"{where} is missing"
        case "too_short" | "too_long":
            count = details.get("min_length", details.get("max_length"))
            return f"{where} has {details['actual_length']} entries, not {count}"
        case "value_error":
            return f"{where}{' ' if problem['loc'] else ': '}{details['error']}"
        case kind:
            return f"{where} is {described(problem['input'])}, not {EXPECTED.get(kind, problem['msg'])}"


def described(value: object) -> str:
    """A description of a JSON value, for messages."""
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, list(value)[:5])) or 'nothing in it'}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    return excerpt(value) if isinstance(value, str) else json.dumps(value)[:40]


def excerpt(text: str) -> str:
    """A text in quotes, with at most 40 characters of it."""
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
