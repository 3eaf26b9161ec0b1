"""Pieces of HTML to one page that needs nothing else: its frame, tables that sort by a click, and cards of facts.

It must not know what the figures mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from polyconv.dataclass import dataclass

__all__ = ["Cell", "card", "page", "table"]

_STYLE = """
body { font: 14px/1.45 sans-serif; max-width: 78em; margin: 1.5em auto; padding: 0 1em; color: #222 }
.wide { overflow-x: auto }
table { border-collapse: collapse; margin: 1em 0; font-size: 12px; font-variant-numeric: tabular-nums }
th, td { padding: .15em .5em; border-bottom: 1px solid #ddd; text-align: right; vertical-align: top }
th:first-child, td:first-child, td.text, th.text { text-align: left }
td:first-child, td.text { overflow-wrap: anywhere }
.facts td:first-child { white-space: nowrap; overflow-wrap: normal }
th button { all: unset; cursor: pointer; font-weight: bold } th button:focus-visible { outline: 2px solid #0072b2 }
th[aria-sort=ascending] button::after { content: " \\2191" }
th[aria-sort=descending] button::after { content: " \\2193" }
td.lost { background: #fbe3d6 } td.won { background: #ddeedd }
.banner { background: #fff3cd; border-left: .4em solid #d29e00; padding: .5em 1em }
details { margin: 0 } details p { margin: .2em 0; color: #444 } summary { cursor: pointer }
svg { max-width: 100%; height: auto } .plot { overflow-x: auto } .plot svg { min-width: 44em } code { font-size: 12px }
@media (max-width: 60em) { .more { display: none } }
"""

_SORT = """
for (const head of document.querySelectorAll("table.sortable th")) {
  const words = head.textContent, button = document.createElement("button");
  button.textContent = words; head.textContent = ""; head.append(button);
  button.onclick = () => {
    const table = head.closest("table"), at = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = row => { const cell = row.children[at]; return cell.dataset.value ?? cell.textContent; };
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)], [p, q] = [parseFloat(x), parseFloat(y)];
      if (isNaN(p) || isNaN(q)) return isNaN(p) && isNaN(q) ? x.localeCompare(y) : isNaN(p) ? 1 : -1;
      return p - q;
    };
    const rows = [...table.tBodies[0].rows].sort(order);
    table.tBodies[0].append(...(down ? rows.reverse() : rows));
  };
}
"""


def page(title: str, parts: Sequence[str]) -> str:
    """The page.

    Parameters
    ----------
    parts : sequence of str
        HTML, one below the other.
    """
    head = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><title>{escape(title)}</title>"
        f"<style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>"
    )
    return "\n".join((head, *parts, f"</main><script>{_SORT}</script></body></html>")) + "\n"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of HTML: its class, and the number or text to sort by where the text is not it."""

    text: str
    kind: str = ""
    value: float | str | None = None

    def __str__(self) -> str:
        kind = f" class='{self.kind}'" if self.kind else ""
        value = "" if self.value is None else f" data-value='{escape(str(self.value), quote=True)}'"
        return f"<td{kind}{value}>{self.text}</td>"


def table(columns: Sequence[str], rows: Sequence[Sequence[str | Cell]], text: Sequence[str] = (),
          more: Sequence[str] = (), kind: str = "") -> str:  # fmt: skip
    """A table of cells that are HTML already.

    Parameters
    ----------
    text : sequence of str
        Columns that are set to the left.
    more : sequence of str
        Columns that narrow screens leave out.
    kind : str
        Its class: ``sortable`` or ``facts``.
    """
    classes = [" ".join(c for c, names in (("text", text), ("more", more)) if name in names) for name in columns]
    head = "".join(f"<th class='{c}'>{escape(name)}</th>" for c, name in zip(classes, columns, strict=True))
    body = "".join(
        "<tr>" + "".join(_celled(cell, c) for c, cell in zip(classes, row, strict=True)) + "</tr>\n"
        for row in rows
    )  # fmt: skip
    return f"<div class='wide'><table class='{kind}'><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _celled(cell: str | Cell, kind: str) -> str:
    made = cell if isinstance(cell, Cell) else Cell(cell)
    return str(replace(made, kind=f"{kind} {made.kind}".strip()))


def card(facts: Mapping[str, Any]) -> str:
    """Names and values; what is a mapping has a row each."""
    rows = []
    for title, value in facts.items():
        pairs = value.items() if isinstance(value, Mapping) else [("", value)]
        rows += [(escape(f"{title} {name}".strip()), escape(str(fact))) for name, fact in pairs]
    return table(("", "value"), rows, ("value",), kind="facts")
