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
      const done = await copy(it.dataset.copy);
      it.focus();
      said.textContent = done ? "Copied." : "The browser does not allow copying.";
      setTimeout(() => { said.textContent = ""; }, 4000);
    });
  }
})();
