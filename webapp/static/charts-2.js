// Draws <div data-chart=KIND data-src=URL> (ui.chart in macros.html) from the JSON at URL, with Apache ECharts.
//
// All kinds may have  "final": true  (nothing will change; not asked again)  and  "base"  (put before each link).
// KIND here is a word of the CSS colours: an outcome or trial state ("scored", "infra_error", "running"…), or "series-1".
// Times are milliseconds since 1970, durations seconds; null is unknown.
//
//   heatmap    {"rows": [task…], "columns": [words…], "cells": [[row, column, KIND, reward, seconds, link]…]}
//              data-measure: "reward" (default), "outcome" or "seconds"; <select data-measure-of=ID> changes it.
//   gantt      {"lanes": [words…], "bars": [[lane, start, end or null, KIND, words, link]…], "now": time, "x": "time"}
//              "x": "seconds" for starts and ends in seconds from 0. KIND "" is coloured by lane.
//   histogram  {"edges": [n + 1 bounds], "series": [{"kind": KIND, "name": words, "counts": [n]}…], "unit": UNIT}
//              or "counts": [n] instead of "series".
//   bars       {"labels": [words…], "series": [{"kind", "name", "values": […], "low": […], "high": […]}…], "unit": UNIT,
//              "stacked": false, "links": […], "max": null}; low and high are drawn as an interval.
//   lines      {"series": [{"kind", "name", "points": [[x, y]…]}…], "x": "time" or "seconds", "unit": UNIT, "max": null}
//
// UNIT: "" | "seconds" | "percent" (0 to 100) | "bytes" | "dollars" | "share" (0 to 1).
(() => {
  "use strict";

  const { say, span, clock, minute } = window.aeo;
  const LIVE_MS = 10000;
  const TABLE_ROWS = 1000;
  const seen = new Map(); // src → its last data, so that a swapped-in chart is there at once

  // Colours

  let styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(`--${name}`).trim() || styles.getPropertyValue("--series-1").trim();

  function parts(hex) {
    return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  }

  function mix(from, to, share) {
    const [a, b] = [parts(colour(from)), parts(colour(to))];
    const at = Math.min(1, Math.max(0, share));
    return `rgb(${a.map((value, index) => Math.round(value + (b[index] - value) * at)).join(",")})`;
  }

  // Words

  const UNITS = {
    seconds: (value) => span(value),
    percent: (value) => `${trim(value)} %`,
    share: (value) => `${trim(100 * value)} %`,
    dollars: (value) => `$${trim(value)}`,
    bytes(value) {
      const units = ["B", "KiB", "MiB", "GiB", "TiB"];
      let at = 0;
      while (value >= 1024 && at < 4) {
        value /= 1024;
        at += 1;
      }
      return `${trim(value)} ${units[at]}`;
    },
  };
  const trim = (value) => String(Number(Number(value).toPrecision(4)));
  const write = (value, unit) => (value === null || value === undefined ? "–" : (UNITS[unit] || trim)(value));
  const briefly = (seconds) => span(seconds).replace(/(\D) ?0 \S+$/, "$1").trim();
  const widthOf = (labels, most) => Math.min(most, 8 + 6.4 * Math.max(0, ...labels.map((words) => [...String(words)].reduce((sum, letter) => sum + (letter > "\u2e80" ? 1.8 : 1), 0))));
  const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

  // What all charts share

  function text(size = 11) {
    return { color: colour("faint"), fontSize: size, fontFamily: getComputedStyle(document.body).fontFamily };
  }

  // Drawn by ECharts only where it follows an axis; as HTML it would need inline styles. Else see `showTip`.
  function axisTooltip(formatter) {
    return {
      trigger: "axis",
      axisPointer: { lineStyle: { color: colour("edge") } },
      renderMode: "richText",
      confine: true,
      backgroundColor: colour("card"),
      borderColor: colour("edge"),
      borderWidth: 1,
      padding: [6, 9],
      textStyle: { ...text(12), color: colour("text"), lineHeight: 17 },
      formatter,
    };
  }

  function axis(more) {
    return {
      axisLine: { lineStyle: { color: colour("line") } },
      axisTick: { show: false },
      splitLine: { show: false, lineStyle: { color: colour("line") } },
      ...more,
      axisLabel: { ...text(), hideOverlap: true, ...more.axisLabel },
    };
  }

  const STEPS = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  /** A distance of ticks that is a whole number of minutes, hours or days. */
  const stepOf = (seconds) => STEPS.find((step) => seconds / step <= 5) || 86400 * Math.ceil(seconds / 86400 / 5);

  const valueAxis = (unit, more = {}) =>
    axis({ type: "value", splitNumber: 4, ...(more.max ? { interval: more.max / 4 } : {}), ...more, splitLine: { show: true, lineStyle: { color: colour("line") } }, axisLabel: { formatter: (value) => write(value, unit) } });

  function timeAxis(x, more = {}) {
    if (x === "seconds") return axis({ type: "value", min: 0, ...more, axisLabel: { formatter: briefly, showMaxLabel: false } });
    const label = (value) => {
      const date = new Date(value);
      const midnight = date.getHours() + date.getMinutes() + date.getSeconds() === 0;
      return midnight ? minute(date).slice(5, 10) : clock(date, date.getSeconds() !== 0);
    };
    return axis({ type: "time", ...more, axisLabel: { formatter: label } });
  }

  function zoom(slider, at = {}) {
    const shared = { xAxisIndex: 0, filterMode: "none", ...at };
    const inside = { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, ...shared };
    if (!slider) return [inside];
    return [
      inside,
      {
        type: "slider",
        height: 14,
        bottom: 4,
        showDetail: false,
        brushSelect: false,
        borderColor: colour("line"),
        fillerColor: colour("sunk"),
        backgroundColor: "transparent",
        dataBackground: { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } },
        handleStyle: { color: colour("card"), borderColor: colour("edge") },
        moveHandleSize: 0,
        ...shared,
      },
    ];
  }

  const link = (data, part) => (part ? (data.base || "") + (data.base ? encodeURIComponent(part) : part) : "");

  function legendOf(kinds) {
    return [...kinds].filter(Boolean).map((kind) => [colour(kind), say(kind)]);
  }

  // Each kind: (data, plot) → {option, height, href(params), legend: [[colour, words]…], head: […], rows: [[…]…]}

  const LABELLED_ROWS = 40;
  const LABEL_WIDTH = 150;

  /** Where cells lie: few rows have their names at the left; many are turned and broken into bands. */
  function heatLayout(data, width) {
    const rows = data.rows.length;
    const columns = Math.max(1, data.columns.length);
    if (rows <= LABELLED_ROWS) {
      const left = widthOf(data.rows, Math.min(LABEL_WIDTH + 60, width * 0.42));
      const cell = Math.max(4, Math.min(56, (width - left - 4) / columns));
      const top = columns > 1 ? 18 : 2;
      const place = (row, column) => [left + column * cell, top + row * 19, cell - 2, 17];
      const rowLabels = data.rows.map((words, row) => [cut(words, Math.floor(left / 6.2)), left - 6, top + row * 19 + 8.5, "right"]);
      const every = Math.ceil(24 / cell);
      const columnLabels = columns > 1 ? data.columns.map((words, column) => [cut(String(words), Math.max(2, Math.floor((cell * every) / 6.2))), left + column * cell + cell / 2 - 1, 8, "center"]).filter((_, at) => at % every === 0) : [];
      return { place, labels: [...rowLabels, ...columnLabels], height: top + rows * 19 + 2 };
    }
    const left = columns > 1 ? widthOf(data.columns, width * 0.25) : 0;
    const least = rows > 2000 ? 7 : rows > 600 ? 8 : 10;
    const bands = Math.ceil(rows / Math.max(1, Math.floor((width - left) / least)));
    const perBand = Math.ceil(rows / bands);
    const size = Math.min(18, (width - left) / perBand);
    const tall = Math.min(14, Math.max(size, 11));
    const bandHeight = columns * tall + (columns > 1 ? 8 : 0);
    const place = (row, column) => [left + (row % perBand) * size, Math.floor(row / perBand) * bandHeight + column * tall, size - 1.5, tall - 1.5];
    const labels = [];
    for (let band = 0; columns > 1 && band < bands; band += 1)
      data.columns.forEach((words, column) => labels.push([cut(String(words), Math.floor(left / 6.2)), left - 6, band * bandHeight + column * tall + tall / 2, "right"]));
    return { place, labels, height: bands * bandHeight + 2 };
  }

  function heatmap(data, plot) {
    const measure = plot.dataset.measure || "reward";
    const { place, labels, height } = heatLayout(data, plot.clientWidth);
    const most = Math.max(1e-9, ...data.cells.map((cell) => cell[measure === "seconds" ? 4 : 3] ?? 0));
    const topReward = Math.max(1, most);
    const kinds = new Set();
    const paint = ([, , kind, reward, seconds]) => {
      if (measure === "seconds" && seconds !== null) return mix("short", "long", Math.sqrt(seconds / most));
      if (measure === "reward" && kind === "scored" && reward !== null) return mix("low", "high", reward / topReward);
      kinds.add(kind);
      return colour(kind);
    };
    const cells = data.cells.map((cell) => ({ value: [cell[0], cell[1]], cell, fill: paint(cell) }));
    const scale = (from, to, low, high) => [[[0, 0.25, 0.5, 0.75, 1].map((at) => mix(from, to, at)), high, low]];
    const scales = { reward: () => scale("low", "high", `${say("reward")} 0`, trim(topReward)), seconds: () => scale("short", "long", span(0), span(most)), outcome: () => [] };
    return {
      height,
      href: (params) => link(data, params.data?.cell?.[5]),
      tip({ data: item }) {
        const [row, column, kind, reward, seconds] = item.cell;
        return [data.rows[row], data.columns.length > 1 ? data.columns[column] : "", say(kind) + (reward === null ? "" : ` · ${say("reward")} ${trim(reward)}`), seconds === null ? "" : span(seconds)];
      },
      legend: [...scales[measure](), ...legendOf(kinds)],
      head: [say("task"), say("column"), say("outcome"), say("reward"), say("seconds")],
      rows: data.cells.map((cell) => [[data.rows[cell[0]], link(data, cell[5])], data.columns[cell[1]], say(cell[2]), write(cell[3]), write(cell[4], "seconds")]),
      option: {
        series: [
          {
            type: "custom",
            coordinateSystem: "none",
            silent: true,
            data: labels.map((label) => ({ value: [0], label })),
            renderItem: (params) => {
              const [words, x, y, align] = labels[params.dataIndex];
              return { type: "text", silent: true, style: { ...text(), fill: colour("faint"), text: words, x, y, textAlign: align, textVerticalAlign: "middle", font: undefined } };
            },
          },
          {
            type: "custom",
            coordinateSystem: "none",
            data: cells,
            renderItem: (params) => {
              const item = cells[params.dataIndex];
              const [x, y, width, tall] = place(item.cell[0], item.cell[1]);
              return { type: "rect", shape: { x, y, width: Math.max(1, width), height: tall, r: 1.5 }, style: { fill: item.fill }, emphasis: { style: { stroke: colour("text"), lineWidth: 1.5 } } };
            },
          },
        ],
      },
    };
  }

  function gantt(data, plot) {
    const now = data.now ?? Date.now();
    const lanes = data.lanes.length;
    const tall = lanes > 60 ? 12 : 22;
    const long = data.bars.length > 40;
    const height = Math.min(900, Math.max(1, lanes) * tall + 30 + (long ? 22 : 0));
    const left = widthOf(data.lanes, Math.min(LABEL_WIDTH, plot.clientWidth * 0.3));
    const moment = data.x === "seconds" ? (value) => span(value) : (value) => minute(new Date(value), true);
    const seconds = (bar) => ((bar[2] ?? now) - bar[1]) / (data.x === "seconds" ? 1 : 1000);
    const kindOf = (bar) => bar[3] || `series-${(bar[0] % 6) + 1}`;
    const bars = data.bars.map((bar) => ({ value: [bar[1], bar[0], bar[2] ?? now], bar }));
    return {
      height,
      href: (params) => link(data, params.data?.bar?.[5]),
      tip: ({ data: { bar } }) => [bar[4], data.lanes[bar[0]], bar[3] && !bar[3].startsWith("series-") ? `${say(bar[3])} · ${span(seconds(bar))}` : span(seconds(bar)), `${moment(bar[1])} – ${bar[2] === null ? say("now") : moment(bar[2])}`],
      legend: legendOf(new Set(data.bars.map((bar) => bar[3]).filter((kind) => kind && !kind.startsWith("series-")))),
      head: [say("row"), say("bar"), say("outcome"), say("from"), say("to"), say("took")],
      rows: data.bars.map((bar) => [data.lanes[bar[0]], [bar[4], link(data, bar[5])], say(bar[3]), moment(bar[1]), bar[2] === null ? "–" : moment(bar[2]), span(seconds(bar))]),
      option: {
        grid: { left: left + 8, right: 12, top: 4, bottom: long ? 42 : 24 },
        xAxis: timeAxis(data.x || "time", { splitLine: { show: true, lineStyle: { color: colour("line") } }, ...(data.x === "seconds" ? { interval: stepOf(Math.max(1, ...data.bars.map((bar) => bar[2] ?? now))) } : {}) }),
        yAxis: axis({ type: "category", data: data.lanes, inverse: true, axisLine: { show: false }, axisLabel: { width: left, overflow: "truncate", interval: lanes * tall > 900 ? "auto" : 0 } }),
        dataZoom: zoom(long),
        series: [
          {
            type: "custom",
            encode: { x: [0, 2], y: 1 },
            clip: true,
            data: bars,
            renderItem: (params, api) => {
              const { bar } = bars[params.dataIndex];
              const [x, middle] = api.coord([api.value(0), api.value(1)]);
              const [end] = api.coord([api.value(2), api.value(1)]);
              const thick = Math.max(3, api.size([0, 1])[1] - 4);
              const area = params.coordSys;
              const from = Math.max(x, area.x);
              const to = Math.min(Math.max(end, x + 2), area.x + area.width);
              if (to < area.x || from > area.x + area.width) return null;
              return { type: "rect", shape: { x: from, y: middle - thick / 2, width: Math.max(1.5, to - from - 1), height: thick, r: 1.5 }, style: { fill: colour(kindOf(bar)) }, emphasis: { style: { stroke: colour("text"), lineWidth: 1.5 } } };
            },
          },
        ],
      },
    };
  }

  function seriesOf(data, key) {
    return data.series || [{ kind: data.kind || "series-1", name: "", [key]: data[key] || [] }];
  }

  const nameOf = (one) => one.name || (one.kind && !one.kind.startsWith("series-") ? say(one.kind) : "");
  const namedLegend = (series) => series.map((one, at) => [colour(one.kind || `series-${(at % 6) + 1}`), nameOf(one)]).filter(([, name]) => name);

  function histogram(data) {
    const unit = data.unit ?? "seconds";
    const series = seriesOf(data, "counts");
    const bins = data.edges.slice(0, -1).map((edge, at) => `${write(edge, unit)} – ${write(data.edges[at + 1], unit)}`);
    return {
      href: () => "",
      tip: ({ dataIndex: at, seriesIndex }) => [bins[at], `${nameOf(series[seriesIndex]) || say("count")}: ${series[seriesIndex].counts[at]}`],
      legend: namedLegend(series),
      head: [say(unit || "bar"), ...series.map((one) => nameOf(one) || say("count"))],
      rows: bins.map((bin, at) => [bin, ...series.map((one) => one.counts[at])]),
      option: {
        grid: { left: 40, right: 14, top: 10, bottom: 24 },
        xAxis: axis({ type: "category", data: bins, axisLabel: { formatter: (_, at) => (unit === "seconds" ? briefly(data.edges[at]) : write(data.edges[at], unit)), align: "left" } }),
        yAxis: valueAxis("", { minInterval: 1 }),
        series: series.map((one, at) => ({ type: "bar", stack: "all", name: nameOf(one), data: one.counts, barCategoryGap: "8%", itemStyle: { color: colour(one.kind || `series-${(at % 6) + 1}`) } })),
      },
    };
  }

  function bars(data, plot) {
    const series = seriesOf(data, "values");
    const each = data.stacked ? 1 : series.length;
    const left = widthOf(data.labels, Math.min(LABEL_WIDTH + 40, plot.clientWidth * 0.38));
    const whiskers = series.flatMap((one, at) => (one.low ? [{ one, at }] : []));
    const slot = (at) => (data.stacked ? 0 : (at - (series.length - 1) / 2));
    return {
      height: data.labels.length * Math.max(24, each * 14 + 8) + 32,
      href: (params) => link(data, data.links?.[params.dataIndex]),
      tip({ dataIndex: at, seriesIndex }) {
        const one = series[seriesIndex];
        const interval = one.low && one.low[at] !== null ? ` (${write(one.low[at], data.unit)} – ${write(one.high[at], data.unit)})` : "";
        return [data.labels[at], `${nameOf(one) ? `${nameOf(one)}: ` : ""}${write(one.values[at], data.unit)}${interval}`];
      },
      legend: series.length > 1 ? namedLegend(series) : [],
      head: [say("bar"), ...series.flatMap((one) => [nameOf(one) || say("count"), ...(one.low ? [say("from"), say("to")] : [])])],
      rows: data.labels.map((label, at) => [[label, link(data, data.links?.[at])], ...series.flatMap((one) => [write(one.values[at], data.unit), ...(one.low ? [write(one.low[at], data.unit), write(one.high[at], data.unit)] : [])])]),
      option: {
        grid: { left: left + 8, right: 40, top: 4, bottom: 24 },
        xAxis: valueAxis(data.unit, { min: 0, max: data.max ?? undefined, minInterval: data.unit ? undefined : 1 }),
        yAxis: axis({ type: "category", data: data.labels, inverse: true, axisLine: { show: false }, axisLabel: { width: left, overflow: "truncate", interval: 0 } }),
        series: [
          ...series.map((one, at) => ({
            type: "bar",
            name: nameOf(one),
            stack: data.stacked ? "all" : undefined,
            data: one.values,
            barMaxWidth: 14,
            barGap: "10%",
            itemStyle: { color: colour(one.kind || `series-${(at % 6) + 1}`) },
            label: { show: !data.stacked && !one.low, position: "right", ...text(), formatter: ({ value }) => write(value, data.unit) },
          })),
          ...whiskers.map(({ one, at }) => ({
            type: "custom",
            silent: true,
            z: 5,
            encode: { x: [0, 1], y: 2 },
            data: one.values.map((_, index) => [one.low[index], one.high[index], index]),
            renderItem: (params, api) => {
              if (one.low[params.dataIndex] === null) return null;
              const [from, y] = api.coord([api.value(0), api.value(2)]);
              const [to] = api.coord([api.value(1), api.value(2)]);
              const middle = y + slot(at) * Math.min(15.4, api.size([0, 1])[1] / (each + 0.5));
              const line = (x1, y1, x2, y2) => ({ type: "line", shape: { x1, y1, x2, y2 }, style: { stroke: colour("text"), lineWidth: 1.25 } });
              return { type: "group", children: [line(from, middle, to, middle), line(from, middle - 4, from, middle + 4), line(to, middle - 4, to, middle + 4)] };
            },
          })),
        ],
      },
    };
  }

  function lines(data) {
    const moment = data.x === "seconds" ? (value) => span(value) : (value) => minute(new Date(value), true);
    return {
      href: () => "",
      legend: data.series.length > 1 ? namedLegend(data.series) : [],
      head: [say("time"), say("bar"), say("count")],
      rows: data.series.flatMap((one) => one.points.map(([x, y]) => [moment(x), nameOf(one), write(y, data.unit)])),
      option: {
        grid: { left: 52, right: 14, top: 10, bottom: 24 },
        xAxis: timeAxis(data.x || "time"),
        yAxis: valueAxis(data.unit, { min: 0, max: data.max ?? undefined }),
        dataZoom: zoom(false),
        tooltip: axisTooltip((items) => [moment(items[0].value[0]), ...items.map((item) => `${item.seriesName ? `${item.seriesName}: ` : ""}${write(item.value[1], data.unit)}`)].join("\n")),
        series: data.series.map((one, at) => ({ type: "line", name: nameOf(one), data: one.points, showSymbol: one.points.length < 3, symbolSize: 4, lineStyle: { width: 1.5 }, color: colour(one.kind || `series-${(at % 6) + 1}`) })),
      },
    };
  }

  // What is under the pointer, beyond the edges of small charts.

  const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
  tip.setAttribute("aria-hidden", "true"); // the table has it in words
  document.body.append(tip);
  document.addEventListener("scroll", () => (tip.hidden = true), { passive: true });

  function showTip(lines, { clientX, clientY }) {
    tip.replaceChildren(...lines.filter(Boolean).map((words) => Object.assign(document.createElement("div"), { textContent: words })));
    tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = tip;
    const beside = clientX + 14 + width > innerWidth ? Math.max(4, clientX - width - 10) : clientX + 14;
    const below = clientY + 14 + height > innerHeight ? Math.max(4, clientY - height - 10) : clientY + 14;
    tip.style.left = `${beside}px`;
    tip.style.top = `${below}px`;
  }

  const KINDS = { heatmap, gantt, histogram, bars, lines };
  const isEmpty = (data) => !(data.cells?.length || data.bars?.length || data.edges?.length > 1 || data.labels?.length || data.series?.some((one) => one.points?.length));

  // On the page

  function tell(plot, words) {
    echarts.getInstanceByDom(plot)?.dispose();
    plot.replaceChildren(Object.assign(document.createElement("p"), { className: "said", textContent: words }));
  }

  function fillTable(details, { head, rows }) {
    const table = document.createElement("table");
    const headRow = table.createTHead().insertRow();
    for (const words of head) headRow.append(Object.assign(document.createElement("th"), { scope: "col", textContent: words }));
    const body = table.createTBody();
    for (const row of rows.slice(0, TABLE_ROWS)) {
      const line = body.insertRow();
      for (const item of row) {
        const [words, href] = Array.isArray(item) ? item : [item, ""];
        const cell = line.insertCell();
        if (href) cell.append(Object.assign(document.createElement("a"), { href, textContent: words }));
        else cell.textContent = words;
      }
    }
    const scroll = Object.assign(document.createElement("div"), { className: "scroll", tabIndex: 0 });
    scroll.append(table);
    const more = rows.length - TABLE_ROWS;
    const note = more > 0 ? [Object.assign(document.createElement("p"), { className: "faint", textContent: say("more", { n: more }) })] : [];
    details.replaceChildren(details.querySelector("summary"), scroll, ...note);
  }

  function writeLegend(figure, items) {
    let list = figure.querySelector(":scope > .legend");
    if (!list) {
      list = Object.assign(document.createElement("ul"), { className: "legend" });
      list.setAttribute("aria-hidden", "true"); // the table has it in words
      figure.querySelector(".plot").after(list);
    }
    list.replaceChildren(
      ...items.map(([fills, words, before = ""]) => {
        const dots = [fills].flat().map((fill) => {
          const dot = Object.assign(document.createElement("i"), { className: "dot" });
          dot.style.background = fill;
          return dot;
        });
        const item = document.createElement("li");
        item.append(before, before ? " " : "", ...dots, words);
        return item;
      }),
    );
  }

  function draw(plot, data) {
    if (!plot.isConnected || !plot.clientWidth) return;
    const figure = plot.closest("figure");
    const details = figure?.querySelector("details");
    if (isEmpty(data)) return tell(plot, say("nothing"));
    const made = KINDS[plot.dataset.chart](data, plot);
    plot.querySelector(".said")?.remove();
    if (figure?.classList.contains("chart-auto") && made.height) plot.style.height = `${Math.ceil(made.height)}px`;
    const chart = echarts.getInstanceByDom(plot) || start(plot);
    chart.resize();
    const old = chart.getOption()?.dataZoom?.[0];
    if (old && made.option.dataZoom) for (const one of made.option.dataZoom) Object.assign(one, { start: old.start, end: old.end });
    for (const one of made.option.series) one.cursor ??= "default";
    chart.setOption({ animation: false, textStyle: text(), ...made.option }, { notMerge: true });
    plot.made = made;
    if (figure) writeLegend(figure, made.legend);
    if (details?.open) fillTable(details, made);
  }

  function start(plot) {
    const chart = echarts.init(plot, null, { renderer: "canvas" });
    chart.on("mousemove", (params) => {
      const { made } = plot;
      chart.getZr().setCursorStyle(made.href(params) ? "pointer" : "default");
      const lines = made.tip && params.data !== undefined ? made.tip(params) : [];
      const pointer = params.event?.event;
      const at = pointer?.touches?.[0] || pointer?.changedTouches?.[0] || pointer;
      if (lines.length && at) showTip(lines, at);
    });
    chart.on("mouseout", () => (tip.hidden = true));
    chart.on("globalout", () => (tip.hidden = true));
    chart.on("click", (params) => {
      const href = plot.made.href(params);
      const { ctrlKey, metaKey } = params.event?.event || {};
      if (href) ctrlKey || metaKey ? window.open(href, "_blank", "noopener") : location.assign(href);
    });
    return chart;
  }

  async function load(plot) {
    const { src } = plot.dataset;
    plot.askedAt = Date.now();
    try {
      const answer = await fetch(src, { headers: { Accept: "application/json" }, credentials: "same-origin" });
      if (!answer.ok) throw new Error(String(answer.status));
      const data = await answer.json();
      seen.set(src, data);
      plot.data = data;
      if (plot.dataset.src === src) draw(plot, data);
    } catch (error) {
      if (!plot.data) tell(plot, say("unreachable"));
      console.warn(`chart ${src}:`, error);
    }
  }

  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.data && target.width !== target.clientWidth) {
        target.width = target.clientWidth;
        draw(target, target.data);
      }
    }
  });

  function meet(plot) {
    if (plot.askedAt) return;
    plot.data = seen.get(plot.dataset.src);
    if (plot.data) draw(plot, plot.data);
    if (plot.data?.final) plot.askedAt = Date.now();
    else load(plot);
    sizes.observe(plot);
    const details = plot.closest("figure")?.querySelector("details");
    details?.addEventListener("toggle", () => details.open && plot.made && fillTable(details, plot.made));
  }

  const plots = () => document.querySelectorAll("[data-chart]");

  function refresh(age) {
    for (const plot of plots())
      if ("live" in plot.dataset && !plot.data?.final && Date.now() - (plot.askedAt || 0) >= age) load(plot);
  }

  plots().forEach(meet);
  document.addEventListener("htmx:load", () => {
    plots().forEach(meet);
    refresh(4000);
  });
  document.addEventListener("htmx:beforeCleanupElement", (event) => {
    const gone = event.detail.elt;
    if (gone.dataset?.chart) echarts.getInstanceByDom(gone)?.dispose();
  });
  setInterval(() => document.hidden || refresh(LIVE_MS), 2000);
  document.addEventListener("aeo:theme", () => {
    styles = getComputedStyle(document.documentElement);
    for (const plot of plots()) if (plot.data) draw(plot, plot.data);
  });
  document.addEventListener("change", (event) => {
    const id = event.target.dataset?.measureOf;
    const plot = id && document.getElementById(id);
    if (!plot) return;
    plot.dataset.measure = event.target.value;
    if (plot.data) draw(plot, plot.data);
  });
})();
