"""Make a study's report: ``python -m analysis.report results/quick``.

Reads the records and the plan below the directory and writes ``report.html`` and ``tables/*.csv`` beside them.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from pathlib import Path
from typing import NoReturn

from analysis.load import ReportError, Study, load
from analysis.page import page
from analysis.sections import Section, build
from analysis.tables import write_csv
from analysis.text import clean, counted, listed
from hvdkan.files import replacing
from hvdkan.streams import outlive_readers


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ReportError(f"{message}; give the results directory of one study, as in results/quick")


def main(arguments: list[str] | None = None) -> int:
    """Exit status 0 when a report was made, also of a study that failed; 2 where there is nothing to report on."""
    parser = _Parser(prog="python -m analysis.report", description=__doc__, allow_abbrev=False)
    parser.add_argument("directory", type=Path, help="results of one study, as in results/quick")
    try:
        directory = parser.parse_args(arguments).directory
        study = load(directory)
        sections = build(study)
        path = write(directory, study, sections)
    except (ReportError, OSError) as error:
        print(f"error: {clean(error)}", file=sys.stderr)
        return 2
    for paragraph in sections[0].text:
        print(_wrapped(paragraph))
    for point in sections[0].points:
        print(_wrapped(f"- {point}"))
    print(path)
    return 0


def write(directory: Path, study: Study, sections: list[Section]) -> Path:
    """Write the page and its tables, each of them whole; the page appears when all is there. Returns the page's path.

    ``tables/`` holds what the latest report made and nothing else. Two reports at once both succeed.
    """
    tables = directory / "tables"
    tables.mkdir(exist_ok=True)
    written = {write_csv(table, tables) for section in sections for table in section.tables}
    path = directory / "report.html"
    with replacing(path) as stream:
        stream.write(page(f"Study {study.name}", lead(study), sections).encode())
    for old in set(tables.glob("*.csv")) - written:
        old.unlink(missing_ok=True)
    return path


def _wrapped(text: str) -> str:
    """Text for the terminal: whole words on lines that fit."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(clean(text), width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def lead(study: Study) -> str:
    """One line under the title: how much there is, when it ran, and with what."""
    rows = study.launches
    days = sorted({started[:10] for started in rows["started_at"] if started})
    when = f", {days[0]}" + (f" to {days[-1]}" if len(days) > 1 else "") if days else ""
    processors = sorted({str(e["cpu"]) for e in rows["environment"] if e.get("cpu")})
    machine = f", on {listed(processors, 3)}" if processors else ""
    return f"{counted(len(rows), 'launch')} of {counted(rows['arm'].nunique(), 'variant')}{when}{machine}."


if __name__ == "__main__":
    outlive_readers()
    for output in (sys.stdout, sys.stderr):
        # Names of files need not be text in any encoding, and terminals have encodings without an ellipsis.
        output.reconfigure(errors="backslashreplace")
    sys.exit(main())
