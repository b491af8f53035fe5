"""Writes docs/paper.md as the notebook paper.ipynb into the working directory (make notebook)."""

import json
import re
from pathlib import Path

PAGE = Path(__file__).with_name("paper.md")


def notebook(page: str) -> dict:
    """A cell for each block of code and for each text between blocks, whose links have no target in a notebook.

    A magic command runs a block of bash, and writes a block that begins with the name of a file.
    """
    parts = [*re.split(r"^```(\w+)\n(.*?)^```$", page, flags=re.M | re.S), "", ""]
    cells = []
    for text, language, code in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if text.strip():
            text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text.strip())
            cells.append({"cell_type": "markdown", "metadata": {}, "source": text})
        if language == "text":  # what is not run
            cells.append({"cell_type": "markdown", "metadata": {}, "source": f"```text\n{code}```"})
        elif code:
            file = re.match(r"# (\w+\.py)\n", code)
            magic = "%%bash\n" if language == "bash" else f"%%writefile {file[1]}\n" if file else ""
            cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
            cells.append({**cell, "source": magic + code.rstrip()})
    return {"cells": cells, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 4}


if __name__ == "__main__":
    Path("paper.ipynb").write_text(json.dumps(notebook(PAGE.read_text()), indent=1) + "\n")
