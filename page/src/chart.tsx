// A uPlot chart that follows the width of its place and the theme.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { useSize, useTheme, variable, type Theme } from "./answers";

export interface ChartColors {
  text: string;
  dim: string;
  line: string;
  accent: string;
  error: string;
  warning: string;
}

export function Chart(props: {
  label: string;
  height: number;
  data: uPlot.AlignedData;
  options(colors: ChartColors): Omit<uPlot.Options, "width" | "height">;
  /** Where the pointer is, on the x axis and as an index of the data; null when it has left. */
  onPoint(x: number | null, index: number | null): void;
}) {
  const { label, height, data, options, onPoint } = props;
  const theme: Theme = useTheme();
  const [placeRef, width] = useSize<HTMLDivElement>();
  const holder = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | null>(null);
  const pointed = useRef(onPoint);
  pointed.current = onPoint;
  const known = width > 0;
  useEffect(() => {
    if (!known || holder.current === null) return undefined;
    const colors: ChartColors = {
      text: variable("--text"),
      dim: variable("--dim"),
      line: variable("--line"),
      accent: variable("--accent"),
      error: variable("--error"),
      warning: variable("--warning"),
    };
    const given = options(colors);
    const made = new uPlot(
      {
        ...given,
        width,
        height,
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false, setScale: false }, ...given.cursor },
        hooks: {
          ...given.hooks,
          setCursor: [
            (self) => {
              const left = self.cursor.left ?? -1;
              if (left < 0) pointed.current(null, null);
              else pointed.current(self.posToVal(left, "x"), self.cursor.idx ?? null);
            },
          ],
        },
      },
      data,
      holder.current,
    );
    chart.current = made;
    return () => {
      chart.current = null;
      made.destroy();
    };
  }, [known, theme, data, options]);
  useEffect(() => {
    if (known) chart.current?.setSize({ width, height });
  }, [width, height, known]);
  return (
    <div class="chart" ref={placeRef} style={{ height: `${height}px` }}>
      <div ref={holder} role="img" aria-label={label} />
    </div>
  );
}

/** Ticks and grid in the colors of the theme. */
export function axisStyle(colors: ChartColors): uPlot.Axis {
  return {
    stroke: colors.dim,
    font: "12px system-ui, sans-serif",
    grid: { stroke: colors.line, width: 1 },
    ticks: { stroke: colors.line, width: 1, size: 4 },
    gap: 4,
  };
}
