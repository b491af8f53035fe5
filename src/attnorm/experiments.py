"""The folder experiments/ of a clone of the repository as a package, such as `attnorm.experiments.papers.figures`.

It is not installed. The clone is the one that attnorm has been installed from with `pip install -e`, or else the
working directory, if modules of the user may be there (`imports.own_folders`).
"""

from pathlib import Path

from attnorm.errors import ConfigError
from attnorm.imports import own_folders


class NoClone(ConfigError, ImportError):
    """The code is in a clone of the repository, which is somewhere else."""


_folders = [Path(__file__).parents[2] / "experiments", *(Path(folder, "experiments") for folder in own_folders)]
__path__ = [str(folder) for folder in _folders if (folder / "papers").is_dir()][:1]
if not __path__:
    message = (
        "the figures of the papers and the data with word alignments are in experiments/ of a clone of attnorm and are "
        'not installed; type the command in a clone, or install attnorm there with: pip install -e ".[train]"'
    )
    raise NoClone([message])
