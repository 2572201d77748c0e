"""Sections as one self-contained HTML file. All text is escaped here; our own figures go in as they are."""

from __future__ import annotations

from html import escape
from pathlib import Path
from string import Template

from analysis.plots import Figure
from analysis.sections import Section
from analysis.tables import Table
from analysis.text import clean, shown

_HERE = Path(__file__).parent


def page(title: str, lead: str, sections: list[Section]) -> str:
    """The whole document; ``title`` and ``lead`` are plain text."""
    contents = "".join(f'<li><a href="#{escape(s.id)}">{_text(s.title)}</a></li>' for s in sections)
    return Template((_HERE / "report.html").read_text(encoding="utf-8")).substitute(
        style=(_HERE / "report.css").read_text(encoding="utf-8"),
        title=_text(title),
        lead=_text(lead),
        contents=contents,
        body="\n".join(_section(section) for section in sections),
    )


def _text(value: object) -> str:
    return escape(clean(value))


def _section(section: Section) -> str:
    parts = [f'<section id="{escape(section.id)}"><h2>{_text(section.title)}</h2>']
    parts += [f"<p>{_text(paragraph)}</p>" for paragraph in section.text]
    if section.points:
        parts.append("<ul>" + "".join(f"<li>{_point(point)}</li>" for point in section.points) + "</ul>")
    parts += [f'<p class="note">{_text(section.note)}</p>'] if section.note else []
    parts += [_figure(figure) for figure in section.figures]
    parts += [_table(table) for table in section.tables]
    return "\n".join([*parts, "</section>"])


def _point(sentence: str) -> str:
    """A sentence whose opening, up to a colon, can be read alone."""
    opening, colon, rest = sentence.partition(": ")
    return f"<strong>{_text(opening)}:</strong> {_text(rest)}" if colon else _text(sentence)


def _figure(figure: Figure) -> str:
    title = f"{figure.name}-title"
    svg = figure.svg.replace("<svg ", f'<svg role="img" aria-labelledby="{title}" ', 1)
    head, rest = svg.split(">", 1)
    svg = f'{head}><title id="{title}">{_text(figure.alt)}</title>{rest}'
    return f'<figure id="figure-{escape(figure.name)}">{svg}<figcaption>{_text(figure.caption)}</figcaption></figure>'


def _table(table: Table) -> str:
    """A table scrolls within its own frame, which the keyboard reaches."""
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in table.columns)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>\n" for row in table.rows)
    caption = _text(table.caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">'
        f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
        f'<p class="file">Also as <a href="tables/{escape(table.name)}.csv">tables/{escape(table.name)}.csv</a></p>'
    )


def _cell(cell: object) -> str:
    numeric = isinstance(cell, int | float) and not isinstance(cell, bool)
    text = _text(shown(cell))
    if numeric:
        return f'<td class="number">{text}</td>'
    length = "longer" if len(text) > 120 else "long" if len(text) > 32 else ""
    return f'<td class="{length}">{text}</td>' if length else f"<td>{text}</td>"
