// Lines over time, by uPlot: one for each worker, or the spread over many of them.
"use strict";

const Charts = (() => {
  const HUES = ["#3b82d6", "#d9822b", "#2f9e6e", "#c2508f", "#8a6fd1", "#a3862a", "#3aa3b8", "#cc5a4d"];
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function seconds(value) {
    const whole = Math.max(0, Math.round(value));
    const pad = (n) => String(n).padStart(2, "0");
    const h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60;
    return h ? `${h}:${pad(m)}:${pad(whole % 60)}` : `${m}:${pad(whole % 60)}`;
  }

  function axis(format) {
    return {
      stroke: style("--faint"), font: "12px system-ui, sans-serif", values: (_, at) => at.map(format),
      grid: { stroke: style("--line"), width: 1 }, ticks: { show: false },
    };
  }

  // names: of the lines; bold: the name of the line that is chosen, or null; spread: whether the
  // lines are the least, the largest and the median of all workers, then those of single workers.
  function options(box, names, bold, spread, format) {
    const lines = names.map((name, at) => {
      const edge = spread && at < 2;
      const chosen = name === bold;
      const hue = spread && at < 3 ? style("--accent") : HUES[at % HUES.length];
      return {
        label: name, stroke: edge ? style("--line") : hue, spanGaps: true,
        width: chosen || (spread && at === 2) ? 2.5 : 1.25,
        alpha: bold === null || chosen || (spread && at < 3) ? 1 : 0.35, points: { show: false },
      };
    });
    const own = { ...axis(format), size: 58 }, time = { ...axis(seconds), size: 26 };
    return {
      width: box.clientWidth, height: box.clientHeight, cursor: { y: false, points: { size: 6 } },
      legend: { show: false }, scales: { x: { time: false } }, series: [{}, ...lines],
      bands: spread ? [{ series: [2, 1], fill: style("--accent-soft") }] : [],
      axes: [time, own], padding: [8, 8, 0, 0],
    };
  }

  class Chart {
    constructor(box, format) {
      this.box = box;
      this.format = format;
      this.key = "";
      this.plot = null;
      new ResizeObserver(() => this.plot &&
        this.plot.setSize({ width: box.clientWidth, height: box.clientHeight })).observe(box);
    }

    // What is drawn anew is the data alone, unless the lines are others.
    show(times, values, names, bold, spread) {
      const known = values.some((line) => line.some((value) => value !== null));
      if (!known) {
        this.clear("Nothing yet");
        return;
      }
      const dark = matchMedia("(prefers-color-scheme: dark)").matches;
      const key = JSON.stringify([names, bold, spread, dark]);
      const data = [times, ...values];
      if (this.plot && key === this.key) {
        this.plot.setData(data);
        return;
      }
      this.clear("");
      this.key = key;
      this.plot = new uPlot(options(this.box, names, bold, spread, this.format), data, this.box);
    }

    clear(words) {
      if (this.plot) this.plot.destroy();
      this.plot = null;
      this.key = "";
      this.box.replaceChildren();
      if (words) {
        const empty = document.createElement("div");
        empty.className = "empty";
        empty.textContent = words;
        this.box.append(empty);
      }
    }
  }

  return { Chart, seconds };
})();
