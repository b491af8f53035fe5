/* Draws the charts with Vega, each when it comes near the screen, and makes the tables behind them. */
"use strict";

(async () => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const tip = document.getElementById("tip"), drawn = new Set();

  const objects = ({ fields, rows }) =>
    rows.map((row) => Object.fromEntries(fields.map((field, place) => [field, row[place]])));
  const written = (value) => value === null ? "\u2013" : String(value).replace("-", "\u2212");

  // The table behind a chart is made when it is opened.
  document.addEventListener("toggle", (event) => {
    const box = event.target;
    if (!box.open || !box.dataset?.table || box.querySelector("table")) return;
    const { columns, fields, data } = figures[box.dataset.table];
    const table = document.createElement("table"), scroll = document.createElement("div");
    const head = table.createTHead().insertRow();
    for (const name of columns) head.append(Object.assign(document.createElement("th"), { textContent: name, scope: "col" }));
    const body = table.createTBody();
    for (const row of objects(data.rows)) {
      const line = body.insertRow();
      for (const field of fields) {
        const cell = line.insertCell();
        cell.textContent = written(row[field]);
        if (typeof row[field] === "number") cell.className = "number";
      }
    }
    Object.assign(scroll, { className: "scroll", tabIndex: 0, role: "region", ariaLabel: box.textContent });
    scroll.append(table);
    box.append(scroll);
  }, true);

  function showTip(_, event, item, value) {
    tip.hidden = !value;
    if (!value) return;
    tip.replaceChildren(...Object.entries(value).map(([name, text]) => {
      const line = document.createElement("div");
      line.append(Object.assign(document.createElement("b"), { textContent: name }), ` ${text}`);
      return line;
    }));
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${Math.max(4, event.clientY - height - 12)}px`;
  }

  async function draw(place) {
    const name = place.dataset.chart;
    if (drawn.has(name)) return;
    drawn.add(name);
    const { spec, data } = figures[name];
    spec.datasets = Object.fromEntries(Object.entries(data).map(([set, its]) => [set, objects(its)]));
    spec.description = place.getAttribute("aria-label");
    await window.vegaEmbed(place.firstElementChild, spec, { mode: "vega-lite", renderer: "svg", actions: false, tooltip: showTip });
  }

  // The picture of a chart for a paper is drawn when it is downloaded.
  document.addEventListener("click", async ({ target }) => {
    if (!target.dataset?.picture) return;
    const { picture, data, file } = figures[target.dataset.of], kind = target.dataset.picture;
    const spec = { ...picture, datasets: Object.fromEntries(Object.entries(data).map(([set, its]) => [set, objects(its)])) };
    const { view } = await window.vegaEmbed(document.createElement("div"), spec, { mode: "vega-lite", renderer: "none", actions: false });
    const link = Object.assign(document.createElement("a"), { href: await view.toImageURL(kind, 4), download: `${file}.${kind}` });
    link.click();
    view.finalize();
  });

  const compressed = Uint8Array.from(atob(document.getElementById("library").textContent), (it) => it.charCodeAt(0));
  const stream = new Blob([compressed]).stream().pipeThrough(new DecompressionStream("gzip"));
  new Function(await new Response(stream).text())();

  // Charts near the screen come first, the others when the browser has time, and all of them before printing.
  const places = [...document.querySelectorAll("[data-chart]")], all = () => Promise.all(places.map(draw));
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) draw(target);
  }, { rootMargin: "300px" });
  places.forEach((place) => observer.observe(place));
  const later = window.requestIdleCallback || ((action) => setTimeout(action, 50));
  const next = (place = 0) => place < places.length && later(async () => { await draw(places[place]); next(place + 1); });
  next();
  addEventListener("beforeprint", all);
  window.drawAll = all;
  document.documentElement.dataset.ready = "";
})();
