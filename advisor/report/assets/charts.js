// Options of the charts: treemaps, all plans, roofline, scaling, runs. Numbers come from the page's data.
"use strict";
(() => {
  const page = window.advisorPage;
  const { data } = page;
  const charts = (page.charts = page.charts || {});
  const COLORS = ["c1", "c2", "c3", "c5", "c4", "c6", "c8", "c7"];
  const narrow = () => window.innerWidth < 700;

  // Ink that reads on a colour, by its luminance.
  function inkOn(color) {
    const [red, green, blue] = [1, 3, 5].map((start) => parseInt(color.slice(start, start + 2), 16) / 255);
    return 0.2126 * red ** 2.2 + 0.7152 * green ** 2.2 + 0.0722 * blue ** 2.2 > 0.3 ? "#14171a" : "#ffffff";
  }

  function branch(term, key, color) {
    return {
      name: term.title, term: term.name, value: Math.max(term[key], 0), share: term.share,
      itemStyle: { color, borderColor: page.color("sheet") },
      label: { color: inkOn(color) },
      children: term.parts.filter((part) => part[key] > 0).map((part) => branch(part, key, color)),
    };
  }

  function treemap(which) {
    const root = page.trees[which];
    const key = page.keys[which];
    const parts = root.parts.filter((part) => part[key] > 0).sort((one, other) => other[key] - one[key]);
    // Forward and backward have the colours of the timeline; the others follow by size.
    const free = COLORS.filter((name) => which === "memory" || !["c1", "c2"].includes(name));
    const fixed = { forward: "c1", backward: "c2" };
    let next = 0;
    const nodes = parts.map((part) => branch(part, key, page.color(fixed[part.name] || free[Math.min(next++, free.length - 1)])));
    return {
      tooltip: {
        confine: true,
        formatter: (params) => `<b>${page.escaped(params.name)}</b><br>${page.amount(params.value, key)}, ${page.percent(params.data.share || 1)}`,
      },
      series: [{
        type: "treemap", roam: false, nodeClick: false, breadcrumb: { show: false }, data: nodes, animation: false,
        left: 0, right: 0, top: 0, bottom: 0, visibleMin: 20,
        itemStyle: { borderColor: page.color("sheet") },
        label: { formatter: (params) => `${params.name}\n${page.amount(params.value, key)}`, overflow: "truncate", lineHeight: 16 },
        upperLabel: { show: false },
        levels: [
          { itemStyle: { gapWidth: 3, borderWidth: 0, borderColor: page.color("sheet") } },
          { itemStyle: { gapWidth: 1, borderWidth: 0, borderColor: page.color("sheet") } },
          { itemStyle: { gapWidth: 1, borderWidth: 0, borderColor: page.color("sheet") } },
        ],
      }],
    };
  }
  for (const which of ["time", "memory"]) {
    charts[`${which}-chart`] = () => treemap(which);
    charts[`${which}-chart`].click = (params) => {
      if (params.data && params.data.term) page.show(which, params.data.term, null, false);
    };
  }

  charts["plans-chart"] = () => {
    const { points, tokens_per_step: tokens, device_bytes: device, tight_above: tight, layouts, chosen } = data.cloud;
    const place = (point) => [point.memory_bytes / 2 ** 30, tokens / point.step_time_s / point.gpus, point.plan, point.step_time_s];
    const all = points.plan.map((plan, index) => place({
      plan, memory_bytes: points.memory_bytes[index], step_time_s: points.step_time_s[index], gpus: points.gpus[index],
    }));
    const front = all.slice(0, data.cloud.front);
    const rest = all.slice(data.cloud.front);
    const dots = (name, color, rows, more) => ({
      type: "scatter", name, data: rows, itemStyle: { color: page.color(color) }, animation: false, ...more,
    });
    return {
      tooltip: {
        confine: true,
        formatter: ({ value, seriesName }) =>
          `<b>${page.escaped(value[2])}</b><br>${page.escaped(seriesName)}<br>${page.seconds(value[3])} a step, ` +
          `${value[1].toLocaleString("en-US", { maximumFractionDigits: 0 })} tokens/s/GPU<br>${value[0].toFixed(1)} GiB`,
      },
      legend: { top: 0, type: "scroll" },
      grid: { left: 62, right: 20, top: narrow() ? 60 : 44, bottom: 44 },
      xAxis: { type: "value", name: "memory of the worst rank, GiB", nameLocation: "middle", nameGap: 28, min: 0, max: Math.ceil(device / 2 ** 30), axisLabel: { showMaxLabel: false } },
      yAxis: { type: "value", name: "tokens/s/GPU", scale: false },
      series: [
        dots("plan that fits", "c7", rest, { symbolSize: 4, itemStyle: { color: page.color("c7"), opacity: 0.45 } }),
        {
          type: "line", name: "Pareto front", data: front.slice().sort((one, other) => one[0] - other[0]), step: "start", animation: false,
          symbol: "circle", symbolSize: 6, showSymbol: true, lineStyle: { color: page.color("c1"), width: 1.5 }, itemStyle: { color: page.color("c1") },
          markLine: {
            symbol: "none", silent: true, lineStyle: { color: page.color("warn"), type: "dashed" },
            label: { formatter: "allocator stalls beyond", position: "end", align: "right", distance: 6, color: page.color("warn") },
            data: [{ xAxis: (tight * device) / 2 ** 30 }],
          },
        },
        dots("best of its layout", "c3", layouts.map(place), { symbol: "triangle", symbolSize: 11, z: 4 }),
        dots("this plan", "c2", [place(chosen)], { symbol: "diamond", symbolSize: 18, z: 5, itemStyle: { color: page.color("c2"), borderColor: page.color("ink"), borderWidth: 1 } }),
      ],
    };
  };

  charts["roofline-chart"] = () => {
    const { roofs, bandwidth, gemms } = data.roofline;
    const most = Math.max(...gemms.map((gemm) => gemm.intensity), ...roofs.map((roof) => (4 * roof.rate) / bandwidth));
    const least = Math.min(...gemms.map((gemm) => gemm.intensity), 32) / 2;
    const tera = (rate) => rate / 1e12;
    const shapes = { forward: ["circle", "c1"], "data gradient": ["triangle", "c2"], "weight gradient": ["rect", "c3"] };
    const lines = roofs.map((roof) => ({
      type: "line", name: roof.title, symbol: "none", silent: true, animation: false, lineStyle: { color: page.color("muted"), width: 1.5, type: roof === roofs[0] ? "solid" : "dashed" },
      itemStyle: { color: page.color("muted") }, tooltip: { show: false },
      data: [least, roof.rate / bandwidth, most * 1.2].map((intensity) => [intensity, tera(Math.min(roof.rate, intensity * bandwidth))]),
    }));
    const points = Object.entries(shapes).map(([pass, [symbol, color]]) => ({
      type: "scatter", name: pass, symbol, symbolSize: 11, animation: false, itemStyle: { color: page.color(color), opacity: 0.85 },
      data: gemms.filter((gemm) => gemm.pass === pass).map((gemm) => ({ value: [gemm.intensity, tera(gemm.rate)], gemm })),
    }));
    const sizes = (gemm) => gemm.shape.map((size) => size.toLocaleString("en-US")).join(" x ") + (gemm.groups > 1 ? `, ${gemm.groups} groups` : "");
    return {
      tooltip: {
        confine: true,
        formatter: ({ data: { gemm } }) =>
          `<b>${page.escaped(gemm.layer)}</b>, ${page.escaped(gemm.pass)}<br>${sizes(gemm)}<br>${gemm.intensity.toFixed(0)} FLOP/byte, ` +
          `${tera(gemm.rate) < 9.995 ? tera(gemm.rate).toPrecision(3) : tera(gemm.rate).toFixed(0)} TFLOP/s<br>${page.percent(gemm.share_of_roof)} of the roof, ${page.escaped(gemm.bound)} bound`,
      },
      legend: { top: 0, type: "scroll" },
      grid: { left: 62, right: 20, top: narrow() ? 60 : 44, bottom: 44 },
      xAxis: { type: "log", name: "FLOP/byte", nameLocation: "middle", nameGap: 28, min: least, max: most * 1.2, axisLabel: { formatter: (value) => page.number(Number(value.toPrecision(2))) }, splitLine: { show: false } },
      yAxis: { type: "log", name: "TFLOP/s", axisLabel: { formatter: (value) => page.number(Number(value.toPrecision(2))) } },
      series: [...lines, ...points],
    };
  };

  charts["scaling-chart"] = () => {
    const rows = data.scaling.rows.filter((row) => row.plan);
    const priced = rows.every((row) => row.cost.usd !== undefined);
    const names = rows.map((row) => row.gpus.toLocaleString("en-US"));
    const here = (row) => (row.gpus === data.prediction.gpus ? page.color("c2") : page.color("c1"));
    const bars = (place, values) => ({
      type: "bar", xAxisIndex: place, yAxisIndex: place, barMaxWidth: 42, animation: false,
      data: values.map((value, index) => ({ value, itemStyle: { color: here(rows[index]) } })),
    });
    const half = narrow()
      ? [{ left: 58, right: 14, top: 28, height: "32%" }, { left: 58, right: 14, bottom: 28, height: "32%" }]
      : [{ left: 62, width: "38%", top: 32, bottom: 40 }, { right: 16, width: "38%", top: 32, bottom: 40 }];
    const axis = (place) => ({ type: "category", gridIndex: place, data: names, axisTick: { show: false }, name: narrow() ? "" : "GPUs", nameLocation: "middle", nameGap: 24 });
    const short = (value) => Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 }).format(value);
    return {
      tooltip: {
        trigger: "axis", confine: true, axisPointer: { type: "shadow" },
        formatter: ([first]) => {
          const row = rows[first.dataIndex];
          const money = row.cost.usd === undefined ? "" : `, $${short(row.cost.usd)}`;
          return `<b>${names[first.dataIndex]} GPUs</b><br>${page.escaped(row.plan)}<br>${page.seconds(row.step_time_s)} a step, ` +
            `${short(row.tokens_per_second_per_gpu)} tokens/s/GPU<br>${short(row.cost.gpu_hours)} GPU-hours${money}`;
        },
      },
      grid: half,
      xAxis: [axis(0), axis(1)],
      yAxis: [
        { type: "value", gridIndex: 0, name: "tokens/s/GPU", nameTextStyle: { align: "left" }, axisLabel: { formatter: short } },
        { type: "value", gridIndex: 1, name: priced ? "USD" : "GPU-hours", nameTextStyle: { align: "left" }, axisLabel: { formatter: short } },
      ],
      series: [bars(0, rows.map((row) => row.tokens_per_second_per_gpu)), bars(1, rows.map((row) => (priced ? row.cost.usd : row.cost.gpu_hours)))],
    };
  };

  data.records.forEach((record, number) => {
    charts[`run-${number}-chart`] = () => ({
      tooltip: { trigger: "item", confine: true, formatter: ({ value }) => `step ${value[0]}: ${page.seconds(value[1])}` },
      legend: { top: 0 },
      grid: { left: 62, right: 20, top: 40, bottom: 40 },
      xAxis: { type: "value", name: "step", nameLocation: "middle", nameGap: 24, minInterval: 1, min: 0, max: record.steps.length + 1 },
      yAxis: { type: "value", min: 0, axisLabel: { formatter: page.tick } },
      series: [true, false].map((warmup) => ({
        type: "scatter", name: warmup ? "warm-up" : "measured", animation: false, symbolSize: 9,
        data: record.steps.map((step, index) => [index + 1, step.seconds, step.warmup]).filter((row) => row[2] === warmup),
        itemStyle: warmup ? { color: "transparent", borderColor: page.color("c7"), borderWidth: 1.5 } : { color: page.color("c2") },
        ...(warmup ? {} : {
          markArea: { silent: true, itemStyle: { color: page.color("c6"), opacity: 0.2 }, data: [[{ yAxis: record.interval.low }, { yAxis: record.interval.high }]] },
          markLine: { silent: true, symbol: "none", lineStyle: { color: page.color("c1") }, label: { formatter: "predicted", position: "insideEndTop", color: page.color("ink") }, data: [{ yAxis: record.predicted_s }] },
        }),
      })),
    });
  });
})();
