"""Datasets on the Hugging Face hub, or local folders of parquet files with the same layout: pairs or documents."""

from collections.abc import Iterator, Mapping, Sequence
from glob import has_magic
from pathlib import Path
from typing import Any

from attnorm.data.readers import text as files
from attnorm.data.readers.bad_rows import usable
from attnorm.data.readers.nested import outer
from attnorm.data.readers.table_files import Columns, Rows, missing_columns, row_of, text_cells
from attnorm.data.sources.base import DOCUMENTS, SHORT, NamedSplits
from attnorm.errors import DataError, Problem
from attnorm.schema import Text


class HubSource(NamedSplits):
    """Rows of some text columns of the dataset `path`, which is a name ("owner/name") or a folder.

    config_name: the configuration of the dataset to use.
    named:       the dataset's names of our splits; None if it does not have a split.
    columns:     [(config key, column name)].
    skip_bad:    skip rows with a cell that is not text and log their number, instead of raising an error.

    A folder is one of parquet files, which are streamed, or one that `save_to_disk` of a Dataset, or of a DatasetDict,
    has written, which is memory-mapped. A dataset from the hub is downloaded once and memory-mapped.
    """

    def __init__(
        self,
        path: str,
        config_name: str | None,
        named: Mapping[str, str | None],
        columns: Columns,
        skip_bad: bool,
    ):
        self.path, self.config_name = path, config_name
        self.named, self.columns, self.skip_bad = named, columns, skip_bad

    def check(self, splits: Sequence[str] = ("train", "validation")) -> list[str]:
        """Splits without a name, and a folder that does not exist or does not contain a dataset."""
        problems: list[str] = [
            Problem(f"data.{SHORT[split]}_split", f"the {split} split is asked for; name it", None)
            for split in splits
            if self.named[split] is None
        ]
        folder = Path(self.path)
        if folder.is_dir():
            if has_magic(str(folder.resolve())) and not self._is_saved:
                message = "the library datasets takes *, ? and [ in the path of a folder for a pattern; rename it"
                problems.append(f"data.path={self.path}: {message}")
            if not self._files():
                problems.append(
                    f"data.path={self.path}: no parquet file in this folder, and nothing that save_to_disk has written"
                )
        elif self.path.count("/") > 1 or self.path.startswith((".", "~", "/")):  # a hub name is "name" or "owner/name"
            problems.append(f"data.path={self.path}: no such folder, and not the name of a dataset on the hub")
        return problems

    def fingerprint(self, split: str) -> str:
        """A hash of the settings and of the folder's files, or of the dataset's revision on the hub."""
        settings = ["hub", 1, self.config_name, self.named[split], *(name for _, name in self.columns)]
        settings += files.reading_settings(files.UTF8, self.skip_bad)
        if Path(self.path).is_dir():
            # The name of a file determines its split here, so names are part of the hash.
            names = [str(file.relative_to(self.path)) for file in self._files()]
            return files.digest([*settings, names], *self._files())
        return files.digest([*settings, self.path, self._load(split)._fingerprint])

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        """Streams the rows. Raises ValueError if a split or column does not exist, or if the hub cannot be reached."""
        yield from usable(self._cells(split), lambda row: text_cells(row[0], self.columns, row[1]), self.skip_bad)

    def _cells(self, split: str) -> Rows:
        from pyarrow import ArrowException

        dataset = self._load(split)
        existing, names = dataset.column_names or list(dataset.features or ()), [str(name) for _, name in self.columns]
        missing_columns(f"data.path={self.path}", self.columns, existing, nested=True)
        outers = list(dict.fromkeys(outer(name, existing) for name in names))
        tables = dataset.select_columns(outers).with_format("arrow").iter(batch_size=1000)
        where, number = f"data.path={self.path}: {self.named[split]} row", 0
        try:
            for table in tables:
                for cells in zip(*(table.column(name).to_pylist() for name in outers), strict=True):
                    number += 1
                    yield row_of(f"{where} {number}", names, dict(zip(outers, cells, strict=True)))
        except (OSError, UnicodeDecodeError, ArrowException) as error:
            raise DataError(f"{where} {number + 1} cannot be read: {error}") from error

    @property
    def _is_saved(self) -> bool:
        """Whether `save_to_disk` has written the folder."""
        return any((Path(self.path) / name).is_file() for name in ("dataset_dict.json", "state.json"))

    def _files(self) -> list[Path]:
        return sorted(Path(self.path).rglob("data-*.arrow" if self._is_saved else "*.parquet"))

    def _load(self, split: str) -> Any:
        import datasets

        try:
            if self._is_saved:
                saved = datasets.load_from_disk(self.path)
                splits = saved if isinstance(saved, dict) else {str(saved.split or "train"): saved}
                if self.named[split] not in splits:
                    raise ValueError(f"no such split; allowed: {', '.join(splits)}")
                return splits[self.named[split]]
            return datasets.load_dataset(
                self.path, self.config_name, split=self.named[split], streaming=Path(self.path).is_dir()
            )
        except ConnectionError as error:
            raise DataError(
                f"data.path={self.path}: the hub cannot be reached and this dataset is not in the local cache; "
                "download it where there is a network, or use files: data=gigaword, data=pair_files, data=text "
                f"({error})"
            ) from error
        except (datasets.exceptions.DatasetNotFoundError, OSError) as error:
            raise DataError(f"data.path={self.path}: {error}") from error
        # a wrong split or configuration; a dataset that needs a script; metadata of another form in a parquet file
        except (ValueError, RuntimeError, TypeError, AttributeError) as error:
            raise DataError(
                f"data.path={self.path}, data.config_name={self.config_name}, "
                f"data.{SHORT[split]}_split={self.named[split]}: {error}"
            ) from error


class HubPairs(HubSource):
    """Pairs: `article` and `title` name the columns; `train_split`, `valid_split` and `test_split` name the splits."""

    def __init__(
        self,
        *,
        path: Text,
        config_name: str | None = None,
        article: Text = "article",
        title: Text = "title",
        train_split: Text | None = "train",
        valid_split: Text | None = "validation",
        test_split: Text | None = "test",
        skip_bad: bool = False,
    ):
        names = {"train": train_split, "validation": valid_split, "test": test_split}
        super().__init__(path, config_name, names, (("data.article", article), ("data.title", title)), skip_bad)


class TextHub(HubSource):
    """One document per row, in the column `column`. `train_split`, `valid_split` and `test_split` name the splits."""

    schema = DOCUMENTS

    def __init__(
        self,
        *,
        path: Text,
        config_name: str | None = None,
        column: Text = "text",
        train_split: Text | None = "train",
        valid_split: Text | None = "validation",
        test_split: Text | None = "test",
        skip_bad: bool = False,
    ):
        names = {"train": train_split, "validation": valid_split, "test": test_split}
        super().__init__(path, config_name, names, (("data.column", column),), skip_bad)
