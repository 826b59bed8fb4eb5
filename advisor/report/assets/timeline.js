// The simulated step: a row for each stage, its phases above, passes in the middle, what travels beside them below.
"use strict";
(() => {
  const page = window.advisorPage;
  const line = page.data.schedule;
  // Series of the chart: title, colour, and which spans belong to it.
  const KINDS = [
    { title: "forward", color: "c1", lane: "middle" },
    { title: "backward", color: "c2", lane: "middle" },
    { title: "forward and backward in turn", color: "both", lane: "middle" },
    { title: "other compute", color: "c8", lane: "middle" },
    { title: "tensor parallel, exposed", color: "c4", lane: "middle" },
    { title: "context parallel, exposed", color: "c5", lane: "middle" },
    { title: "expert parallel, exposed", color: "c9", lane: "middle" },
    { title: "data parallel, exposed", color: "c3", lane: "middle" },
    { title: "waiting", color: "c7", lane: "middle" },
    { title: "sent to a neighbour", color: "c10", lane: "low" },
    { title: "hidden under compute", color: "c11", lane: "low" },
  ];
  const STREAM = { tp: 4, cp: 5, ep: 6, dp: 7, host: 8 };
  const LANES = { high: [-0.46, 0.07], middle: [-0.34, 0.58], low: [0.28, 0.12] };

  function kindOf(stream, name, microbatch) {
    if (name.endsWith("under compute")) return 10;
    if (stream === "pp") return microbatch >= 0 ? 9 : 8;
    if (stream !== "compute") return STREAM[stream];
    if (name.endsWith("forward and backward")) return 2;
    if (name.endsWith("forward")) return 0;
    return name.endsWith("backward") ? 1 : 3;
  }

  function rectangle(lane, fill) {
    return (params, api) => {
      const [left, y] = api.coord([api.value(0), api.value(2)]);
      const [right] = api.coord([api.value(1), api.value(2)]);
      const band = Math.min(api.size([0, 1])[1], 90);
      const [top, height] = LANES[lane];
      const area = params.coordSys;
      const from = Math.max(left, area.x);
      const to = Math.min(Math.max(right, left + 0.7), area.x + area.width);
      if (to <= from) return null;
      const gap = to - from > 3 ? 0.6 : 0;
      return {
        type: "rect",
        shape: { x: from, y: y + top * band, width: to - from - gap, height: Math.max(height * band, 1.5) },
        style: { fill },
      };
    };
  }

  // Passes drawn as one show both colours, one above the other.
  function fillOf(color) {
    if (color !== "both") return page.color(color);
    const stops = [[0, "c1"], [0.34, "c1"], [0.34, "c2"], [1, "c2"]];
    return { type: "linear", x: 0, y: 0, x2: 0, y2: 1, colorStops: stops.map(([offset, name]) => ({ offset, color: page.color(name) })) };
  }

  function series(title, color, lane, rows) {
    return {
      type: "custom", name: title, renderItem: rectangle(lane, fillOf(color)), data: rows,
      encode: { x: [0, 1], y: 2 }, itemStyle: { color: fillOf(color) }, progressive: 0, animation: false,
    };
  }

  function phases() {
    const rows = { "warm-up": [], "steady state": [], flush: [] };
    line.rows.forEach((row, stage) => {
      rows["warm-up"].push([0, row.warm_up_s, stage, "warm-up", -1, -1]);
      rows["steady state"].push([row.warm_up_s, row.steady_s, stage, "steady state", -1, -1]);
      rows.flush.push([row.steady_s, row.flush_s, stage, "flush", -1, -1]);
    });
    const colors = { "warm-up": "c6", "steady state": "line", flush: "muted" };
    return Object.entries(rows).map(([title, data]) =>
      series(title, colors[title], "high", data.filter((row) => row[1] > row[0])));
  }

  function tooltip(params) {
    const [start, end, stage, name, microbatch, chunk] = params.value;
    const which = microbatch >= 0 ? `<br>micro-batch ${microbatch}${chunk > 0 ? `, chunk ${chunk}` : ""}` : "";
    return `<b>${page.escaped(name)}</b>, ${page.escaped(line.stage_names[stage])}${which}<br>` +
      `${page.seconds(end - start)}, from ${page.seconds(start)} to ${page.seconds(end)}`;
  }

  page.charts = page.charts || {};
  page.charts["timeline-chart"] = () => {
    const groups = KINDS.map(() => []);
    for (const [stage, stream, name, start, duration, microbatch, chunk] of line.spans) {
      const title = line.names[name];
      groups[kindOf(line.streams[stream], title, microbatch)].push([start, start + duration, stage, title, microbatch, chunk]);
    }
    const shown = KINDS.map((kind, index) => series(kind.title, kind.color, kind.lane, groups[index]))
      .filter((each) => each.data.length);
    const all = [...phases().filter((each) => each.data.length), ...shown];
    const narrow = window.innerWidth < 700;
    return {
      tooltip: { trigger: "item", formatter: tooltip, confine: true },
      legend: { top: 0, type: narrow ? "scroll" : "plain", itemWidth: 14, itemHeight: 10, itemGap: 14, data: all.map((each) => each.name) },
      grid: { left: narrow ? 34 : 70, right: 14, top: narrow ? 34 : 56, bottom: 74 },
      xAxis: { type: "value", min: 0, max: line.step_time_s, axisLabel: { formatter: page.tick, hideOverlap: true, showMaxLabel: false } },
      yAxis: {
        type: "category", inverse: true, data: line.stage_names, axisTick: { show: false },
        axisLabel: { formatter: (name) => (narrow ? name.replace(/\D+/, "") : name) },
      },
      dataZoom: [
        { type: "inside", zoomOnMouseWheel: "ctrl", moveOnMouseMove: true, moveOnMouseWheel: false, preventDefaultMouseMove: false, filterMode: "none" },
        { type: "slider", height: 22, bottom: 14, filterMode: "none", labelFormatter: (value) => page.seconds(value), showDataShadow: false },
      ],
      series: all,
    };
  };

  page.charts["memory-line-chart"] = () => {
    const capacity = page.data.cloud.device_bytes;
    const curve = line.memory.map(([second, size]) => [second, size / 2 ** 30]);
    if (curve.length) curve.push([line.step_time_s, curve[curve.length - 1][1]]);
    return {
      tooltip: {
        trigger: "axis",
        formatter: (rows) => `${page.seconds(rows[0].value[0])}<br><b>${rows[0].value[1].toFixed(1)} GiB</b>`,
      },
      grid: { left: 52, right: 14, top: 24, bottom: 30 },
      xAxis: { type: "value", min: 0, max: line.step_time_s, axisLabel: { formatter: page.tick, hideOverlap: true, showMaxLabel: false } },
      yAxis: { type: "value", name: "GiB", min: 0, max: (range) => Math.max(range.max, capacity / 2 ** 30) * 1.05, axisLabel: { showMaxLabel: false } },
      series: [{
        type: "line", step: "end", data: curve, symbol: "none", animation: false,
        lineStyle: { color: page.color("c1"), width: 1.5 }, areaStyle: { color: page.color("c1"), opacity: 0.15 },
        markLine: {
          symbol: "none", silent: true, lineStyle: { color: page.color("ink"), type: "dashed" },
          label: { position: "insideEndTop", formatter: `device ${(capacity / 2 ** 30).toFixed(1)} GiB`, color: page.color("ink") },
          data: [{ yAxis: capacity / 2 ** 30 }],
        },
      }],
    };
  };
})();
