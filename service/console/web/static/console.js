// What pages gain by a script: they renew themselves, charts can be read, pieces of lines tell what they are,
// and keys lead from page to page. Without it every table and form works all the same.
"use strict";
(() => {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();

  // -- charts

  const charts = [];
  const units = [["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]];
  const short = (value) => {
    if (value === null || value === undefined) return "–";
    for (const [letter, size] of units) if (Math.abs(value) >= size) return `${(value / size).toFixed(1)}${letter}`;
    return value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(value < 1 ? 2 : 1);
  };

  const clock = (t) => new Date(t * 1000).toISOString().slice(11, 19);

  const drawCharts = async () => {
    const places = [...document.querySelectorAll(".chart[data-series]")];
    if (!places.length || typeof uPlot === "undefined") return;
    const answer = await fetch("/series");
    if (!answer.ok) return;
    const series = await answer.json();
    if (series.t.length < 2) return;
    for (const place of places) charts.push(chart(place, series));
  };

  const chart = (place, series) => {
    const names = place.dataset.series.split(" ");
    const labels = place.dataset.labels.split("|");
    const grid = { stroke: colour("--line"), width: 1 };
    const axis = { stroke: colour("--ink-3"), grid, ticks: { show: false }, font: `11px ${colour("--sans")}` };
    place.replaceChildren();
    const plot = new uPlot({
      width: place.clientWidth,
      height: 140,
      cursor: { y: false, points: { size: 6 } },
      legend: { live: true },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      tzDate: (t) => uPlot.tzDate(new Date(t * 1000), "Etc/UTC"),
      axes: [{ ...axis, space: 80, size: 26, values: (_, found) => found.map(clock) }, { ...axis, size: 46, values: (_, found) => found.map(short) }],
      series: [
        { label: "UTC", value: (_, t) => (t ? clock(t) : "–") },
        ...names.map((_, n) => ({
          label: labels[n], stroke: colour(`--series-${n}`), width: 1.6,
          fill: n ? undefined : `${colour("--series-0")}1f`, value: (_, value) => short(value),
          points: { show: false },
        })),
      ],
    }, [series.t, ...names.map((name) => series[name])], place);
    tellNewest(plot);
    return { plot, names, place };
  };

  // While no pointer asks for another moment, the legend tells the newest.
  const tellNewest = (plot) => {
    setTimeout(() => {  // uPlot empties it once the data are drawn
      if (!plot.over.matches(":hover")) plot.setLegend({ idx: plot.data[0].length - 1 });
    });
  };

  const extendCharts = (point) => {
    for (const { plot, names } of charts) {
      const data = plot.data.map((column) => [...column]);
      if (data[0].length && point.t <= data[0][data[0].length - 1]) continue;
      data[0].push(point.t);
      names.forEach((name, n) => data[n + 1].push(point[name]));
      if (data[0].length > 450) data.forEach((column) => column.shift());
      plot.setData(data);
      tellNewest(plot);
    }
  };

  const restyle = () => {
    for (const { plot, place } of charts.splice(0)) { plot.destroy(); place.replaceChildren(); }
    drawCharts();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyle);
  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => charts.forEach(({ plot, place }) => plot.setSize({ width: place.clientWidth, height: 140 })), 120);
  });

  // -- pages that renew themselves

  const status = document.getElementById("live");
  let renewing = false, looks = 0;

  const isInUse = (part) =>
    part.contains(document.activeElement) || part.matches(":hover") && part.querySelector(".strata, details[open]") !== null
    || part.querySelector("details[open]") !== null || String(getSelection()).length > 0;

  const renew = async () => {
    const parts = [...document.querySelectorAll("[data-live]")];
    if ((!parts.length && !document.querySelector("main .failed")) || renewing || document.hidden) return;
    renewing = true;
    try {
      const answer = await fetch(location.href, { headers: { "X-Firn-Live": "1" } });
      if (answer.status === 401 || answer.status === 429) { location.reload(); return; }
      const found = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!found.querySelector("main")) { say(false); return; }  // not a page, say that many are asking
      const shape = (page) => [page.querySelector("main .failed") !== null, ...[...page.querySelectorAll("[data-live]")].map((one) => one.id)].join();
      if (shape(found) !== shape(document) && !document.querySelector("main :focus")) {
        // Something has come or gone as a whole, say the broker.
        showTimes(found);
        document.querySelector("main").replaceChildren(...document.importNode(found.querySelector("main"), true).childNodes);
        restyle();
        return;
      }
      showTimes(found);
      for (const part of parts) {
        const next = found.getElementById(part.id);
        if (next && !isInUse(part) && next.innerHTML !== part.innerHTML) {
          part.replaceChildren(...document.importNode(next, true).childNodes);
        }
      }
    } catch { say(false); } finally { renewing = false; }
  };

  const say = (isLive) => { if (status) status.textContent = isLive ? "live" : "the console does not answer"; };

  // A browser opens six connections to one place: a page that nobody sees holds none of them.
  let events = null, silence = 0;

  const listen = () => {
    if (events || document.hidden) return;
    events = new EventSource("/events");
    events.addEventListener("look", (event) => {
      clearTimeout(silence);
      silence = 0;
      say(true);
      const point = JSON.parse(event.data);
      if (point !== null) {
        if (charts.length) extendCharts(point); else if (looks % 2 === 0) drawCharts();
      }
      if (looks++ % 2 === 0 || document.querySelector("[data-tail]")) renew();
    });
    events.addEventListener("error", () => {
      if (!silence) silence = setTimeout(() => say(false), 8000);
      if (events.readyState !== EventSource.CLOSED) return;  // it tries again by itself
      // Refused: too many look, or the session has ended, which the page finds out.
      events = null;
      setTimeout(listen, 5000);
      renew();
    });
  };

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) { restyle(); listen(); renew(); return; }
    if (events) events.close();
    events = null;
    clearTimeout(silence);
    silence = 0;
  });

  // -- what a piece of a line is

  const card = document.createElement("div");
  card.className = "card";
  card.hidden = true;
  let shown = null;

  const wordsOf = (piece) => {
    const title = piece.querySelector("title");
    if (title) { piece.dataset.words = title.textContent; title.remove(); }
    return piece.dataset.words || "";
  };
  const show = (piece, x, y) => {
    if (shown !== piece) {
      if (shown) shown.classList.remove("on");
      shown = piece;
      piece.classList.add("on");
      card.textContent = wordsOf(piece);
    }
    card.hidden = false;
    const room = document.documentElement.clientWidth - card.offsetWidth - 12;
    card.style.left = `${scrollX + Math.max(8, Math.min(x + 14, room))}px`;
    card.style.top = `${scrollY + y + 18}px`;
  };
  const hide = () => {
    if (shown) shown.classList.remove("on");
    shown = null;
    card.hidden = true;
  };
  const isPiece = (target) => target instanceof Element && target.matches(".strata .piece, .strata .edge");

  document.addEventListener("pointermove", (event) => {
    if (isPiece(event.target)) show(event.target, event.clientX, event.clientY);
    else if (shown && !(document.activeElement instanceof SVGElement)) hide();
  });
  document.addEventListener("focusout", hide);

  const step = (line, by) => {
    const pieces = [...line.querySelectorAll(".piece, .edge")]
      .sort((a, b) => a.x.baseVal.value - b.x.baseVal.value || a.y.baseVal.value - b.y.baseVal.value);
    if (!pieces.length) return;
    const at = pieces.indexOf(shown);
    const next = pieces[at < 0 ? (by > 0 ? 0 : pieces.length - 1) : Math.max(0, Math.min(at + by, pieces.length - 1))];
    const place = next.getBoundingClientRect();
    show(next, place.left, place.bottom - 8);
  };

  // -- times: UTC, or on request those of this place

  const isLocal = () => { try { return localStorage.getItem("firn-times") === "local"; } catch { return false; } };
  const two = (n) => String(n).padStart(2, "0");
  const localWords = (said, when) => {
    const minutes = -when.getTimezoneOffset(), far = Math.abs(minutes);
    const zone = `${minutes < 0 ? "-" : "+"}${two(Math.floor(far / 60))}:${two(far % 60)}`;
    const fraction = (said.match(/\.\d{3}/) || [""])[0], seconds = /\d:\d\d:\d/.test(said) ? `:${two(when.getSeconds())}` : "";
    return `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())} `
      + `${two(when.getHours())}:${two(when.getMinutes())}${seconds}${fraction} ${zone}`;
  };
  const showTimes = (within) => {
    for (const one of within.querySelectorAll("time[datetime]")) {
      if (!one.dataset.utc) one.dataset.utc = one.textContent;
      const when = new Date(one.dateTime);
      const words = isLocal() && !isNaN(when) ? localWords(one.dataset.utc, when) : one.dataset.utc;
      if (one.textContent !== words) one.textContent = words;
    }
  };

  // -- buttons of the footer, which need a script

  const help = document.createElement("dialog");
  help.className = "help";
  help.setAttribute("aria-label", "Keys");
  const lines = [...document.querySelectorAll("nav a[data-key]")].map((one) => [`g ${one.dataset.key}`, one.textContent]);
  lines.push(["/", "Search"], ["← →", "Pieces of a partition's line"], ["l", "Times: UTC or local"], ["?", "This list"], ["Esc", "Close"]);
  const list = document.createElement("dl");
  for (const [key, words] of lines) {
    const row = document.createElement("div"), name = document.createElement("dt"), said = document.createElement("dd");
    name.append(Object.assign(document.createElement("kbd"), { textContent: key }));
    said.textContent = words;
    row.append(name, said);
    list.append(row);
  }
  help.append(Object.assign(document.createElement("h2"), { textContent: "Keys" }), list);
  help.addEventListener("click", (event) => { if (event.target === help) help.close(); });

  const times = document.createElement("button"), keys = document.createElement("button");
  const nameTimes = () => { times.textContent = isLocal() ? "Times: local" : "Times: UTC"; };
  const turnTimes = () => {
    try { localStorage.setItem("firn-times", isLocal() ? "utc" : "local"); } catch { return; }
    nameTimes();
    showTimes(document);
  };
  const showHelp = () => { if (!help.open) help.showModal(); };
  times.addEventListener("click", turnTimes);
  keys.textContent = "Keys: ?";
  keys.addEventListener("click", showHelp);
  for (const one of [times, keys]) { one.type = "button"; one.className = "quiet"; }
  const place = document.querySelector("footer .live");
  if (place) { place.prepend(times, keys); nameTimes(); }

  // -- keys

  let went = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (target instanceof SVGElement && target.matches(".strata")) {
      if (event.key === "ArrowRight") { step(target, 1); event.preventDefault(); }
      else if (event.key === "ArrowLeft") { step(target, -1); event.preventDefault(); }
      else if (event.key === "Escape") hide();
      return;
    }
    if (target instanceof HTMLElement && target.matches("input, select, textarea")) return;
    if (event.key === "?") showHelp();
    else if (event.key === "l" && Date.now() - went >= 1500) turnTimes();
    else if (event.key === "/") {
      const field = document.querySelector("[data-search]") || document.querySelector("main input");
      if (field) { field.focus(); event.preventDefault(); }
    } else if (event.key === "g") {
      went = Date.now();
    } else if (Date.now() - went < 1500) {
      const found = [...document.querySelectorAll("nav a[data-key]")].find((one) => one.dataset.key === event.key);
      if (found) found.click();
    }
  });

  document.body.append(card, help);
  showTimes(document);
  drawCharts();
  listen();
})();
