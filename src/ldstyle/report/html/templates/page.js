"use strict";
// All content is in the page already; this adds sorting, filtering, the image browser and the choice of theme.
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

/** Make an element; properties are set as they are, so text never becomes markup. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// ---- Theme: the system's, until the reader chooses; storage may be forbidden for files.
const memory = {
  get() { try { return localStorage.getItem("ldstyle-theme"); } catch { return null; } },
  set(value) { try { localStorage.setItem("ldstyle-theme", value); } catch { /* the choice lasts as long as the page */ } },
};
const system = matchMedia("(prefers-color-scheme: dark)");
function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("#theme").textContent = theme === "dark" ? "Light" : "Dark";
  $("#theme").title = `Switch to ${theme === "dark" ? "light" : "dark"} colours`;
  for (const figure of figures) figure.show(theme === "dark");
}
// Line art is recoloured, photographs come in two versions; on paper all are light again.
const pageData = JSON.parse($("#page-data").textContent);
const recolour = (address) => {
  const [kind, content] = address.split(",");
  const svg = atob(content).replace(/#[0-9a-f]{6}\b/gi, (colour) => pageData.dark[colour.toLowerCase()] ?? colour);
  // Elements without a colour are black.
  return `${kind},${btoa(svg.replace("<svg ", `<svg fill="${pageData.dark["#000000"]}" `))}`;
};
const figures = $$(".drawing, .photograph").map((element) => {
  const name = element.tagName === "SOURCE" ? "srcset" : "src";
  const light = element.getAttribute(name);
  let dark = element.dataset.dark;
  return {
    show(onDark) {
      if (onDark) dark ??= element.matches(".drawing") ? recolour(light) : light;
      element.setAttribute(name, onDark ? dark : light);
    },
  };
});
addEventListener("beforeprint", () => figures.forEach((figure) => figure.show(false)));
addEventListener("afterprint", () => showTheme(document.documentElement.dataset.theme));
showTheme(memory.get() ?? (system.matches ? "dark" : "light"));
system.addEventListener("change", () => memory.get() ?? showTheme(system.matches ? "dark" : "light"));
$("#theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  memory.set(theme);
  showTheme(theme);
});

// ---- Contents: closed on small screens, and the part in view is marked.
const contents = $(".contents");
const narrow = matchMedia("(max-width: 68rem)");
const fold = () => { contents.open = !narrow.matches; };
fold();
narrow.addEventListener("change", fold);
contents.addEventListener("click", (event) => { if (event.target.closest("a")) fold(); });
const links = new Map($$(".contents a").map((link) => [link.hash.slice(1), link]));
const inView = new Set();
const watch = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) inView.add(target.id);
    else inView.delete(target.id);
  }
  // Of a section and its items, the item: it comes later.
  const current = [...links.keys()].filter((id) => inView.has(id)).at(-1);
  links.forEach((link, id) => {
    if (id === current) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  });
  if (current && !narrow.matches) links.get(current).scrollIntoView({ block: "nearest", behavior: "instant" });
}, { rootMargin: "-10% 0px -80% 0px" });
links.forEach((_, id) => { const part = document.getElementById(id); if (part) watch.observe(part); });

// ---- Figures grow on a click; commands can be copied.
for (const plate of $$(".plate")) {
  plate.addEventListener("click", () => plate.setAttribute("aria-pressed", String(plate.getAttribute("aria-pressed") !== "true")));
}
for (const button of $$(".copy")) {
  button.addEventListener("click", async () => {
    const code = $("code", button.parentElement);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch { // forbidden here: leave the text selected for the reader to copy
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1600);
  });
}

// ---- Sorting: numbers from the largest, words from A; a third press brings back the first order.
const words = new Intl.Collator("en", { numeric: true });
const numberOf = (cell) => (cell.dataset.n === undefined ? null : Number(cell.dataset.n));
function sortBy(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const numeric = rows.some((row) => numberOf(row.cells[column]) !== null);
  const sign = direction === "descending" ? -1 : 1;
  rows.sort((one, other) => {
    if (direction === "none") return one.dataset.order - other.dataset.order;
    const [a, b] = [one.cells[column], other.cells[column]];
    if (!numeric) return sign * words.compare(a.textContent, b.textContent);
    const [x, y] = [numberOf(a), numberOf(b)];
    if (x === null || y === null) return (x === null) - (y === null); // entries without a value stay last
    return sign * (x - y);
  });
  // Lines between groups mean nothing in another order.
  rows.forEach((row) => row.classList.toggle("rule", direction === "none" && "rule" in row.dataset));
  body.append(...rows);
}
for (const table of $$("table")) {
  [...table.tBodies[0].rows].forEach((row, order) => { row.dataset.order = order; });
  const headers = $$("thead th", table);
  headers.forEach((header, column) => $(".sort", header).addEventListener("click", () => {
    const numeric = [...table.tBodies[0].rows].some((row) => numberOf(row.cells[column]) !== null);
    const cycle = numeric ? ["none", "descending", "ascending"] : ["none", "ascending", "descending"];
    const direction = cycle[(cycle.indexOf(header.getAttribute("aria-sort")) + 1) % 3];
    headers.forEach((other) => other.setAttribute("aria-sort", other === header ? direction : "none"));
    sortBy(table, column, direction);
  }));
}

// ---- Filter: the runs that pass decide which methods and splits the rest of the page shows.
const runRows = $$("#run-table tbody tr");
const chips = $$("#run-filter .chip");
const search = $("#run-filter input");
const listed = (value) => (value ? value.split("\t") : []);
const filterListeners = [];

function chosen() {
  const groups = new Map();
  for (const chip of chips.filter((one) => one.getAttribute("aria-pressed") === "true")) {
    groups.set(chip.dataset.group, [...(groups.get(chip.dataset.group) ?? []), chip.value]);
  }
  return groups;
}

function applyFilter() {
  const terms = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  const groups = chosen();
  const active = terms.length > 0 || groups.size > 0;
  for (const row of runRows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !terms.every((term) => text.includes(term))
      || ![...groups].every(([group, values]) => values.includes(row.dataset[group]));
  }
  const left = runRows.filter((row) => !row.hidden);
  const known = new Map(); // by grid: splits of one name may differ between grids
  const allowed = (grid) => {
    if (!known.has(grid)) {
      const rows = left.filter((row) => grid === undefined || row.dataset.grid === grid);
      known.set(grid, {
        methods: new Set(rows.map((row) => row.dataset.method)),
        splits: new Set(rows.map((row) => row.dataset.splitName)),
      });
    }
    return known.get(grid);
  };
  const lets = (names, set) => names.length === 0 || names.some((name) => set.has(name));
  const passes = (element) => {
    const { methods, splits } = allowed(element.closest("section")?.dataset.grid);
    return lets(listed(element.dataset.methods), methods) && lets(listed(element.dataset.splits), splits);
  };
  for (const table of $$("table.filtered")) {
    const columns = $$("thead th", table).map(passes);
    for (const row of $$("tbody tr", table)) row.hidden = !passes(row);
    for (const row of table.rows) [...row.cells].forEach((cell, i) => { cell.hidden = !columns[i]; });
  }
  for (const item of $$(".item")) {
    item.hidden = !passes(item);
    links.get(item.id).parentElement.hidden = item.hidden;
  }
  for (const table of $$("table")) {
    const box = table.parentElement;
    $(".nothing", box).hidden = $$("tbody tr", table).some((row) => !row.hidden);
  }
  $("#filter-state").hidden = !active;
  $("#filter-state span").textContent = active ? `${left.length} of ${runRows.length} runs shown` : "";
  filterListeners.forEach((listener) => listener(new Set(left.map((row) => row.dataset.run))));
}

$("#to-filter").hidden = !search;
if (search) {
  search.addEventListener("input", applyFilter);
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true"));
      applyFilter();
    });
  }
  $$(".clear-filter").forEach((button) => button.addEventListener("click", () => {
    search.value = "";
    chips.forEach((chip) => chip.setAttribute("aria-pressed", "false"));
    applyFilter();
    search.focus();
  }));
  $("#to-filter").addEventListener("click", () => search.focus());
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
    event.preventDefault();
    search.focus();
  });
}

// ---- Image browser: a film of thumbnails, worst first, and one image with the prediction for each label.
const VERDICTS = { h: "found", m: "missed", f: "false alarm", a: "absent", u: "not known" };
const percent = (p) => `${Math.round(100 * p)}`;
const jpeg = (content) => `data:image/jpeg;base64,${content}`;
const png = (content) => `data:image/png;base64,${content}`;

function startBrowser(data) {
  const film = $("#film");
  const stage = { image: $("#stage-image"), heat: $("#stage-heat"), note: $("#stage-note") };
  const selects = { target: $("#choose-target"), label: $("#choose-label"), kind: $("#choose-kind"), order: $("#choose-order") };
  const state = { target: null, view: null, image: null, label: null };
  let allowed = null; // runs that the page's filter has left

  const mayShow = (view) => !allowed || allowed.has(view.run);

  function fillTargets() {
    const open = data.targets.filter((target) => target.views.some(mayShow));
    const several = new Set(data.targets.map((target) => target.group)).size > 1;
    selects.target.replaceChildren(...open.map((target) => {
      const text = `${several ? `${target.group}: ` : ""}${target.split}, ${target.domain}`;
      return make("option", { value: String(data.targets.indexOf(target)), textContent: text });
    }));
    $("#browser-empty").hidden = open.length > 0;
    $("#browser").hidden = open.length === 0;
    if (!open.length) return;
    showTarget(open.includes(state.target) ? state.target : open[0]);
  }

  function showTarget(target) {
    selects.target.value = String(data.targets.indexOf(target));
    if (target !== state.target) {
      const before = selects.label.value;
      selects.label.replaceChildren(make("option", { value: "", textContent: "any" }),
        ...target.vocabulary.map((name) => make("option", { value: name, textContent: name })));
      selects.label.value = target.vocabulary.includes(before) ? before : "";
      state.image = null;
    }
    state.target = target;
    const views = target.views.filter(mayShow);
    const wanted = views.find((view) => view.method === state.view?.method) ?? views[0];
    $("#choose-view").replaceChildren(...views.map((view) => make("label", {},
      make("input", { type: "radio", name: "view", checked: view === wanted, onchange: () => showView(view) }),
      make("span", { textContent: view.title }))));
    showView(wanted);
  }

  function showView(view) {
    state.view = view;
    fillFilm();
  }

  /** Images that pass the filters, in order. */
  function shownImages() {
    const { target, view } = state;
    const label = target.vocabulary.indexOf(selects.label.value);
    const kinds = { any: null, wrong: "mf", missed: "m", false: "f", right: null }[selects.kind.value];
    const passes = (image) => {
      const verdicts = view.verdicts[image];
      if (selects.kind.value === "right") {
        return (label < 0 || verdicts[label] === "h") && !/[mf]/.test(label < 0 ? verdicts : verdicts[label]);
      }
      const judged = label < 0 ? [...verdicts] : [verdicts[label]];
      // Without a kind of error, a label stands for the images that have it or are said to.
      return kinds === null ? label < 0 || /[hmf]/.test(verdicts[label]) : judged.some((one) => kinds.includes(one));
    };
    const sign = selects.order.value === "best" ? -1 : 1;
    return target.keys.map((_, image) => image).filter(passes)
      .sort((one, other) => sign * (view.errors[other] - view.errors[one]) || one - other);
  }

  function wrongLabels(image) {
    const { target, view } = state;
    return target.vocabulary.flatMap((name, i) => ("mf".includes(view.verdicts[image][i])
      ? [`${VERDICTS[view.verdicts[image][i]]}: ${name}`] : []));
  }

  function fillFilm() {
    const { target, view } = state;
    const images = shownImages();
    film.replaceChildren(...images.map((image) => {
      const wrong = wrongLabels(image);
      const option = make("li", { role: "option", tabIndex: -1, "aria-selected": "false", title: target.keys[image] },
        make("img", { src: jpeg(target.thumbnails[image]), alt: "" }),
        make("span", { className: wrong.length ? "wrong" : "", textContent: wrong.length ? `${wrong.length} wrong` : "all right" }));
      option.setAttribute("aria-label", `${target.keys[image]}: ${wrong.join(", ") || "all right"}`);
      option.dataset.image = image;
      option.addEventListener("click", () => select(image, true));
      return option;
    }));
    const drawn = images.filter((image) => target.random[image]).length;
    $("#browser-count").textContent = `${images.length} of ${target.keys.length} images; `
      + `${drawn} of them drawn at random from ${target.total}, the others picked for their errors.`;
    $("#film-empty").hidden = images.length > 0;
    $("#detail").hidden = images.length === 0;
    if (images.length) select(images.includes(state.image) ? state.image : images[0], false);
    film.setAttribute("aria-label", `Images of ${target.domain} as ${view.title} judges them`);
  }

  function select(image, focus) {
    state.image = image;
    for (const option of film.children) {
      const mine = Number(option.dataset.image) === image;
      option.setAttribute("aria-selected", String(mine));
      option.tabIndex = mine ? 0 : -1;
      if (mine && focus) {
        option.focus({ preventScroll: true });
        option.scrollIntoView({ block: "nearest", inline: "nearest" });
      }
    }
    showImage();
  }

  function showImage() {
    const { target, view, image } = state;
    stage.image.src = jpeg(target.thumbnails[image]);
    stage.image.alt = `${target.keys[image]} of ${target.domain}`;
    $("#picture-name").textContent = target.keys[image] + (target.random[image] ? " (drawn at random)" : "");
    // Another model's word on the same image is the comparison one looks for.
    const wrong = (one) => `${one.title}: ${Math.floor(one.errors[image]) || "no"} wrong label${Math.floor(one.errors[image]) === 1 ? "" : "s"}`;
    $("#picture-others").textContent = [`Shown: ${wrong(view)}`,
      ...target.views.filter((other) => other !== view && mayShow(other)).map((other) => `the other model, ${wrong(other)}`)].join("; ");
    $("#labels").replaceChildren(...target.vocabulary.map((name, label) => make("li", {}, labelButton(name, label))));
    showHeat(state.label);
  }

  function labelButton(name, label) {
    const { view, image } = state;
    const [p, threshold, verdict] = [view.probabilities[image][label], view.thresholds[label], view.verdicts[image][label]];
    const fill = make("i");
    const tick = make("b");
    fill.style.width = `${100 * p}%`;
    tick.style.left = `calc(${100 * threshold}% - 1px)`;
    const button = make("button", { type: "button", className: `label is-${verdict}` },
      make("span", { className: "name", textContent: name, title: name }),
      make("span", { className: "bar" }, fill, tick),
      make("span", { className: "p", textContent: percent(p) }),
      make("span", { className: "verdict", textContent: VERDICTS[verdict] }));
    button.setAttribute("aria-label", `${name}: ${VERDICTS[verdict]}, ${percent(p)} %, threshold ${percent(threshold)} %`);
    button.setAttribute("aria-pressed", String(state.label === label));
    const peek = () => showHeat(label);
    const leave = () => showHeat(state.label);
    button.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse") peek(); });
    button.addEventListener("pointerleave", leave);
    button.addEventListener("focus", peek);
    button.addEventListener("blur", leave);
    button.addEventListener("click", () => {
      state.label = state.label === label ? null : label;
      $$(".label").forEach((other, i) => other.setAttribute("aria-pressed", String(i === state.label)));
      showHeat(state.label);
    });
    return button;
  }

  /** Lay a label's heat over the image; without a label take it away. */
  function showHeat(label) {
    const { target, view, image } = state;
    const heat = label === null ? null : view.heat?.[image]?.[label];
    stage.heat.classList.toggle("on", Boolean(heat));
    stage.note.hidden = label === null;
    if (label === null) return;
    if (heat) stage.heat.src = png(heat);
    stage.heat.alt = heat ? `Where ${view.title} sees ${target.vocabulary[label]}` : "";
    stage.note.textContent = target.vocabulary[label] + (heat ? "" : ": no heatmap");
  }

  /** Number of thumbnails side by side. */
  function filmColumns() {
    const top = film.children[0].offsetTop;
    const first = [...film.children].findIndex((option) => option.offsetTop > top);
    return first < 0 ? film.children.length : first;
  }

  film.addEventListener("keydown", (event) => {
    const options = [...film.children];
    const here = options.findIndex((option) => option.getAttribute("aria-selected") === "true");
    const columns = filmColumns();
    const steps = { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + columns, ArrowUp: here - columns, Home: 0, End: options.length - 1 };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = steps[event.key];
    if (next >= 0 && next < options.length) select(Number(options[next].dataset.image), true);
  });
  selects.target.addEventListener("change", () => showTarget(data.targets[Number(selects.target.value)]));
  for (const name of ["label", "kind", "order"]) {
    selects[name].addEventListener("change", () => {
      state.image = null;
      fillFilm();
    });
  }
  filterListeners.push((runs) => {
    allowed = runs;
    fillTargets();
  });
  fillTargets();
}

if (pageData.browser) startBrowser(pageData.browser);
document.documentElement.dataset.ready = "yes";
