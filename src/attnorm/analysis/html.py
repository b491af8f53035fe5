"""The HTML pages of reports and of comparisons on probes."""

import jinja2


def templates_of(package: str) -> jinja2.Environment:
    """The templates of a package, and those of all pages, which escape every text and raise an error for a name without
    a value."""
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package), jinja2.PackageLoader("attnorm.analysis")]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
