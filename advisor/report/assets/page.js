// The page comes alive: charts when they come into view, the theme, copying of commands. Without it, text and tables.
"use strict";
(() => {
  const page = window.advisorPage;
  const drawn = new Map();

  // The library is packed text until the first chart needs it, so that the answer never waits for it.
  let unpacked;
  function library() {
    unpacked = unpacked || (async () => {
      const script = document.createElement("script");
      script.textContent = await page.unpack("library");
      document.head.append(script);
      return window.echarts;
    })();
    return unpacked;
  }

  function themed(option) {
    const ink = page.color("ink");
    const muted = page.color("muted");
    const axis = (one) => ({
      ...one,
      nameTextStyle: { color: muted, ...(one.nameTextStyle || {}) },
      axisLabel: { color: muted, ...(one.axisLabel || {}) },
      axisLine: { lineStyle: { color: page.color("line") } },
      splitLine: { lineStyle: { color: page.color("line"), opacity: 0.6 }, ...(one.splitLine || {}) },
    });
    const each = (value) => (Array.isArray(value) ? value.map(axis) : axis(value));
    const made = { ...option, backgroundColor: "transparent", textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, color: ink } };
    if (option.xAxis) made.xAxis = each(option.xAxis);
    if (option.yAxis) made.yAxis = each(option.yAxis);
    if (option.legend) made.legend = { textStyle: { color: ink }, pageTextStyle: { color: muted }, pageIconColor: ink, pageIconInactiveColor: page.color("line"), ...option.legend };
    made.tooltip = { backgroundColor: page.color("sheet"), borderColor: page.color("line"), textStyle: { color: ink }, extraCssText: "max-width:22rem;white-space:normal", ...option.tooltip };
    if (option.dataZoom) {
      made.dataZoom = option.dataZoom.map((zoom) => ({ textStyle: { color: muted }, borderColor: page.color("line"), fillerColor: "rgba(128,140,160,.25)", ...zoom }));
    }
    return made;
  }

  async function draw(place) {
    const make = page.charts[place.id];
    if (!make) return;
    if (!window.DecompressionStream) {
      place.replaceChildren("This browser is too old for the chart; the tables have its numbers.");
      return;
    }
    const echarts = await library();
    let chart = drawn.get(place);
    if (!chart) {
      chart = echarts.init(place, null, { renderer: "canvas" });
      drawn.set(place, chart);
      if (make.click) chart.on("click", make.click);
      new ResizeObserver(() => chart.resize()).observe(place);
    }
    chart.setOption(themed(make()), { notMerge: true });
    place.dataset.drawn = "true";
  }

  const places = [...document.querySelectorAll(".chart")];
  const watch = new IntersectionObserver((seen) => {
    for (const one of seen) {
      if (one.isIntersecting) {
        watch.unobserve(one.target);
        draw(one.target);
      }
    }
  }, { rootMargin: "200px" });
  places.forEach((place) => watch.observe(place));
  const again = () => [...drawn.keys()].forEach(draw);
  // Paper is light, and has every chart.
  let screenTheme;
  window.addEventListener("beforeprint", () => {
    screenTheme = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    places.forEach(draw);
  });
  window.addEventListener("afterprint", () => {
    if (screenTheme) document.documentElement.dataset.theme = screenTheme;
    else delete document.documentElement.dataset.theme;
    again();
  });

  // Theme: the system's until a choice is made; the choice is kept where the browser lets a file keep it.
  const THEMES = ["auto", "light", "dark"];
  const button = document.getElementById("theme");
  function kept() {
    try { return localStorage.getItem("advisor-theme") || "auto"; } catch { return "auto"; }
  }
  function choose(theme) {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `theme: ${theme}`;
    button.setAttribute("aria-label", `Theme: ${theme}. Choose another`);
    try { localStorage.setItem("advisor-theme", theme); } catch { /* a file of its own has no storage in some browsers */ }
    again();
  }
  button.addEventListener("click", () => choose(THEMES[(THEMES.indexOf(kept()) + 1) % THEMES.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  if (kept() !== "auto") choose(kept());

  document.querySelectorAll("[data-copy]").forEach((copy) => {
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(copy.dataset.copy);
        copy.textContent = "copied";
      } catch {
        // Without a clipboard (a file in some browsers) the text is chosen, ready for the keyboard.
        getSelection().selectAllChildren(copy.previousElementSibling);
        copy.textContent = "chosen";
      }
    });
  });
  page.draw = () => Promise.all(places.map(draw));
  document.documentElement.dataset.ready = "true";
})();
