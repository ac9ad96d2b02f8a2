// kiqcluster's pages: refresh, local times, charts, selection, keys.  Without it everything can be read and done, too.
"use strict";
(() => {
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const store = {
    get: (key) => { try { return localStorage.getItem(key); } catch { return null; } },
    set: (key, value) => { try { localStorage.setItem(key, value); } catch { /* it is not kept */ } },
  };
  const language = document.documentElement.lang;

  // the menu of pages scrolls on a narrow screen: the page that is shown is in sight
  const menu = $(".pages"), current = menu && $("[aria-current]", menu);
  if (current) {
    const [whole, part] = [menu, current].map((each) => each.getBoundingClientRect());
    menu.scrollLeft += part.left + part.width / 2 - whole.left - whole.width / 2;
  }

  // times: the server writes UTC, the reader sees the own zone
  const full = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "medium" });
  function localize(within) {
    for (const time of $$("time[datetime]", within)) {
      const at = new Date(time.dateTime);
      if (Number.isNaN(at.getTime())) continue;
      const shown = time.dataset.show; // a minute of a table; the clock of the server, which tick() shows; else a whole time
      if (shown === "clock") continue;
      if (time.classList.contains("ago")) time.title = full.format(at);
      else if (shown === "minute") { time.title = full.format(at); time.textContent = clocks.minute.format(at); }
      else { time.title = time.dateTime; time.textContent = full.format(at); }
    }
  }

  // clocks: that of the server goes on, in the reader's zone; what is left of a lease gets less
  const clock = $("[data-show=clock]"), isMarked = () => String(getSelection()).length > 0;
  const ahead = clock ? new Date(clock.dateTime) - Date.now() : 0;
  const UNITS = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];
  function duration(seconds) {
    let left = Math.round(seconds);
    const parts = UNITS.map(([name, unit]) => { const count = Math.floor(left / unit); left -= count * unit; return count ? count + name : ""; }).filter(Boolean);
    return parts.slice(0, 2).join(" ") || "0s";
  }
  function tick() {
    if (document.hidden || isMarked()) return;
    if (clock) { clock.textContent = full.format(new Date(Date.now() + ahead)); clock.title = clock.dateTime; }
    for (const each of $$("[data-countdown]")) {
      each.dataset.countdown = Math.max(0, Number(each.dataset.countdown) - 1);
      each.textContent = duration(Number(each.dataset.countdown));
    }
  }
  setInterval(tick, 1000);

  // refresh: live parts ask for themselves, unless the tab is hidden, or somebody works in them
  const RATE = "kiqcluster.refresh", DEFAULT_RATE = "2";
  const rates = $("#refresh-rate");
  let rate = Number(store.get(RATE) ?? DEFAULT_RATE), lastRate = rate || Number(DEFAULT_RATE), timer = 0;
  const isBusy = (part) => $("input[type=checkbox]:checked", part) !== null || part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea, button, :focus-visible") || $("details[open]:not(.figures)", part) !== null || $("[data-going]", part) !== null || isMarked();
  const asked = new WeakMap(); // part → when; one with data-every asks again after so many seconds at the earliest
  function refresh(force) {
    if (document.hidden) return;
    for (const part of $$("[data-live]")) {
      const isDue = performance.now() - (asked.get(part) ?? 0) >= Number(part.dataset.every ?? 0) * 1000;
      if (!force && (!isDue || isBusy(part) || part.classList.contains("htmx-request"))) continue;
      asked.set(part, performance.now());
      window.htmx.trigger(part, "kiq:refresh");
    }
  }
  function schedule() {
    clearInterval(timer);
    if (rate > 0) timer = setInterval(refresh, rate * 1000, false);
  }
  function setRate(seconds) {
    if (seconds > 0) lastRate = seconds;
    rate = seconds;
    store.set(RATE, String(seconds));
    if (rates) rates.value = String(seconds);
    schedule();
  }
  if (rates && $("[data-live]")) {
    $("[data-refresh]").hidden = false;
    if (![...rates.options].some((option) => option.value === String(rate))) rate = Number(DEFAULT_RATE);
    rates.value = String(rate);
    rates.addEventListener("change", () => setRate(Number(rates.value)));
    document.addEventListener("visibilitychange", () => { if (!document.hidden && rate > 0) refresh(false); });
    schedule();
  }

  // nobody answers: say so until somebody does
  const away = $("#away");
  function setAway(text) { away.hidden = !text; away.textContent = text; }
  const GOING_AGAIN_MS = 3000; // after a part that goes on by itself was refused
  function goAgain(part) { if (part?.matches?.("[data-going]")) setTimeout(() => window.htmx.trigger(part, "kiq:go"), GOING_AGAIN_MS); }
  document.body.addEventListener("htmx:responseError", (event) => {
    const status = event.detail.xhr.status;
    goAgain(event.detail.elt);
    if (status === 401 || status === 403) location.reload();
    else setAway(away.dataset.text + " (" + status + ")");
  });
  for (const name of ["htmx:sendError", "htmx:timeout"]) document.body.addEventListener(name, (event) => { setAway(away.dataset.text); goAgain(event.detail.elt); });
  document.body.addEventListener("htmx:afterOnLoad", (event) => { if (event.detail.xhr.status < 400) setAway(""); });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    const part = event.detail.target.isConnected ? event.detail.target : document; // one that was replaced as a whole is gone
    localize(part); prepare(part); draw(part); roll();
  });

  // selection
  function count(form) {
    const chosen = $$("input[name=key]:checked", form).length, label = $("[data-count]", form);
    if (label) { label.hidden = chosen === 0; label.textContent = chosen + " " + label.dataset.text; }
  }
  function prepare(within) {
    for (const box of $$("[data-select-all]", within)) box.hidden = false;
    for (const element of $$("[data-needs-script]", within)) element.hidden = false;
  }
  document.addEventListener("change", (event) => {
    const box = event.target, form = box.closest?.("form");
    if (!form || box.type !== "checkbox") return;
    if (box.matches("[data-select-all]")) for (const each of $$("input[name=key]", form)) each.checked = box.checked;
    count(form);
  });

  // keys
  const FIRST = "a[href], input[type=checkbox], button";
  function step(by) {
    const rows = $$("main tbody tr").filter((row) => $(FIRST, row));
    const at = rows.findIndex((row) => row.contains(document.activeElement));
    const row = rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by))];
    if (row) $(FIRST, row).focus({ focusVisible: true });
  }
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
    if (isGoing) {
      isGoing = false;
      const link = $$("[data-key]").find((each) => each.dataset.key === event.key);
      if (link) { event.preventDefault(); link.click(); }
      return;
    }
    const actions = {
      g: () => { isGoing = true; setTimeout(() => { isGoing = false; }, 1500); },
      r: () => refresh(true),
      p: () => setRate(rate > 0 ? 0 : lastRate),
      a: () => $("[data-select-all]")?.click(),
      j: () => step(1),
      k: () => step(-1),
      "[": () => $("a[rel=prev]")?.click(),
      "]": () => $("a[rel=next]")?.click(),
      "/": () => $("input[type=search]")?.focus(),
      "?": () => $("#keys")?.showModal(),
    };
    if (actions[event.key]) { event.preventDefault(); actions[event.key](); }
  });

  // charts
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => Math.abs(value) >= 1e6 ? (value / 1e6).toFixed(1).replace(/\.0$/, "") + "M" : Math.abs(value) >= 1e4 ? Math.round(value / 1e3) + "k" : String(Math.round(value * 100) / 100);
  const WINDOW_SECONDS = 180; // of the rolling chart
  let rolling = null;
  const charts = [];
  const clocks = {
    now: new Intl.DateTimeFormat(language, { minute: "2-digit", second: "2-digit", hour: "2-digit", hourCycle: "h23" }),
    hour: new Intl.DateTimeFormat(language, { month: "numeric", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
    minute: new Intl.DateTimeFormat(language, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }),
    day: new Intl.DateTimeFormat(language, { month: "short", day: "numeric", timeZone: "UTC" }),
  };
  const DAY = 86400, HALF_DAY = 43200, MAX_POINTS = 60; // values that are drawn as points, so that one alone is seen
  function xRange(unit) {
    if (unit === "now") return (chart) => { const times = chart.data[0], end = times.at(-1) ?? Date.now() / 1000; return [end - Math.min(WINDOW_SECONDS, Math.max(60, end - (times[0] ?? end))), end]; };
    return unit === "day" ? (_, least, most) => [least - HALF_DAY, most + HALF_DAY] : (_, least, most) => [least, most];
  }
  // deploys: a line at each, with its label where there is room
  function drawMarks(chart, marks) {
    const { ctx: context, bbox: box } = chart, scale = devicePixelRatio;
    const free = [0, 0]; // where the next label of a row may begin
    context.save();
    context.strokeStyle = context.fillStyle = colour("--muted");
    context.font = 10 * scale + "px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.setLineDash([3 * scale, 3 * scale]);
    for (const [at, label] of marks) {
      const x = Math.round(chart.valToPos(at, "x", true));
      if (x < box.left || x > box.left + box.width) continue;
      context.beginPath();
      context.moveTo(x, box.top);
      context.lineTo(x, box.top + box.height);
      context.stroke();
      const width = context.measureText(label).width + 6 * scale, left = x + width > box.left + box.width ? Math.max(box.left, x - width) : x;
      const row = free.findIndex((begin) => left >= begin);
      if (row < 0) continue;
      context.fillText(label, left + 3 * scale, box.top + (9 + 12 * row) * scale);
      free[row] = left + width;
    }
    context.restore();
  }
  function options(element, unit) {
    const labels = JSON.parse(element.dataset.labels), bars = unit === "day" && window.uPlot.paths.bars({ size: [0.66, 40] });
    const isSparse = element.dataset.chart?.includes("null") && JSON.parse(element.dataset.chart)[1].filter((value) => value !== null).length <= MAX_POINTS;
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line-soft"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif", gap: 4 };
    const serie = (label, name) => ({ label, stroke: () => colour(name), width: bars ? 0 : 1.5, fill: bars ? () => colour(name) : () => colour(name) + "1a", paths: bars || undefined, points: { show: isSparse, size: 5, fill: () => colour(name) } });
    return {
      width: element.clientWidth - 16, height: element.clientHeight - 6, legend: { show: false }, padding: [10, 26, 0, 0],
      cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
      scales: { x: { range: xRange(unit) }, y: { range: (_, __, most) => [0, Math.max(most || 0, 1) * 1.1] } },
      axes: [
        { ...axis, grid: { show: false }, space: unit === "hour" ? 96 : 64, size: 26, incrs: unit === "day" ? [DAY, 2 * DAY, 5 * DAY, 7 * DAY, 10 * DAY] : undefined, values: (_, values) => values.map((value) => clocks[unit].format(value * 1000)) },
        { ...axis, size: 44, space: 36, values: (_, values) => values.map(short) },
      ],
      series: [{}, ...labels.map((label, at) => serie(label, at ? "--series-b" : "--series-a"))],
      hooks: element.dataset.marks ? { draw: [(chart) => drawMarks(chart, JSON.parse(element.dataset.marks))] } : {},
    };
  }
  function draw(within) {
    if (!window.uPlot) return;
    for (const pair of charts.filter(([element]) => !element.isConnected)) {
      charts.splice(charts.indexOf(pair), 1);
      pair[1].destroy();
    }
    for (const element of $$("[data-chart]", within)) {
      const data = JSON.parse(element.dataset.chart);
      charts.push([element, new window.uPlot(options(element, element.dataset.unit), data, element)]);
    }
    const element = $("[data-rolling]", within);
    if (element) {
      rolling = { element, data: [[], [], []], last: null, chart: new window.uPlot(options(element, "now"), [[], [], []], element) };
      charts.push([element, rolling.chart]);
      roll();
    }
  }
  function roll() {
    const figures = $("[data-processed]");
    if (!rolling || !figures) return;
    const look = { at: Number(figures.dataset.taken), processed: Number(figures.dataset.processed), failed: Number(figures.dataset.failed) };
    const last = rolling.last, seconds = last ? look.at - last.at : 0;
    if (last && seconds < 0.2) return;
    if (last && look.processed >= last.processed) {
      rolling.data[0].push(look.at);
      rolling.data[1].push((look.processed - last.processed) / seconds);
      rolling.data[2].push(Math.max(0, look.failed - last.failed) / seconds);
      while (rolling.data[0][0] < look.at - WINDOW_SECONDS) for (const values of rolling.data) values.shift();
      rolling.chart.setData(rolling.data);
    }
    rolling.last = look;
  }
  function resize() {
    for (const [element, chart] of charts) chart.setSize({ width: element.clientWidth - 16, height: element.clientHeight - 6 });
  }
  addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const [, chart] of charts) chart.redraw(false, true); });

  localize(document);
  tick();
  prepare(document);
  draw(document);
})();
