// Norms of the rows and of the columns of a matrix.
import { useCallback, useMemo, useState } from "preact/hooks";
import type uPlot from "uplot";
import { axisStyle, Chart, type ChartColors } from "./chart";
import { number, whole } from "./format";
import type { Norms, Num } from "./types";

type Axis = Norms["axes"][number];

export function NormsView({ norms }: { norms: Norms }) {
  return (
    <div class="norms">
      {norms.axes.map((axis) => (
        <AxisNorms key={axis.label} axis={axis} />
      ))}
      {norms.note !== null && <p class="leaf-hint" dir="ltr">{norms.note}</p>}
    </div>
  );
}

// What is not finite cannot be drawn: a gap, and a remark.
function drawable(values: Num[]): (number | null)[] {
  return values.map((value) => (typeof value === "number" ? value : null));
}

function AxisNorms({ axis }: { axis: Axis }) {
  const [pointed, setPointed] = useState<number | null>(null);
  const single = axis.per_bin === 1;
  const data = useMemo<uPlot.AlignedData>(() => {
    const places = axis.mean.map((_, index) => index * axis.per_bin);
    const mean = drawable(axis.mean);
    return single ? [places, mean] : [places, drawable(axis.low), drawable(axis.high), mean];
  }, [axis, single]);
  const options = useCallback((colors: ChartColors) => optionsOf(single, colors), [single]);
  const onPoint = useCallback((_x: number | null, index: number | null) => setPointed(index), []);
  const broken = axis.mean.filter((value) => typeof value !== "number").length;
  const read = pointed === null ? null : readout(axis, pointed);
  return (
    <figure class="norm-axis">
      <figcaption class="chart-bar">
        <span dir="ltr">{axis.label}</span>
        <span class="chart-readout">{read ?? (single ? "" : `low to high and mean of ${whole(axis.per_bin)} each`)}</span>
      </figcaption>
      <Chart label={describe(axis)} height={130} data={data} options={options} onPoint={onPoint} />
      {broken > 0 && (
        <p class="leaf-hint leaf-bad">
          {whole(broken)} of {whole(axis.mean.length)} {single ? "norms are" : "groups have norms that are"} NaN or infinite, and left out.
        </p>
      )}
    </figure>
  );
}

function readout(axis: Axis, index: number): string | null {
  const mean = axis.mean[index];
  if (mean === undefined) return null;
  const first = index * axis.per_bin;
  if (axis.per_bin === 1) return `[${first}]: ${number(mean)}`;
  const last = Math.min(axis.count, first + axis.per_bin) - 1;
  return `[${first} to ${last}]: ${number(axis.low[index] ?? null)} to ${number(axis.high[index] ?? null)}, mean ${number(mean)}`;
}

function describe(axis: Axis): string {
  const lows = axis.low.filter((value): value is number => typeof value === "number");
  const highs = axis.high.filter((value): value is number => typeof value === "number");
  if (lows.length === 0 || highs.length === 0) return axis.label;
  const least = lows.reduce((a, b) => Math.min(a, b));
  const most = highs.reduce((a, b) => Math.max(a, b));
  return `${axis.label}: from ${number(least)} to ${number(most)}`;
}

function optionsOf(single: boolean, colors: ChartColors): Omit<uPlot.Options, "width" | "height"> {
  const axis = axisStyle(colors);
  const hidden: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false } };
  const line: uPlot.Series = { stroke: colors.accent, width: 1.5, points: { show: false } };
  return {
    padding: [8, 16, 0, 0],
    scales: { x: { time: false }, y: { range: (_self, low, high) => spread(low, high) } },
    axes: [
      { ...axis, grid: { show: false }, size: 26, values: (_self, splits) => splits.map((value) => (Number.isInteger(value) ? whole(value) : "")) },
      { ...axis, size: 52, values: (_self, splits) => splits.map((value) => number(value === 0 ? 0 : Number(value.toPrecision(10))).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")) },
    ],
    series: single ? [{}, line] : [{}, hidden, hidden, line],
    ...(single ? {} : { bands: [{ series: [2, 1] as [number, number], fill: `${colors.accent}40` }] }),
    cursor: { points: { show: false } },
  };
}

/** Norms are not negative; the axis begins at 0 unless all lie close together far away from it. */
function spread(low: number, high: number): [number, number] {
  if (low === null || high === null) return [0, 1];
  if (low === high) return low === 0 ? [0, 1] : [low * 0.9, high * 1.1];
  const margin = (high - low) * 0.06;
  return [low < (high - low) * 2 ? 0 : low - margin, high + margin];
}
