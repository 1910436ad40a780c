"use strict";
// Choosing a head: the grid, the panel about it, and its marks wherever the page names it.
// The page is complete without this.
(function () {
  const byId = (id) => document.getElementById(id);
  const panel = byId("about"), title = byId("about-title"), body = byId("about-body");
  const panels = new Map([...document.querySelectorAll("template")]
    .map((template) => [template.dataset.panel, template.content]));
  const names = [...panels.keys()];
  let chosen = null, opener = null;

  function mark() {
    for (const row of document.querySelectorAll("tr.marked")) row.classList.remove("marked");
    for (const button of document.querySelectorAll("[data-head]")) {
      const here = button.dataset.head === chosen;
      button.setAttribute("aria-pressed", String(here));
      if (here && !button.closest("#grid, #about")) button.closest("tr")?.classList.add("marked");
    }
  }

  function choose(name, focus) {
    if (panel.hidden) opener = document.activeElement;
    chosen = name;
    title.textContent = `About ${name}`;
    panel.hidden = false;
    document.body.classList.add("reading");
    body.replaceChildren(panels.get(name).cloneNode(true));
    body.scrollTop = 0;
    mark();
    history.replaceState(null, "", `#${name}`);
    if (focus) title.focus({preventScroll: true});
  }

  function close() {
    if (panel.hidden) return;
    const here = chosen;
    chosen = null;
    panel.hidden = true;
    document.body.classList.remove("reading");
    mark();
    history.replaceState(null, "", location.pathname + location.search);
    const back = opener?.isConnected && opener !== document.body ? opener : null;
    reveal(back || document.querySelector(`#grid [data-head="${CSS.escape(here)}"]`))?.focus();
  }

  function step(by) {
    choose(names[(names.indexOf(chosen) + by + names.length) % names.length], false);
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-head]");
    if (!button || !panels.has(button.dataset.head)) return;
    if (button.dataset.head === chosen) return close();
    if (panel.hidden) button.focus();  // not every browser does this on a click
    choose(button.dataset.head, true);
  });
  document.addEventListener("keydown", (event) => { 
    if (event.key === "Escape" && !tip.hidden) tip.hidden = true;
    else if (event.key === "Escape") close();
  });
  byId("about-close").addEventListener("click", close);
  byId("about-previous").addEventListener("click", () => step(-1));
  byId("about-next").addEventListener("click", () => step(1));

  // Many that are one stop of the Tab key: that which had the focus last.
  function oneStop(stops) {
    const enter = (stop) => { for (const other of stops) other.tabIndex = other === stop ? 0 : -1; };
    enter(stops[0]);
    for (const stop of stops) stop.addEventListener("focus", () => enter(stop));
  }

  // The grid, with arrow keys inside.
  const grid = byId("grid");
  if (grid) {
    const quantities = JSON.parse(byId("quantities").textContent);
    const rows = [...grid.tBodies[0].rows].map((row) => [...row.cells].slice(1)
      .map((cell) => cell.querySelector("button")));
    const cells = rows.flat().filter(Boolean);
    oneStop(cells);
    const steps = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
    grid.addEventListener("keydown", (event) => {
      const row = rows.findIndex((cellsOfRow) => cellsOfRow.includes(event.target));
      if (row < 0) return;
      let next = null;
      if (event.key === "Home") next = rows[row].find(Boolean);
      else if (event.key === "End") next = rows[row].findLast(Boolean);
      else if (event.key in steps) {
        const [down, right] = steps[event.key];
        let i = row, j = rows[row].indexOf(event.target);
        do { i += down; j += right; next = rows[i]?.[j]; } while (next === null);
      } else return;
      event.preventDefault();
      next?.focus();
    });

    const select = byId("colour-by"), legend = byId("grid-legend");
    const paint = () => {
      const quantity = quantities[Number(select.value)];
      for (const button of cells) {
        const name = button.dataset.head, cell = quantity.cells[name];
        const words = [name, cell ? cell.words : "no value"];
        if (button.classList.contains("core")) words.push("in the core");
        button.textContent = cell ? cell.text : "";
        button.style.background = cell ? cell.colour : "";
        button.style.color = cell ? cell.ink : "";
        button.title = words.join(", ");
        button.setAttribute("aria-label", button.title);
      }
      legend.replaceChildren(...quantity.legend.map(([colour, ink, text]) => {
        const item = document.createElement("li");
        item.textContent = text;
        Object.assign(item.style, {background: colour, color: ink});
        return item;
      }));
    };
    select.addEventListener("change", paint);
    paint();
  }

  // Dots of a figure, with arrow keys in the order of the list; paths of one that is pointed at.
  for (const plot of document.querySelectorAll(".canvas")) {
    const dots = [...plot.querySelectorAll(".dot")]
      .sort((a, b) => Number(a.dataset.rank) - Number(b.dataset.rank));
    const edges = [...plot.querySelectorAll(".edge")];
    if (!dots.length) continue;
    oneStop(dots);
    plot.addEventListener("keydown", (event) => {
      const dot = event.target.closest(".dot"), at = dots.indexOf(dot);
      const to = {ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1,
        Home: 0, End: dots.length - 1}[event.key];
      if (event.key === "Enter" || event.key === " ") {
        dot.dispatchEvent(new MouseEvent("click", {bubbles: true}));
      } else if (to === undefined) return;
      event.preventDefault();
      dots[to]?.focus();
    });
    const highlight = (event) => {
      const leaves = event.type.endsWith("out");
      const rank = (leaves ? document.activeElement : event.target).closest(".dot")?.dataset.rank;
      plot.classList.toggle("highlighted", Boolean(rank) && edges.length > 0);
      for (const edge of edges)
        edge.classList.toggle("highlighted", edge.dataset.ends.split(" ").includes(rank));
    };
    for (const name of ["mouseover", "mouseout", "focusin", "focusout"])
      plot.addEventListener(name, highlight);
  }

  // What a dot or a term means, while it is pointed at or has the focus.
  const tip = byId("tip");
  const explain = (event) => {
    const owner = event.target.closest(".dot, abbr");
    tip.hidden = !owner;
    if (!owner) return;
    if (owner.title) {  // a browser's own hint shows late, and never on focus
      owner.dataset.meaning = owner.title;
      owner.removeAttribute("title");
      owner.setAttribute("aria-describedby", "tip");
    }
    tip.textContent = owner.dataset.meaning || owner.getAttribute("aria-label");
    const {left, top, bottom} = owner.getBoundingClientRect();
    const {width, height} = tip.getBoundingClientRect();
    const above = bottom + height + 8 > innerHeight;
    tip.style.left = `${Math.max(8, Math.min(left, innerWidth - width - 8))}px`;
    tip.style.top = `${above ? top - height - 8 : bottom + 8}px`;
  };
  for (const name of ["mouseover", "focusin"]) document.addEventListener(name, explain);
  document.addEventListener("focusout", () => { tip.hidden = true; });
  addEventListener("scroll", () => { tip.hidden = true; }, {passive: true});

  // Links that would leave the page take what the page carries instead.
  for (const link of document.querySelectorAll("a[data-file]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      document.querySelector(`#files a[download="${CSS.escape(link.dataset.file)}"]`).click();
    });
  }
  for (const link of document.querySelectorAll("a[data-picture]")) {
    link.href = link.closest("figure").querySelector("img").src;
  }

  // On paper nothing can be opened.
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => { for (const part of folded) part.open = false; });

  // Sections are folded; what a link or the focus goes to opens.
  function reveal(element) {
    for (let fold = element?.closest("details") ?? element?.querySelector(":scope > details"); fold;
      fold = fold.parentElement.closest("details")) fold.open = true;
    return element;
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]:not([data-file])');
    if (link) reveal(byId(link.hash.slice(1)));
  });

  function follow() {
    const name = decodeURIComponent(location.hash.slice(1));
    reveal(byId(name));
    if (panels.has(name) && name !== chosen) choose(name, false);
  }
  addEventListener("hashchange", follow);
  mark();
  follow();
})();
