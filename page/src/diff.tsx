// The differences between two.
import { useEffect } from "preact/hooks";
import { Chips } from "./chips";
import { number, shape, share } from "./format";
import { JobLine } from "./jobs";
import type { JobName } from "./jobs";
import { descendsAtFirst } from "./state";
import type { State } from "./state";
import { Table } from "./table";
import type { Column } from "./table";
import type { Answered } from "./tree";
import type { Change, Source } from "./types";
import { useWindows } from "./virtual";

/** A change in short: "float32 → bfloat16", "4×4 → 2×8". */
function what(change: Change): string {
  const parts: string[] = [];
  if (change.values) parts.push(`${change.values[0]} → ${change.values[1]}`);
  if (change.shape && change.other_shape && shape(change.shape) !== shape(change.other_shape)) {
    parts.push(`${shape(change.shape)} → ${shape(change.other_shape)}`);
  } else if (change.shape || change.other_shape) {
    parts.push(shape(change.shape ?? change.other_shape));
  }
  if (change.dtype && change.other_dtype && change.dtype !== change.other_dtype) {
    parts.push(`${change.dtype} → ${change.other_dtype}`);
  } else if (change.dtype ?? change.other_dtype) {
    parts.push((change.dtype ?? change.other_dtype)!);
  }
  return parts.concat(change.notes).join(", ");
}

const COLUMNS: Column<Change>[] = [
  {
    id: "path", heading: "Leaf", width: 150, sort: "tree",
    cell: (change) => (
      <div class="name">
        <bdi dir="ltr" class="text is-leaf" title={change.path}>{change.path}</bdi>
        {change.other !== null && change.other !== change.path && (
          <bdi dir="ltr" class="below" title={change.other}>→ {change.other}</bdi>
        )}
      </div>
    ),
  },
  {
    id: "kinds", heading: "Change", width: 128,
    cell: (change) => <span class={`change ${change.kinds[0] ?? ""}`} title={change.kinds.join(", ")}>{change.kinds.join(", ")}</span>,
  },
  { id: "what", heading: "What", width: 230, grow: 0.6, from: 720, cell: (change) => <bdi dir="ltr" class="mono" title={what(change)}>{what(change)}</bdi> },
  { id: "l2", heading: "Relative L2", width: 100, from: 440, right: true, sort: "change", hint: "Norm of the difference, relative to the norm of the first", cell: (change) => (change.relative_l2 === null ? "" : number(change.relative_l2)) },
  { id: "cosine", heading: "Cosine", width: 88, from: 900, right: true, cell: (change) => (change.cosine === null ? "" : number(change.cosine)) },
  { id: "largest", heading: "Largest", width: 92, from: 820, right: true, hint: "Largest difference of two values", cell: (change) => (change.largest === null ? "" : number(change.largest)) },
  { id: "share", heading: "Changed", width: 84, from: 620, right: true, hint: "Share of the values that changed", cell: (change) => (change.share === null ? "" : share(change.share)) },
];

export function DiffView(props: {
  source: Source; version: number; state: State; canStart: boolean;
  change(part: Partial<State>, push?: boolean): void; onOpen(path: string): void; onLine(line: number): void; onAnswer(answer: Answered): void;
  start(name: JobName): void;
}) {
  const { source, version, state, change } = props;
  const sort = state.sort === "change" ? "change" : "tree";
  const key = JSON.stringify([state.kind, state.query, sort, state.descending]);
  const rows = useWindows(key, version, (from, count) =>
    source.diff(state.kind, state.query, sort, state.descending, from, count));
  const diff = rows.answer;
  useEffect(() => {
    if (!rows.loading) props.onAnswer({ matches: state.query === "" ? null : rows.total, error: diff?.error ?? null });
  }, [rows.total, diff?.error, rows.loading]);
  const different = diff ? diff.counts.reduce((sum, one) => sum + (one.kind === "same" ? 0 : one.count), 0) : 0;
  return (
    <div class="view">
      {diff && (
        <div class="tools">
          <p class="sides">
            <bdi dir="ltr" title={diff.names[0]}>{diff.names[0]}</bdi>
            <span aria-label="compared with">→</span>
            <bdi dir="ltr" title={diff.names[1]}>{diff.names[1]}</bdi>
          </p>
          <Chips
            label="Kind of change"
            value={state.kind}
            onChoose={(kind) => change({ kind })}
            chips={[
              { value: "", text: "all differences", count: different },
              ...diff.counts.map((one) => ({ value: one.kind, text: one.kind, count: one.count, look: `change ${one.kind}` })),
            ]}
          />
          {diff.job.state !== "running" && <JobLine name="diff" job={diff.job} canStart={props.canStart} start={props.start} />}
          {!diff.values && <p class="remark">Only names, shapes and dtypes have been compared, no values.</p>}
          {diff.notes.map((note) => <p key={note} class="remark" dir="ltr">{note}</p>)}
        </div>
      )}
      <Table
        label="Differences"
        columns={COLUMNS}
        rows={rows}
        path={(one) => (one.leaf ? one.path : null)}
        selected={state.leaf}
        line={state.line}
        onLine={props.onLine}
        onOpen={(one) => {
          if (one.leaf) props.onOpen(one.path);
        }}
        sort={sort}
        descending={state.descending}
        onSort={(name) => change(name === sort
          ? { sort: name, descending: !state.descending }
          : { sort: name === "tree" ? "" : name, descending: descendsAtFirst(name) })}
        start={key}
        detail={(one) => (
          <p>
            <span class={`change ${one.kinds[0] ?? ""}`}>{one.kinds.join(", ")}</span>{" "}
            <bdi dir="ltr" class="mono">{one.path}{one.other !== null && one.other !== one.path ? ` → ${one.other}` : ""}</bdi>{" "}
            <bdi dir="ltr">{what(one)}</bdi>
          </p>
        )}
        empty={diff?.error ? <p class="bad">{diff.error}</p>
          : diff?.same && diff.values ? <p><span class="health ok" aria-hidden="true" /> Both are the same.</p>
            : diff?.same ? <p>Names, shapes and dtypes are the same.</p>
              : state.query !== "" ? <p>No difference matches this search.</p> : <p>No difference of this kind.</p>}
      />
    </div>
  );
}
