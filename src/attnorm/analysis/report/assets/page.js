/* Sorting and copying of tables, and the mode of the page. */
"use strict";

(() => {
  // ---------------------------------------------------------------------------------------------- light and dark mode
  const button = document.getElementById("mode"), system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => { try { return localStorage.getItem("attnorm-mode"); } catch { return null; } };
  const isDark = () => (document.documentElement.dataset.mode || (system.matches ? "dark" : "light")) === "dark";
  const show = () => button.setAttribute("aria-pressed", String(isDark()));
  if (stored()) document.documentElement.dataset.mode = stored();
  button.addEventListener("click", () => {
    document.documentElement.dataset.mode = isDark() ? "light" : "dark";
    try { localStorage.setItem("attnorm-mode", document.documentElement.dataset.mode); } catch { /* no storage */ }
    show();
  });
  system.addEventListener("change", show);
  show();

  // ----------------------------------------------------------------------------------------------------------- sorting
  const valueOf = (cell) => cell.dataset.value === undefined ? null : Number(cell.dataset.value);

  function compare(first, second, numeric) {
    if (!numeric) return first.textContent.localeCompare(second.textContent, "en", { numeric: true });
    const [a, b] = [valueOf(first), valueOf(second)];
    return a - b;
  }

  function sort(header) {
    const table = header.closest("table"), place = header.cellIndex, body = table.tBodies[0];
    const numeric = header.classList.contains("number");
    const descending = header.getAttribute("aria-sort") === (numeric ? "none" : "ascending") ||
      (numeric && header.getAttribute("aria-sort") === "ascending");
    for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const missing = (row) => numeric && valueOf(row.cells[place]) === null;
    const rows = [...body.rows].sort((a, b) =>
      missing(a) - missing(b) || (missing(a) ? 0 : (descending ? -1 : 1) * compare(a.cells[place], b.cells[place], numeric)));
    body.append(...rows);
  }

  document.addEventListener("click", (event) => {
    const header = event.target.closest("th[aria-sort] > button");
    if (header) sort(header.parentElement);
  });

  // ----------------------------------------------------------------------------------------------------------- copying
  const texts = (table) => [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.replaceAll("\u00a0", " ").trim()));
  const isNumeric = (table) => [...table.tHead.rows[0].cells].map((cell) => cell.classList.contains("number"));
  const latexSigns = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$", "\u2212": "$-$", "\u2013": "--",
    "\u2191": "$\\uparrow$", "\u2193": "$\\downarrow$", "\u2026": "\\dots{}",
  };
  const inLatex = (text) => text.replace(/[\\{}&%$#_~^<>\u2212\u2013\u2191\u2193\u2026]/g, (sign) => latexSigns[sign]);
  const inMarkdown = (text) => text.replace(/[\\|<>*_`[\]]/g, "\\$&").replace(/\s+/g, " ");
  const inCsv = (text) => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;

  const formats = {
    latex(table) {
      const [head, ...rows] = texts(table).map((cells) => cells.map(inLatex));
      const line = (cells) => `${cells.join(" & ")} \\\\`;
      const places = isNumeric(table).map((numeric) => numeric ? "r" : "l").join("");
      const body = [line(head), "\\midrule", ...rows.map(line)];
      return [`\\begin{tabular}{${places}}`, "\\toprule", ...body, "\\bottomrule", "\\end{tabular}", ""].join("\n");
    },
    markdown(table) {
      const [head, ...rows] = texts(table).map((cells) => `| ${cells.map(inMarkdown).join(" | ")} |`);
      const rule = `|${isNumeric(table).map((numeric) => numeric ? "---:" : "---").join("|")}|`;
      return [head, rule, ...rows, ""].join("\n");
    },
    csv(table) { // numbers in full, intervals in two columns, and no text that a spreadsheet would take for a formula
      const plain = (cell) => cell.textContent.trim().replaceAll("\u2212", "-");
      const ends = (cell) => /^([+-]?\d\S*) to ([+-]?\d\S*)$/.exec(plain(cell))?.slice(1).map((end) => end.replace(/^\+|,/g, ""));
      const rows = [...table.rows].map((row) => [...row.cells]);
      const hasEnds = rows[0].map((_, place) => rows.some((cells) => ends(cells[place])));
      const field = (cell) => {
        const text = plain(cell);
        if (cell.dataset.value !== undefined) return cell.dataset.value;
        return inCsv(/^[=+@\t\r-]/.test(text) ? `'${text}` : text);
      };
      const fields = (cell, place, isHead) => {
        if (!hasEnds[place]) return field(cell);
        return isHead ? [`${field(cell)} from`, `${field(cell)} to`] : ends(cell) || [field(cell), ""];
      };
      return rows.map((cells, row) => cells.flatMap((cell, place) => fields(cell, place, row === 0)).join(",")).join("\r\n") + "\r\n";
    },
  };
  window.tableAs = (format, table) => formats[format](table);

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch { // no permission
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  for (const it of document.querySelectorAll("[data-copy]")) {
    it.addEventListener("click", async () => {
      const box = it.closest(".table"), said = box.querySelector(".said");
      const done = await copy(formats[it.dataset.copy](box.querySelector("table")));
      it.focus();
      said.textContent = done ? "Copied." : "The browser does not allow copying.";
      setTimeout(() => { said.textContent = ""; }, 4000);
    });
  }
})();
