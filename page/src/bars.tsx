// A small histogram: one path, so that a screen full of them stays cheap.

const HEIGHT = 16;

export function Bars(props: { values: number[] }) {
  const { values } = props;
  if (values.length === 0) return null;
  let path = "";
  for (let at = 0; at < values.length; at += 1) {
    const value = Math.min(1, Math.max(0, values[at] ?? 0));
    if (value === 0) continue;
    // What is there at all gets at least one unit, or rare values would look like none.
    const height = Math.max(1, value * HEIGHT);
    path += `M${at} ${HEIGHT}v${-Number(height.toFixed(1))}h0.84v${height.toFixed(1)}z`;
  }
  return (
    <svg class="bars" viewBox={`0 0 ${values.length} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <path d={path} />
    </svg>
  );
}
