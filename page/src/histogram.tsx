// Values by magnitude: a bar for each power of two, and bars of their own for what has no place among them.
import { useCallback, useMemo, useState } from "preact/hooks";
import type uPlot from "uplot";
import { useSize } from "./answers";
import { axisStyle, Chart, type ChartColors } from "./chart";
import { percent, short, whole } from "./format";
import type { LeafStatistics } from "./types";

interface Bar {
  from: number; // on the x axis, in powers of two
  to: number;
  count: number;
  label: string; // "2⁻⁸ to 2⁻⁷"
  tick: string | null; // of the bars of their own
  kind: "power" | "zero" | "bad";
}

const DIGITS: Record<string, string> = {
  "-": "⁻", "0": "⁰", "1": "¹", "2": "²", "3": "³", "4": "⁴", "5": "⁵", "6": "⁶", "7": "⁷", "8": "⁸", "9": "⁹",
};

export function power(exponent: number): string {
  return `2${[...String(exponent)].map((sign) => DIGITS[sign] ?? sign).join("")}`;
}

function barsOf(statistics: LeafStatistics, width: number): Bar[] {
  const { lowest, counts } = statistics;
  const count = Math.max(counts.length, 1);
  // A bar of its own is wide enough for its label, however many powers there are and however narrow the chart is.
  const own = 1 + [statistics.subnormals, statistics.neginf, statistics.posinf, statistics.nan].filter((value) => value > 0).length;
  const share = 20 / Math.max(200, width - 70);
  const wide = Math.max(Math.min(1, count / 8), (share * count) / Math.max(0.2, 1 - share * (own * 1.225 + 0.9)));
  const gap = wide * 0.45;
  const bars: Bar[] = counts.map((value, index) => ({
    from: lowest + index,
    to: lowest + index + 1,
    count: value,
    label: `${power(lowest + index)} to ${power(lowest + index + 1)}`,
    tick: null,
    kind: "power",
  }));
  let left = lowest - gap;
  const before = (value: number, label: string, tick: string) => {
    bars.unshift({ from: left - wide, to: left, count: value, label, tick, kind: "zero" });
    left -= wide + gap / 2;
  };
  if (statistics.subnormals > 0) before(statistics.subnormals, "subnormal", "sub");
  before(statistics.zeros, "zero", "0");
  let right = lowest + count + gap;
  const after = (value: number, label: string, tick: string) => {
    if (value === 0) return;
    bars.push({ from: right, to: right + wide, count: value, label, tick, kind: "bad" });
    right += wide + gap / 2;
  };
  after(statistics.neginf, "-Inf", "-∞");
  after(statistics.posinf, "+Inf", "+∞");
  after(statistics.nan, "NaN", "NaN");
  return bars;
}

export function Histogram({ statistics }: { statistics: LeafStatistics }) {
  const [logarithmic, setLogarithmic] = useState(false);
  const [pointed, setPointed] = useState<Bar | null>(null);
  const [placeRef, width] = useSize<HTMLDivElement>();
  const about = Math.round(width / 40) * 40; // so that not every pixel of a resize makes a new chart
  const bars = useMemo(() => barsOf(statistics, about), [statistics, about]);
  const total = useMemo(() => bars.reduce((sum, bar) => sum + bar.count, 0), [bars]);
  const data = useMemo<uPlot.AlignedData>(
    () => [bars.map((bar) => (bar.from + bar.to) / 2), bars.map((bar) => bar.count)],
    [bars],
  );
  const options = useCallback((colors: ChartColors) => optionsOf(bars, logarithmic, colors), [bars, logarithmic]);
  const onPoint = useCallback(
    (x: number | null) => setPointed(x === null ? null : (bars.find((bar) => x >= bar.from && x < bar.to) ?? null)),
    [bars],
  );
  const bad = bars.filter((bar) => bar.kind === "bad");
  const summary = `Histogram of ${whole(total)} values by magnitude. Zeros: ${whole(statistics.zeros)}.${bad
    .map((bar) => ` ${bar.label}: ${whole(bar.count)}.`)
    .join("")} The table below has all counts.`;
  return (
    <div class="histogram" ref={placeRef}>
      <div class="chart-bar">
        <span class="chart-readout" data-testid="histogram-readout">
          {pointed === null
            ? "Values by magnitude"
            : `${pointed.label}: ${whole(pointed.count)} (${percent(total > 0 ? pointed.count / total : 0)})`}
        </span>
        <label class="chart-switch">
          <input type="checkbox" checked={logarithmic} onChange={(event) => setLogarithmic(event.currentTarget.checked)} />
          logarithmic
        </label>
      </div>
      <Chart label={summary} height={190} data={data} options={options} onPoint={onPoint} />
      <details class="chart-table">
        <summary>as a table</summary>
        <table>
          <thead>
            <tr>
              <th scope="col">magnitude</th>
              <th scope="col">count</th>
              <th scope="col">share</th>
            </tr>
          </thead>
          <tbody>
            {bars.map((bar) => (
              <tr key={bar.label} class={bar.kind === "bad" ? "bad" : undefined}>
                <th scope="row">{bar.label}</th>
                <td>{whole(bar.count)}</td>
                <td>{percent(total > 0 ? bar.count / total : 0)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </details>
    </div>
  );
}

function optionsOf(bars: Bar[], logarithmic: boolean, colors: ChartColors): Omit<uPlot.Options, "width" | "height"> {
  const most = bars.reduce((largest, bar) => Math.max(largest, bar.count), 1);
  const floor = logarithmic ? 0.5 : 0;
  const first = bars[0]!;
  const last = bars[bars.length - 1]!;
  const margin = (last.to - first.from) * 0.015;
  const powers = bars.filter((bar) => bar.kind === "power");
  const axis = axisStyle(colors);
  const draw = (self: uPlot) => {
    const { ctx } = self;
    const fills = { power: colors.accent, zero: colors.dim, bad: colors.error };
    ctx.save();
    for (const bar of bars) {
      if (bar.count === 0) continue;
      const left = self.valToPos(bar.from, "x", true);
      const right = self.valToPos(bar.to, "x", true);
      const top = Math.min(self.valToPos(bar.count, "y", true), self.valToPos(floor, "y", true) - devicePixelRatio);
      const bottom = self.valToPos(floor, "y", true);
      const gap = Math.min(devicePixelRatio, (right - left) * 0.15);
      ctx.fillStyle = fills[bar.kind];
      ctx.fillRect(left + gap / 2, top, right - left - gap, bottom - top);
    }
    // Lines between the powers of two and the bars of their own.
    ctx.strokeStyle = colors.dim;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (let index = 1; index < bars.length; index += 1) {
      const before = bars[index - 1]!;
      const after = bars[index]!;
      if (before.kind === after.kind) continue;
      const x = self.valToPos((before.to + after.from) / 2, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, self.bbox.top);
      ctx.lineTo(x, self.bbox.top + self.bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  };
  const ticks = (self: uPlot): number[] => {
    const span = last.to - first.from;
    const apart = (34 / Math.max(50, self.bbox.width / devicePixelRatio)) * span;
    const step = [1, 2, 4, 5, 10, 20, 50, 100, 200, 500].find((size) => size >= apart) ?? 1000;
    const own = bars.filter((bar) => bar.tick !== null).map((bar) => (bar.from + bar.to) / 2);
    const places = [...own];
    if (powers.length > 0) {
      const end = powers[powers.length - 1]!.to;
      for (let at = Math.ceil(powers[0]!.from / step) * step; at <= end; at += step) {
        if (own.every((other) => Math.abs(other - at) > apart * 0.85)) places.push(at);
      }
    }
    return places.sort((a, b) => a - b);
  };
  const tickText = new Map(bars.filter((bar) => bar.tick !== null).map((bar) => [(bar.from + bar.to) / 2, bar.tick!]));
  return {
    padding: [8, 8, 0, 0],
    scales: {
      x: { time: false, range: () => [first.from - margin, last.to + margin] },
      y: logarithmic
        ? { distr: 3, log: 10, range: () => [floor, Math.max(2, most * 1.4)] }
        : { range: () => [0, most * 1.06] },
    },
    axes: [
      {
        ...axis,
        grid: { show: false },
        size: 26,
        splits: ticks,
        values: (_self, splits) => splits.map((at) => tickText.get(at) ?? power(Math.round(at))),
      },
      {
        ...axis,
        size: 52,
        ...(logarithmic
          ? { splits: () => decades(most), values: (_self: uPlot, splits: number[]) => splits.map(compact), filter: (_self: uPlot, splits: number[]) => splits }
          : { values: (_self: uPlot, splits: number[]) => splits.map((value) => (Number.isInteger(value) ? compact(value) : "")) }),
      },
    ],
    series: [{}, { paths: () => null, points: { show: false } }],
    cursor: { points: { show: false } },
    hooks: { draw: [draw] },
  };
}

function compact(count: number): string {
  return count >= 1e4 && count < 1e6 ? `${count / 1e3} K` : short(count).replace(/\.?0+ /, " ");
}

function decades(most: number): number[] {
  const top = Math.floor(Math.log10(Math.max(1, most)));
  const step = top > 5 ? 2 : 1;
  const places: number[] = [];
  for (let exponent = 0; exponent <= top; exponent += step) places.push(10 ** exponent);
  return places;
}
